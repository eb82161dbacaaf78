# ruff: noqa
from django.db import models


class SentMail(models.Model):
    event_id = models.CharField(max_length=64, unique=True)
    at = models.DateTimeField(auto_now_add=True)
