# ruff: noqa
# expect file: P11, EO303
from celery import shared_task as job

from . import payments as pay


@job(acks_late=True)
def renew(customer, cents):
    pay.charge_card(customer, cents)
