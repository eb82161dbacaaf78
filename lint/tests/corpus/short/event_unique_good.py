# ruff: noqa
# expect file: clean
from celery import shared_task
from django.db import models, transaction
from django.db.models import F


class Wallet(models.Model):
    coins = models.IntegerField(default=0)


class Handled(models.Model):
    event_id = models.CharField(max_length=40, unique=True)

    class Meta:
        abstract = True


class HandledEvent(Handled):
    at = models.DateTimeField(auto_now_add=True)


@shared_task(acks_late=True)
def won(event_id, wallet, coins):
    with transaction.atomic():
        if HandledEvent.objects.filter(event_id=event_id).exists():
            return
        HandledEvent.objects.create(event_id=event_id)
        Wallet.objects.filter(pk=wallet).update(coins=F("coins") + coins)
