# ruff: noqa
# expect file: clean
from celery import shared_task
from django.db import models


class Vote(models.Model):
    poll = models.IntegerField()
    voter = models.IntegerField()

    class Meta:
        unique_together = [("poll", "voter")]


@shared_task(acks_late=True)
def vote(poll, voter):
    Vote.objects.create(poll=poll, voter=voter)
