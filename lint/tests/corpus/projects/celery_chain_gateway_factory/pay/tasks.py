# ruff: noqa
# expect file: P11, EO303
from celery import shared_task
from pay.gateways import get_gateway

@shared_task(acks_late=True, reject_on_worker_lost=True)
def charge(order):
    gateway = get_gateway(order["gateway"])
    gateway.charge(order["customer"], order["cents"])
