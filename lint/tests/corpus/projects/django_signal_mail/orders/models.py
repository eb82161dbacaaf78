# ruff: noqa
from django.db import models

class Order(models.Model):
    reference = models.CharField(max_length=40)
    customer_email = models.EmailField()
    paid = models.BooleanField(default=False)
