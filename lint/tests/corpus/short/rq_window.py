# ruff: noqa
# expect file: EO106
import requests
from redis import Redis
from rq import Queue, Retry

r = Redis()
queue = Queue("parcels", connection=r)
TTL = 120


def order_parcel(order_id):
    key = f"parcel:{order_id}"
    if not r.set(key, "1", nx=True, ex=TTL):
        return
    try:
        requests.post("https://carrier.example/parcels", json={"order": order_id}, timeout=5).raise_for_status()
    except requests.RequestException:
        r.delete(key)
        raise


def submit(order_id):
    queue.enqueue(order_parcel, order_id, retry=Retry(max=3, interval=[60, 600, 3600]))
