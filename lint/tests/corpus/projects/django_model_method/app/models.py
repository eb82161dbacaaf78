# ruff: noqa
from django.db import models


class Product(models.Model):
    sku = models.CharField(max_length=20, unique=True)
    stock = models.IntegerField(default=0)

    def take(self, n: int) -> None:
        self.stock -= n
        self.save(update_fields=["stock"])
