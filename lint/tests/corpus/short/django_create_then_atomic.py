# ruff: noqa
# expect file: EO102
from django.db import transaction, IntegrityError
from celery import shared_task
from .models import ProcessedEvent, Wallet
from django.db.models import F
@shared_task
def credit(event_id, user_id, amount):
    try:
        ProcessedEvent.objects.create(event_id=event_id)
    except IntegrityError:
        return
    with transaction.atomic():
        Wallet.objects.select_for_update().filter(user_id=user_id).update(balance=F("balance") + amount)
