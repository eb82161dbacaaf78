# ruff: noqa
# expect file: P11
from celery import shared_task
from app.locks import distributed_lock
import requests
@shared_task
def ship(order_id):
    with distributed_lock(f"ship:{order_id}"):
        requests.post("https://carrier.example", json={"o": order_id})
