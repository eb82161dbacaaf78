# ruff: noqa
# expect file: clean
import dramatiq, redis
import requests
r = redis.Redis()
@dramatiq.actor(max_retries=5)
def sync(order_id: str):
    key = f"sync:{order_id}"
    if not r.set(key, "1", nx=True, ex=86400):
        return
    try:
        requests.post("https://erp.example/orders", json={"id": order_id}).raise_for_status()
    except Exception:
        r.delete(key)
        raise
