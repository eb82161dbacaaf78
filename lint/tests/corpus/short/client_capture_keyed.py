# ruff: noqa
# expect file: clean
from celery import Celery
import httpx
celery_app = Celery(__name__)
class PaymentClient:
    def __init__(self) -> None:
        self._client = httpx.Client(base_url="https://x")
    def capture(self, order_id, cents, *, idempotency_key):
        return self._client.post("/captures", json={"order": order_id, "amount": cents}, headers={"Idempotency-Key": idempotency_key})
@celery_app.task(bind=True)
def capture_payment(self, order_id: str, cents: int) -> None:
    PaymentClient().capture(order_id, cents, idempotency_key=f"capture:{order_id}")
