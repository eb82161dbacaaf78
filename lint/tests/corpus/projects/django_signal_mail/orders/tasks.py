# ruff: noqa
# expect file: P11
from celery import shared_task
from .models import Order

@shared_task
def mark_paid(order_id):
    order = Order.objects.get(pk=order_id)
    order.paid = True
    order.save()
