"""The app: `migrations` create the tables, `checks` find settings that break the promise, `admin` resolves doubts."""

from __future__ import annotations

from django.apps import AppConfig
from django.core import checks as django_checks


class EffectOnceConfig(AppConfig):
    """Registers the system checks. Migrations, the admin page and the command are found by Django itself."""

    name = "effectonce.integrations.django"
    label = "effectonce"
    verbose_name = "effectonce"
    default_auto_field = "django.db.models.BigAutoField"

    def ready(self) -> None:
        from . import checks

        django_checks.register(checks.check_settings)
        django_checks.register(checks.check_views, django_checks.Tags.urls)
        django_checks.register(checks.check_store_in_production, django_checks.Tags.security, deploy=True)
        django_checks.register(checks.check_tables, django_checks.Tags.database)
