# ruff: noqa
# expect file: EO304
import uuid
import backoff, requests
@backoff.on_exception(backoff.expo, requests.RequestException, max_tries=5)
def charge(amount):
    idempotency_key = str(uuid.uuid4())
    return requests.post("https://api.pay.example/charges", json={"amount": amount}, headers={"Idempotency-Key": idempotency_key})
