# ruff: noqa
# expect file: EO301
import time

import requests
from celery import shared_task


@shared_task
def pay(invoice, cents):
    headers = {"Idempotency-Key": f"{invoice}-{int(time.time())}"}
    requests.post("https://pay.example/v1/transfers", json={"cents": cents}, headers=headers, timeout=5)
