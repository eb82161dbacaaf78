"""`effectonce migrate` and `effectonce check`."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from effectonce.errors import ConfigurationError, EffectOnceError
from effectonce.store import Store, require_existing

from . import options
from .output import report
from .terminal import Progress, error_line, redact


def migrate(
    url: options.Url = None,
    store_url: options.StoreUrl = None,
    sql: Annotated[bool, typer.Option("--sql", help="Only print the schema, for your own migrations.")] = False,
    dry_run: options.DryRun = False,
    as_json: options.Json = False,
) -> None:
    """Create or upgrade the store's schema. Safe to run twice, and from two machines at once."""
    with options.open_store(url, store_url, new=True) as store:
        shown = repr(store.runtime.backend)
        if sql:
            _print_schema(store, shown, as_json)
            return
        if dry_run:
            reason = _migration_reason(store)
            text = f"{shown} is ready as it is" if reason is None else f"would migrate {shown}: {reason}"
            report(as_json, text, store=shown, migrated=False, needed=reason is not None, dry_run=True)
            return
        with Progress(f"migrating {shown}"):
            store.migrate()
    report(as_json, f"{shown} is ready", store=shown, migrated=True)


def check(url: options.Url = None, store_url: options.StoreUrl = None, as_json: options.Json = False) -> None:
    """Connect, and report what would keep the store from its promise. Exit code 1 where there is something.

    `effectonce doctor` checks more: it also looks at what has piled up.
    """
    with options.open_store(url, store_url, new=True) as store:
        shown = repr(store.runtime.backend)
        try:
            _check(store)
        except EffectOnceError as error:
            if as_json:
                report(True, "", store=shown, ok=False, code=error.code, error=redact(str(error), ()))
            else:
                print(error_line(error), file=sys.stderr)
            raise typer.Exit(1) from None
    report(as_json, f"{shown} can keep its promise", store=shown, ok=True)


def _check(store: Store) -> None:
    require_existing(store.runtime.backend, options.MIGRATE_HINT)
    store.check()


def _migration_reason(store: Store) -> str | None:
    """Return why the schema cannot be used; None where it can."""
    try:
        _check(store)
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
