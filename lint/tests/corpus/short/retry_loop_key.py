# ruff: noqa
# expect file: EO304
import uuid, time, requests
from celery import shared_task
@shared_task
def pay(order_id, amount):
    for attempt in range(3):
        try:
            r = requests.post("https://pay.example/v1/charges", json={"amount": amount}, headers={"Idempotency-Key": str(uuid.uuid4())})
            r.raise_for_status()
            return
        except requests.RequestException:
            time.sleep(2 ** attempt)
