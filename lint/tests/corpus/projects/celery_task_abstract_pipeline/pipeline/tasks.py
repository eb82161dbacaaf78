# ruff: noqa
# expect file: P11
from celery import shared_task
from .steps import Log, Pipeline, ReserveStock
order_pipeline = Pipeline(Log(), ReserveStock())
@shared_task(acks_late=True)
def process_order(order):
    order_pipeline.run(order)
