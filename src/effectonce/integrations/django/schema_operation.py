"""The operation of our migrations, which creates the tables of a store, its inbox and its outbox."""

from __future__ import annotations

from typing import Any

from django.db import router
from django.db.migrations.operations.base import Operation
from django.db.migrations.operations.special import RunSQL

from effectonce.core.sql_files import store_schema

DIALECTS = ("sqlite", "postgresql", "mysql")


class CreateTables(Operation):
    """Create or upgrade the tables, as `effectonce migrate` does, in the dialect of the database that is migrated.

    Every statement may run again: after `effectonce migrate`, and in the migration of each later change of the schema,
    which is this operation once more. ``version`` is that of the records, which a change of the inbox or the outbox
    leaves as it is. A database that no store supports is left alone.

    Reversed, it drops nothing: the records say what was done, and without them it would be done again.
    """

    reversible = True
    reduces_to_sql = True
    atomic = False  # MySQL creates no tables in a transaction; elsewhere the migration as a whole is one

    def __init__(self, version: int, prefix: str = "effectonce") -> None:
        self.version = version
        self.prefix = prefix

    def state_forwards(self, app_label: str, state: Any) -> None:
        """The tables have no models."""

    def database_forwards(self, app_label: str, schema_editor: Any, from_state: Any, to_state: Any) -> None:
        connection = schema_editor.connection
        if connection.vendor in DIALECTS and router.allow_migrate(connection.alias, app_label):
            create = RunSQL(store_schema(connection.vendor, self.prefix))
            create.database_forwards(app_label, schema_editor, from_state, to_state)

    def database_backwards(self, app_label: str, schema_editor: Any, from_state: Any, to_state: Any) -> None:
        """Keep the tables."""

    def describe(self) -> str:
        return f"Create the tables of effectonce, version {self.version}"

    @property
    def migration_name_fragment(self) -> str:
        return f"tables_{self.version}"
