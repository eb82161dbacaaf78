# ruff: noqa
# expect file: clean
from celery import shared_task
from django.db import transaction
from django.db.models import F

from shop.models import Payment, Wallet


class PaymentService:
    @transaction.atomic
    def apply(self, reference, wallet_id, cents):
        payment, created = Payment.objects.get_or_create(reference=reference, defaults={"cents": cents})
        if not created:
            return payment
        Wallet.objects.filter(pk=wallet_id).update(balance=F("balance") + cents)
        return payment


service = PaymentService()


@shared_task(acks_late=True)
def paid(reference, wallet_id, cents):
    service.apply(reference, wallet_id, cents)
