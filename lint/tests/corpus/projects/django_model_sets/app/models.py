# ruff: noqa
from django.db import models


class Order(models.Model):
    status = models.CharField(max_length=20)
    paid_at = models.DateTimeField(null=True)

    def mark_paid(self, at):
        self.status = "paid"
        self.paid_at = at
        self.save(update_fields=["status", "paid_at"])
