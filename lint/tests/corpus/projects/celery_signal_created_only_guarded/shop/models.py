# ruff: noqa
from django.db import models
class Order(models.Model):
    status = models.CharField(max_length=10)
    email = models.EmailField()
