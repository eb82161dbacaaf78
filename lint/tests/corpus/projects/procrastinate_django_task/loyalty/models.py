# ruff: noqa
from django.db import models
class Member(models.Model):
    points = models.IntegerField(default=0)
