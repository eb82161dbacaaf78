# ruff: noqa
from django.db import models
class Payment(models.Model):
    user = models.ForeignKey("auth.User", on_delete=models.CASCADE)
    amount = models.IntegerField()
