# ruff: noqa
# expect file: EO105
import redis, requests
from celery import shared_task
cache = redis.Redis(host="localhost", port=6379, db=0)
@shared_task
def process_order(order_id):
    if cache.get(f"order:{order_id}:processed"):
        return
    cache.set(f"order:{order_id}:processed", "true")
    requests.post("https://fulfil.example/orders", json={"id": order_id})
