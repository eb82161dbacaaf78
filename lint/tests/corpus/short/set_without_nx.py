# ruff: noqa
# expect file: EO105
import redis
import requests
from dramatiq import actor

r = redis.Redis()


@actor
def ship(order_id):
    if not r.set(f"ship:{order_id}", 1, ex=1209600):
        return
    requests.post("https://carrier.example/parcels", json={"order": order_id}, timeout=5)
