# ruff: noqa
# expect file: EO301
import uuid, requests
from celery import shared_task
@shared_task
def charge(payment_id, amount):
    headers = {"Idempotency-Key": str(uuid.uuid4())}
    requests.post("https://api.gateway.com/charges", json={"amount": amount, "id": payment_id}, headers=headers)
