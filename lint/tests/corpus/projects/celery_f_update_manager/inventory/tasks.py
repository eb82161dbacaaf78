# ruff: noqa
# expect file: P11
from celery import shared_task
from .models import Stock

@shared_task(acks_late=True)
def reserve(order):
    for line in order["lines"]:
        Stock.objects.take(line["sku"], line["quantity"])
