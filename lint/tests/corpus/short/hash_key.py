# ruff: noqa
# expect file: EO302
import hashlib, json, redis, requests
from celery import shared_task
r = redis.Redis()
@shared_task
def ship(order):
    h = hashlib.md5(json.dumps(order).encode("utf-8")).hexdigest()
    if not r.set("ship:" + h, 1, nx=True, ex=864000):
        return
    requests.post("https://carrier.example/ship", json=order)
