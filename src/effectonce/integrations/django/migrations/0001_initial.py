"""The tables of version 1, and the permissions of the admin page."""

from django.db import migrations, models

from effectonce.integrations.django.schema_operation import CreateTables


class Migration(migrations.Migration):
    initial = True
    dependencies = ()
    operations = (
        CreateTables(version=1),
        migrations.CreateModel(
            name="InDoubtRecord",
            fields=[("id", models.TextField(primary_key=True, serialize=False))],
            options={
                "verbose_name": "record in doubt",
                "verbose_name_plural": "records in doubt",
                "managed": False,
                "default_permissions": ("view", "resolve"),
            },
        ),
    )
