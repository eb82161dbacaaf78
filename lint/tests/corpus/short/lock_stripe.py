# ruff: noqa
# expect file: clean
from celery import shared_task
from django.db import transaction
import stripe
from .models import Order
@shared_task
def pay(order_id):
    with transaction.atomic():
        order = Order.objects.select_for_update().get(id=order_id)
        if order.status == "paid":
            return
        ch = stripe.Charge.create(amount=order.total, currency="eur", idempotency_key=f"order-{order.id}")
        order.charge_id = ch.id
        order.status = "paid"
        order.save()
