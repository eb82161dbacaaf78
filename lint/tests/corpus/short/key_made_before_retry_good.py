# ruff: noqa
# expect file: clean
import requests
from celery import shared_task
from tenacity import retry, stop_after_attempt


@retry(stop=stop_after_attempt(4))
def post(body, key):
    requests.post("https://pay.example/v1/transfers", json=body, headers={"Idempotency-Key": key}, timeout=3).raise_for_status()


@shared_task
def pay(transfer_id, cents):
    post({"cents": cents}, f"transfer-{transfer_id}")
