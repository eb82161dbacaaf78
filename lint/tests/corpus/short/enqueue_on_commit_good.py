# ruff: noqa
# expect file: clean
from celery import shared_task
from django.db import transaction

from shop.models import Order

from .mails import send_receipt


@shared_task
def paid(order_id):
    with transaction.atomic():
        Order.objects.filter(pk=order_id).update(status="paid")
        transaction.on_commit(lambda: send_receipt.delay(order_id))
