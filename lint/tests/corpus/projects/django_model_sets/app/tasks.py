# ruff: noqa
# expect file: clean
from celery import shared_task

from app.models import Order


@shared_task(bind=True, acks_late=True)
def order_paid(self, order_id, at):
    order = Order.objects.get(pk=order_id)
    order.mark_paid(at)
