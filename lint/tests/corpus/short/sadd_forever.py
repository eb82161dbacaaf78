# ruff: noqa
# expect file: EO105
import redis
import requests
from dramatiq import actor

r = redis.Redis()


@actor
def ship(order_id):
    if r.sadd("shipped-orders", order_id) == 0:
        return
    requests.post("https://carrier.example/parcels", json={"order": order_id}, timeout=5)
