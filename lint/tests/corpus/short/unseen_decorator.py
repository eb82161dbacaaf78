# ruff: noqa
# expect file: clean
from celery import shared_task
from app.idempotency import idempotent
import requests
@shared_task
@idempotent(key=lambda order_id: f"ship:{order_id}")
def ship(order_id):
    requests.post("https://carrier.example", json={"o": order_id})
