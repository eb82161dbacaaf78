# ruff: noqa
from django.db import models
from django.db.models import F

class StockQuerySet(models.QuerySet):
    def take(self, sku, quantity):
        return self.filter(sku=sku, on_hand__gte=quantity).update(on_hand=F("on_hand") - quantity)

class Stock(models.Model):
    sku = models.CharField(max_length=40, unique=True)
    on_hand = models.IntegerField(default=0)
    objects = StockQuerySet.as_manager()
