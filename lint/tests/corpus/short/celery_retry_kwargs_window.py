# ruff: noqa
# expect file: EO106
import requests
import redis
from celery import shared_task

r = redis.Redis()


@shared_task(autoretry_for=(requests.RequestException,), retry_kwargs={"max_retries": 12, "countdown": 1800})
def order_parcel(order_id):
    key = f"parcel:{order_id}"
    if not r.set(key, "1", nx=True, ex=1800):
        return
    try:
        requests.post("https://carrier.example/parcels", json={"order": order_id}, timeout=5).raise_for_status()
    except requests.RequestException:
        r.delete(key)
        raise
