# ruff: noqa
from django.db import models
class Order(models.Model):
    receipt_sent = models.BooleanField(default=False)
