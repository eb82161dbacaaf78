# ruff: noqa
# expect file: clean
from celery import shared_task
from django.db import IntegrityError, models, transaction


class Vote(models.Model):
    poll = models.IntegerField()
    voter = models.IntegerField()

    class Meta:
        constraints = [models.UniqueConstraint(fields=["poll", "voter"], name="one_vote")]


@shared_task(acks_late=True)
def vote(poll, voter):
    try:
        with transaction.atomic():
            Vote.objects.create(poll=poll, voter=voter)
    except IntegrityError:
        return
