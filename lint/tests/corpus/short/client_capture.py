# ruff: noqa
# expect file: P11
"""Order service."""
import logging
from typing import Any
from celery import Celery
from pydantic import BaseModel
import httpx
logger = logging.getLogger(__name__)
celery_app = Celery(__name__)
celery_app.config_from_object("settings")
class PaymentClient:
    BASE = "https://payments.internal"
    def __init__(self, timeout: float = 5.0) -> None:
        self._client = httpx.Client(base_url=self.BASE, timeout=timeout)
    def capture(self, order_id: str, cents: int) -> dict[str, Any]:
        response = self._client.post("/captures", json={"order": order_id, "amount": cents})
        response.raise_for_status()
        return response.json()
@celery_app.task(name="orders.capture", bind=True, max_retries=5, acks_late=True)
def capture_payment(self, order_id: str, cents: int) -> None:
    client = PaymentClient()
    try:
        client.capture(order_id, cents)
    except httpx.HTTPError as exc:
        logger.warning("capture failed")
        raise self.retry(exc=exc, countdown=60)
