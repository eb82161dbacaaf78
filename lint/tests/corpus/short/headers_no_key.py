# ruff: noqa
# expect file: P11
import httpx
from celery import shared_task
from django.conf import settings


def headers():
    return {"Authorization": f"Bearer {settings.TOKEN}"}


@shared_task
def place(order_id, lines):
    with httpx.Client(base_url=settings.ERP) as client:
        client.post("/orders", json={"lines": lines}, headers=headers()).raise_for_status()
