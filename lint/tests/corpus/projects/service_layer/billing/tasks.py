# ruff: noqa
# expect file: P11, EO303
from celery.utils.log import get_task_logger

from billing.celery_app import celery_app
from billing.services import BillingService

logger = get_task_logger(__name__)


@celery_app.task(name="billing.bill_customer", bind=True, autoretry_for=(ConnectionError,), retry_backoff=True, max_retries=5)
def bill_customer(self, invoice_id: str, customer: str, lines: list[dict]) -> None:
    logger.info("billing %s", invoice_id)
    BillingService().bill(customer, lines)
