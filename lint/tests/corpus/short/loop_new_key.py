# ruff: noqa
# expect file: EO304
import secrets
import time

import requests


def transfer(body):
    for attempt in range(5):
        try:
            key = secrets.token_hex(16)
            r = requests.post("https://bank.example/transfers", json=body, headers={"Idempotency-Key": key}, timeout=5)
            r.raise_for_status()
            return r.json()
        except requests.RequestException:
            time.sleep(2**attempt)
    raise RuntimeError("gave up")
