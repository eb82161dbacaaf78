# ruff: noqa
# expect file: clean
from celery import shared_task
from .models import Price
@shared_task
def load(rows):
    Price.objects.bulk_create([Price(**r) for r in rows], update_conflicts=True, unique_fields=["sku"], update_fields=["value"])
