"""`effectonce check`: whether a store can be reached, and can keep its promise."""

from __future__ import annotations

import sys

import typer

from effectonce.display.redaction import error_line, redact
from effectonce.errors import EffectOnceError
from effectonce.store import Store, require_existing

from . import options
from .output import report


def check(url: options.StoreArgument = None, store_url: options.StoreUrl = None, as_json: options.Json = False) -> None:
    """Connect to the store, and report what would break its promise. Exit code 1 if something does.

    `effectonce doctor` checks more: it also looks at what has piled up.
    """
    with options.open_store(options.either(url, store_url), new=True) as store:
        shown = repr(store.runtime.backend)
        try:
            check_store(store)
        except EffectOnceError as error:
            if as_json:
                report(True, "", store=shown, ok=False, code=error.code, error=redact(str(error), ()))
            else:
                print(error_line(error), file=sys.stderr)
            raise typer.Exit(1) from None
    report(as_json, f"{shown} can keep its promise", store=shown, ok=True)


def check_store(store: Store) -> None:
    """Raise what keeps the store from its promise."""
    require_existing(store.runtime.backend, options.MIGRATE_HINT)
    store.check()
