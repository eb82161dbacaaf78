# ruff: noqa
# expect file: clean
import uuid
import backoff, requests
@backoff.on_exception(backoff.expo, requests.RequestException, max_tries=5)
def _charge(amount, idempotency_key):
    return requests.post("https://api.pay.example/charges", json={"amount": amount}, headers={"Idempotency-Key": idempotency_key})
def charge(amount):
    return _charge(amount, str(uuid.uuid4()))
