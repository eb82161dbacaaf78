"""`effectonce migrate` and `effectonce check`."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from effectonce.errors import ConfigurationError, EffectOnceError
from effectonce.store import Store, require_there

from .options import MAKE_STORE, DryRun, Json, StoreUrl, Url, opened, report
from .terminal import bar, error_line, redacted


def migrate(
    url: Url = None,
    store: StoreUrl = None,
    sql: Annotated[bool, typer.Option("--sql", help="Only print the schema, for your own migrations.")] = False,
    dry_run: DryRun = False,
    as_json: Json = False,
) -> None:
    """Create or upgrade the store's schema. Safe to run twice, and from two machines at once."""
    with opened(url, store, new=True) as found:
        shown = repr(found.runtime.backend)
        if sql:
            _print_schema(found, shown, as_json)
            return
        if dry_run:
            reason = _refused(found)
            text = f"{shown} is ready as it is" if reason is None else f"would migrate {shown}: {reason}"
            report(as_json, text, store=shown, migrated=False, needed=reason is not None, dry_run=True)
            return
        with bar(f"migrating {shown}"):
            found.migrate()
    report(as_json, f"{shown} is ready", store=shown, migrated=True)


def check(url: Url = None, store: StoreUrl = None, as_json: Json = False) -> None:
    """Connect, and say what would keep the store from its promise. Exit code 1 where there is something.

    `effectonce doctor` looks further: at what has piled up, too.
    """
    with opened(url, store, new=True) as found:
        shown = repr(found.runtime.backend)
        try:
            require_there(found.runtime.backend, MAKE_STORE)
            found.check()
        except EffectOnceError as error:
            if as_json:
                report(True, "", store=shown, ok=False, code=error.code, error=redacted(str(error), ()))
            else:
                print(error_line(error), file=sys.stderr)
            raise typer.Exit(1) from None
    report(as_json, f"{shown} can keep its promise", store=shown, ok=True)


def _refused(store: Store) -> str | None:
    """Why the schema is not usable; None where it is."""
    try:
        require_there(store.runtime.backend, MAKE_STORE)
        store.check()
    except ConfigurationError as error:
        return str(error) if error.code.startswith("schema") else None
    return None


def _print_schema(store: Store, shown: str, as_json: bool) -> None:
    """The schema on stdout, and nothing else there: it is meant to be piped."""
    schema = store.schema_sql()
    if as_json:
        report(True, "", store=shown, sql=schema)
    elif schema:
        print(schema.rstrip())
    else:
        raise ConfigurationError(
            f"{shown} has no SQL schema to print; `effectonce migrate` without --sql prepares it, where there is "
            "anything to prepare"
        )
