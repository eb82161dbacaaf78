# ruff: noqa
# expect file: clean
from celery import shared_task
from django.db import transaction

from shop.gateway import capture
from shop.models import Order


@shared_task(bind=True, max_retries=3)
def settle(self, order_id):
    with transaction.atomic():
        order = Order.objects.select_for_update().get(pk=order_id)
        if order.state == Order.SETTLED:
            return
        capture(order.reference, idempotency_key=f"settle-{order.pk}")
        order.state = Order.SETTLED
        order.save(update_fields=["state"])
