# ruff: noqa
# expect file: EO106
import requests
import redis
from procrastinate import App, PsycopgConnector, RetryStrategy

app = App(connector=PsycopgConnector())
r = redis.Redis()


@app.task(queue="parcels", retry=RetryStrategy(max_attempts=10, wait=3600))
def order_parcel(order_id):
    key = f"parcel:{order_id}"
    if not r.set(key, "1", nx=True, ex=1800):
        return
    try:
        requests.post("https://carrier.example/parcels", json={"order": order_id}, timeout=5).raise_for_status()
    except requests.RequestException:
        r.delete(key)
        raise
