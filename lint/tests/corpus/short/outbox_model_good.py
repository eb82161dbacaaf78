# ruff: noqa
# expect file: clean
from celery import shared_task
from django.db import transaction

from shop.models import Inbox, Order, OutboxMessage


@shared_task
def paid(event_id, order_id):
    with transaction.atomic():
        _, new = Inbox.objects.get_or_create(event_id=event_id)
        if not new:
            return
        Order.objects.filter(pk=order_id).update(status="paid")
        OutboxMessage.objects.create(topic="order.paid", payload={"order": order_id})
