# ruff: noqa
# expect file: EO105
import redis
import requests
from celery import shared_task

r = redis.Redis()


@shared_task
def ship(order_id):
    if r.incr(f"ship:{order_id}") > 1:
        return
    requests.post("https://carrier.example/parcels", json={"order": order_id}, timeout=5)
