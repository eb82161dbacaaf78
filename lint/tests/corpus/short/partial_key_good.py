# ruff: noqa
# expect file: clean
from functools import partial

import requests
from celery import shared_task


def post(path, body, key):
    requests.post(f"https://pay.example{path}", json=body, headers={"Idempotency-Key": key}, timeout=5)


transfer = partial(post, "/transfers")


@shared_task
def pay(transfer_id, cents):
    transfer({"cents": cents}, key=transfer_id)
