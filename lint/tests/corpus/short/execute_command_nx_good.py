# ruff: noqa
# expect file: clean
import redis
import requests
from celery import shared_task

r = redis.Redis()


@shared_task
def ship(order_id):
    if r.execute_command("SET", f"ship:{order_id}", "1", "NX", "EX", 1209600) is None:
        return
    requests.post("https://carrier.example/parcels", json={"order": order_id}, timeout=5)
