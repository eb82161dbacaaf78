"""`effectonce migrate`: creates or upgrades the schema of a store."""

from __future__ import annotations

from typing import Annotated

import typer

from effectonce.errors import ConfigurationError
from effectonce.store import Store

from . import options
from .check import check_store
from .output import report
from .progress import Progress


def migrate(
    url: options.StoreArgument = None,
    store_url: options.StoreUrl = None,
    sql: Annotated[bool, typer.Option("--sql", help="Only print the SQL, for your own migrations.")] = False,
    dry_run: options.DryRun = False,
    as_json: options.Json = False,
) -> None:
    """Create or upgrade the store's tables. Safe to run twice, and from two machines at once.

    Example: effectonce migrate postgresql://shop@db/shop
    """
    with options.open_store(options.either(url, store_url), new=True) as store:
        shown = repr(store.runtime.backend)
        if sql:
            _print_schema(store, shown, as_json)
            return
        if dry_run:
            reason = _why_migrate(store)
            text = f"{shown} is ready as it is" if reason is None else f"would migrate {shown}: {reason}"
            report(as_json, text, store=shown, migrated=False, needed=reason is not None, dry_run=True)
            return
        with Progress(f"migrating {shown}"):
            store.migrate()
    report(as_json, f"{shown} is ready", store=shown, migrated=True)


def _why_migrate(store: Store) -> str | None:
    """Return why the schema must be migrated; None if it can be used as it is."""
    try:
        check_store(store)
    except ConfigurationError as error:
        return str(error) if error.code.startswith("schema") else None
    return None


def _print_schema(store: Store, shown: str, as_json: bool) -> None:
    """Print the schema, and nothing else, on stdout: it is meant to be piped."""
    schema = store.schema_sql()
    if not schema and not as_json:
        raise ConfigurationError(
            f"{shown} has no SQL schema to print; `effectonce migrate` without --sql prepares it, where it needs "
            "preparation"
        )
    report(as_json, schema.rstrip(), store=shown, sql=schema)
