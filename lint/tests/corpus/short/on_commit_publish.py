# ruff: noqa
# expect file: EO401
import json

import pika
from celery import shared_task
from django.db import transaction

from .models import Order, ProcessedMessage

channel = pika.BlockingConnection().channel()


@shared_task
def pay(message_id, order_id):
    with transaction.atomic():
        ProcessedMessage.objects.create(message_id=message_id)
        Order.objects.filter(pk=order_id).update(status="paid")
        transaction.on_commit(lambda: channel.basic_publish("events", "paid", json.dumps({"id": order_id})))
