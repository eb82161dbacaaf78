# ruff: noqa
# expect file: EO304
import uuid

import requests
from tenacity import Retrying, stop_after_attempt


def transfer(body):
    for attempt in Retrying(stop=stop_after_attempt(3)):
        with attempt:
            headers = {"Idempotency-Key": uuid.uuid4().hex}
            requests.post("https://bank.example/transfers", json=body, headers=headers, timeout=5).raise_for_status()
