# ruff: noqa
# expect file: clean
from celery import shared_task
from django.core.mail import send_mail
from django.db import transaction
from .models import Order
@shared_task
def receipt(order_id):
    with transaction.atomic():
        changed = Order.objects.filter(pk=order_id, receipt_sent=False).update(receipt_sent=True)
    if not changed:
        return
    send_mail("R", "…", None, ["a@b.c"])
