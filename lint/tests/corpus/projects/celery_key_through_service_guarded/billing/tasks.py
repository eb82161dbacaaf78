# ruff: noqa
# expect file: clean
from celery import shared_task
from django.conf import settings
from .gateway import Gateway

@shared_task(acks_late=True, autoretry_for=(ConnectionError,))
def charge(order_id, customer, cents):
    Gateway(settings.STRIPE).charge(customer=customer, cents=cents, key=f"charge-{order_id}")
