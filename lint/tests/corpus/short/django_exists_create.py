# ruff: noqa
# expect file: EO101
from celery import shared_task
from .models import Payment
@shared_task
def record(event_id, amount):
    if Payment.objects.filter(event_id=event_id).exists():
        return
    Payment.objects.create(order=event_id, amount=amount)
