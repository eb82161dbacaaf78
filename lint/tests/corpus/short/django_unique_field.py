# ruff: noqa
# expect file: clean
from celery import shared_task
from django.db import models
class Payment(models.Model):
    event_id = models.CharField(max_length=64, unique=True)
    amount = models.IntegerField()
@shared_task
def record(event_id, amount):
    if Payment.objects.filter(event_id=event_id).exists():
        return
    Payment.objects.create(event_id=event_id, amount=amount)
