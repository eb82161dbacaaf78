# ruff: noqa
# expect file: clean
from celery import shared_task
from django.db import transaction
from .models import Order, ProcessedMessage
from .notify import notify_customer
@shared_task
def on_order(message_id, order_id):
    with transaction.atomic():
        _, created = ProcessedMessage.objects.get_or_create(message_id=message_id)
        if not created:
            return
        Order.objects.filter(pk=order_id).update(state="done")
        transaction.on_commit(lambda: notify_customer.delay(order_id))
