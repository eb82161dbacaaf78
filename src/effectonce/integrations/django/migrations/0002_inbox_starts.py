"""The table of started attempts of the inbox. The tables of records stay at version 1."""

from django.db import migrations

from effectonce.integrations.django.schema_operation import CreateTables


class Migration(migrations.Migration):
    dependencies = (("effectonce", "0001_initial"),)
    operations = (CreateTables(version=1),)
