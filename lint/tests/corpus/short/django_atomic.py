# ruff: noqa
# expect file: clean
from django.db import transaction, IntegrityError
from celery import shared_task
from .models import ProcessedEvent, Wallet
from django.db.models import F
@shared_task
def credit(event_id, user_id, amount):
    try:
        with transaction.atomic():
            ProcessedEvent.objects.create(event_id=event_id)
            Wallet.objects.filter(user_id=user_id).update(balance=F("balance") + amount)
    except IntegrityError:
        return
