# ruff: noqa
# expect file: EO301
import redis, requests
from datetime import datetime
from celery import shared_task
r = redis.Redis()
@shared_task
def ship(order_id):
    key = f"ship:{order_id}:{datetime.utcnow().isoformat()}"
    if not r.set(key, 1, nx=True, ex=864000):
        return
    requests.post("https://carrier.example/ship", json={"id": order_id})
