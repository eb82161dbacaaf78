# ruff: noqa
# expect file: clean
from celery import shared_task
from .models import Order
@shared_task
def mark_shipped(order_id):
    order = Order.objects.get(pk=order_id)
    order.status = "shipped"
    order.save()
