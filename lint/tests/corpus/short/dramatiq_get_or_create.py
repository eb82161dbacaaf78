# ruff: noqa
# expect file: clean
import dramatiq
from django.db import transaction
from shop.models import Order, Payment
@dramatiq.actor
def settle(order_id, payment_id):
    with transaction.atomic():
        payment, created = Payment.objects.get_or_create(payment_id=payment_id, defaults={"order_id": order_id})
        if created:
            order = Order.objects.select_for_update().get(id=order_id)
            order.paid_total += payment.amount
            order.save()
