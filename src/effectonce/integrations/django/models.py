"""The model of the admin page. It has no table: records are read through the store, wherever that is."""

from __future__ import annotations

from django.db import models


class InDoubtRecord(models.Model):
    """A record that waits for an operator. Its permissions, ``view`` and ``resolve``, are what this model is for."""

    id = models.TextField(primary_key=True)  # scope and key: see `admin.encode_id`

    class Meta:
        app_label = "effectonce"
        managed = False
        default_permissions = ("view", "resolve")
        verbose_name = "record in doubt"
        verbose_name_plural = "records in doubt"

    def __str__(self) -> str:
        return str(self.id)
