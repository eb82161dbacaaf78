# ruff: noqa
from django.db import models
class StockQuerySet(models.QuerySet):
    def set_level(self, sku, level):
        return self.filter(sku=sku).update(level=level)
class Stock(models.Model):
    sku = models.CharField(max_length=9)
    level = models.IntegerField()
    objects = models.Manager.from_queryset(StockQuerySet)()
