# ruff: noqa
# expect file: EO105
import requests
from celery import shared_task
from redis import Redis


class Once:
    def __init__(self, redis: Redis, prefix: str):
        self.redis, self.prefix = redis, prefix

    def __call__(self, key):
        return self.redis.setnx(f"{self.prefix}:{key}", "1")


once = Once(Redis(), "ship")


@shared_task
def ship(order_id):
    if once(order_id):
        requests.post("https://carrier.example/parcels", json={"order": order_id}, timeout=5)
