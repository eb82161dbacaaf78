# ruff: noqa
from django.db.models.signals import post_save
from django.dispatch import receiver
from elasticsearch import Elasticsearch
from .models import Doc
es = Elasticsearch()
@receiver(post_save, sender=Doc)
def index(sender, instance, **kw):
    es.index(index="docs", id=instance.pk, document={"title": instance.title})
