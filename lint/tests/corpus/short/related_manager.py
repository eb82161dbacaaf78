# ruff: noqa
# expect file: P11
from celery import shared_task

from shop.models import Order


@shared_task
def add_line(order_id, sku):
    order = Order.objects.get(pk=order_id)
    order.lines.create(sku=sku, quantity=1)
