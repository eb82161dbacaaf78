# ruff: noqa
# expect file: P11
from celery import shared_task

from .models import Product


@shared_task
def reserve(order_id, sku, quantity):
    product = Product.objects.get(sku=sku)
    product.take(quantity)
