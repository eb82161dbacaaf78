# ruff: noqa
# expect file: clean
from billing.celery_app import celery_app
from billing.gateways import StripeGateway


@celery_app.task(name="billing.bill_customer", acks_late=True)
def bill_customer(invoice_id: str, customer: str, cents: int) -> None:
    StripeGateway("sk").charge(customer, cents, key=f"invoice-{invoice_id}")
