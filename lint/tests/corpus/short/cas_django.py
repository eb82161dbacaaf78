# ruff: noqa
# expect file: clean
from celery import shared_task
from django.core.mail import send_mail
from .models import Order
@shared_task
def confirm(order_id):
    if not Order.objects.filter(pk=order_id, confirmation_sent=False).update(confirmation_sent=True):
        return
    order = Order.objects.get(pk=order_id)
    send_mail("x", "y", "a@b.c", [order.email])
