# ruff: noqa
# expect file: clean
import httpx
from celery import shared_task
from django.conf import settings


def headers(order_id):
    return {"Authorization": f"Bearer {settings.TOKEN}", "Idempotency-Key": f"order-{order_id}"}


@shared_task
def place(order_id, lines):
    with httpx.Client(base_url=settings.ERP) as client:
        client.post("/orders", json={"lines": lines}, headers=headers(order_id)).raise_for_status()
