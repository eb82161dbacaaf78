# ruff: noqa
# expect file: clean
import redis
import requests
from celery import shared_task

r = redis.Redis()


class Claim:
    def __init__(self, key):
        self.key = f"claim:{key}"
        self.won = False

    def __enter__(self):
        self.won = bool(r.set(self.key, 1, nx=True, ex=1209600))
        return self

    def __exit__(self, kind, *_):
        if kind is not None and self.won:
            r.delete(self.key)


@shared_task
def ship(order_id):
    with Claim(order_id) as claim:
        if claim.won:
            requests.post("https://carrier.example/parcels", json={"order": order_id}, timeout=5)
