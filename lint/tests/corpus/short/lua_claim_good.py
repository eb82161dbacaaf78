# ruff: noqa
# expect file: clean
import redis
import requests
from celery import shared_task

r = redis.Redis()
claim = r.register_script("return redis.call('SET', KEYS[1], 1, 'NX', 'EX', ARGV[1])")


@shared_task
def ship(order_id):
    if not claim(keys=[f"ship:{order_id}"], args=[1209600]):
        return
    requests.post("https://carrier.example/parcels", json={"order": order_id}, timeout=5)
