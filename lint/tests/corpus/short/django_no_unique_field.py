# ruff: noqa
# expect file: P11
from celery import shared_task
from django.db import models
class Payment(models.Model):
    order_id = models.CharField(max_length=64)
    amount = models.IntegerField()
@shared_task
def record(order_id, amount):
    Payment.objects.create(order_id=order_id, amount=amount)
