# ruff: noqa
from django.db import models
class Doc(models.Model):
    title = models.TextField()
    indexed = models.BooleanField(default=False)
