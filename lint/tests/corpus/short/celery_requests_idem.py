# ruff: noqa
# expect file: clean
import requests
from celery import shared_task
@shared_task(bind=True, max_retries=5)
def charge(self, payment_id, amount):
    try:
        resp = requests.post("https://api.gateway.com/charges", json={"amount": amount}, headers={"Idempotency-Key": payment_id})
        resp.raise_for_status()
    except requests.RequestException as e:
        raise self.retry(exc=e, countdown=2 ** self.request.retries)
