# ruff: noqa
# expect file: clean
from celery import shared_task
from app.locks import exactly_once
import requests
@shared_task
def ship(order_id):
    with exactly_once(f"ship:{order_id}"):
        requests.post("https://carrier.example", json={"o": order_id})
