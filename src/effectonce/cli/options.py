"""Options and arguments that several commands share, and helpers to read them and to open the store that they name."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Annotated, Any

import typer
from msgspec import json

from effectonce.errors import ConfigurationError, show
from effectonce.store import Store, connect, require_existing

from . import settings

StoreUrl = Annotated[
    str | None,
    typer.Option(
        "--store",
        "-s",
        metavar="URL",
        help="The store: sqlite:///shop.db, redis://…, postgresql://…  [else: EFFECTONCE_STORE, [tool.effectonce]]",
    ),
]
BrokerUrl = Annotated[
    str | None,
    typer.Option(
        "--broker",
        "-b",
        metavar="URL",
        help="The broker: amqp://…, kafka://…, redis://…  [else: EFFECTONCE_BROKER, [tool.effectonce]]",
    ),
]
#: The same as an argument, for commands that take nothing else.
Url = Annotated[str | None, typer.Argument(metavar="URL", help="The store, as with --store.")]
WorkerName = Annotated[str, typer.Argument(metavar="MODULE:WORKER", help="The worker, as in shop.worker:worker.")]
Limit = Annotated[int, typer.Option("--limit", "-n", min=1, max=1000, help="How many at most.")]
OptionalLimit = Annotated[int | None, typer.Option("--limit", "-n", min=1, help="How many at most, the oldest first.")]
Cursor = Annotated[str | None, typer.Option(help="Continue after a page: its last line has the cursor.")]
Table = Annotated[str | None, typer.Option(help="The outbox, if it is not the one that `migrate` made.")]
Listen = Annotated[
    str | None,
    typer.Option(
        metavar="ADDRESS", help="Serve /metrics, /healthz and /readyz here: 127.0.0.1:9464, or :9464 for the same."
    ),
]
OnlyInDoubt = Annotated[bool, typer.Option("--in-doubt", help="Only those that wait for an operator.")]
Retention = Annotated[str, typer.Option(help="How long the record is kept from now on.")]
Abandon = Annotated[bool, typer.Option("--abandon", help="Give it up: it counts as failed.")]
Result = Annotated[str | None, typer.Option(metavar="JSON", help="With --done: its result.")]
Json = Annotated[bool, typer.Option("--json", help="Print JSON, for programs.")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Only show what would be done.")]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask for confirmation.")]
AuditFile = Annotated[
    str | None,
    typer.Option(metavar="FILE", help="Log who did what to this file.  [else: EFFECTONCE_AUDIT, [tool.effectonce]]"),
]

MIGRATE_HINT = "make it with: effectonce migrate"


def command_group(help: str) -> typer.Typer:
    """Make a command that has subcommands."""
    return typer.Typer(help=help, no_args_is_help=True, add_completion=False, rich_markup_mode=None)


@contextmanager
def open_store(*urls: str | None, new: bool = False) -> Iterator[Store]:
    """Open the store at the URL in ``urls``, of which one may be set, else the one in the settings. Close it
    afterwards.

    A store that does not exist yet is created only with ``new``; otherwise it is an error.
    """
    named_urls = [url for url in urls if url is not None]
    if len(named_urls) > 1:
        raise ConfigurationError("the store is named twice: give its URL or --store, not both")
    with connect(settings.require_url("store", *named_urls), sweep_every=None) as store:
        if not new:
            require_existing(store.runtime.backend, MIGRATE_HINT)
        yield store


def require_one(choices: Mapping[Any, bool], how: str) -> Any:
    """Return the choice that the operator made. Raises `ConfigurationError` for none or several; ``how`` names them."""
    chosen = [choice for choice, is_chosen in choices.items() if is_chosen]
    if len(chosen) != 1:
        raise ConfigurationError(f"give exactly one of: {how}")
    return chosen[0]


def parse_json(text: str, option: str) -> Any:
    """Decode an option's value as JSON. The error names the option."""
    try:
        return json.decode(text)
    except ValueError as error:
        raise ConfigurationError(f"{option} takes JSON, and {show(text)!r} is not JSON: {error}") from error
