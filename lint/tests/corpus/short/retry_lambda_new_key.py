# ruff: noqa
# expect file: EO304
import uuid

import httpx
import backoff


class Bank:
    @backoff.on_exception(backoff.expo, httpx.HTTPError, max_tries=5)
    def transfer(self, body):
        r = httpx.post("https://bank.example/transfers", json=body, headers={"Idempotency-Key": str(uuid.uuid4())})
        r.raise_for_status()
