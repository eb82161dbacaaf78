# ruff: noqa
# expect file: EO304
import time, uuid
import requests
from celery import shared_task
def charge_with_retries(amount, tries=3):
    last = None
    attempt = 0
    while attempt < tries:
        attempt += 1
        try:
            return requests.post("https://pay.example/charges", json={"a": amount}, headers={"Idempotency-Key": uuid.uuid4().hex})
        except requests.ConnectionError as e:
            last = e
            time.sleep(1)
    raise last
@shared_task
def pay(amount):
    charge_with_retries(amount)
