# ruff: noqa
# expect file: clean
from celery import shared_task
from .models import Doc
@shared_task
def rename(pk, title):
    d = Doc.objects.get(pk=pk)
    d.title = title
    d.save()
