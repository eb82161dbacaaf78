# ruff: noqa
# expect file: clean
from celery import shared_task
from django.db.models import Sum

from shop.models import Order, Line


@shared_task
def totals(order_id):
    total = Line.objects.filter(order_id=order_id).aggregate(total=Sum("cents"))["total"]
    Order.objects.filter(pk=order_id).update(total=total)
