# ruff: noqa
# expect file: EO101, EO103
from celery import shared_task
from django.core.mail import send_mail

from shop.models import Order


class Receipts:
    def send(self, order_id):
        order = Order.objects.get(pk=order_id)
        if order.receipt_sent:
            return
        send_mail("Receipt", "thanks", "a@example.org", [order.email])
        order.receipt_sent = True
        order.save()


@shared_task(acks_late=True)
def receipt(order_id):
    Receipts().send(order_id)
