# ruff: noqa
# expect file: EO101, EO103
import requests
from celery import shared_task
from pymemcache.client.base import Client

mc = Client("cache")


@shared_task
def ship(order_id):
    if mc.get(f"shipped-{order_id}"):
        return
    requests.post("https://carrier.example/parcels", json={"order": order_id}, timeout=5)
    mc.set(f"shipped-{order_id}", 1, expire=86400)
