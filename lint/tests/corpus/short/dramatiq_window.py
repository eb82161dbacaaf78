# ruff: noqa
# expect file: EO106
import dramatiq
import redis
import requests

r = redis.Redis()


@dramatiq.actor(max_retries=10, min_backoff=60_000, max_backoff=3_600_000)
def order_parcel(order_id):
    key = f"parcel:{order_id}"
    if not r.set(key, 1, nx=True, ex=600):
        return
    try:
        requests.post("https://carrier.example/parcels", json={"order": order_id}, timeout=5).raise_for_status()
    except Exception:
        r.delete(key)
        raise
