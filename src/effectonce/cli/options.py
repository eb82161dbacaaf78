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
        help="The store, as in sqlite:///shop.db or postgresql://shop@db/shop. Default: EFFECTONCE_STORE, else "
        "pyproject.toml.",
    ),
]
StoreArgument = Annotated[str | None, typer.Argument(metavar="URL", help="The store, like --store.")]
BrokerUrl = Annotated[
    str | None,
    typer.Option(
        "--broker",
        "-b",
        metavar="URL",
        help="The broker, as in amqp://mq or kafka://mq:9092. Default: EFFECTONCE_BROKER, else pyproject.toml.",
    ),
]
WorkerName = Annotated[str, typer.Argument(metavar="MODULE:WORKER", help="The worker, as in shop.worker:worker.")]
Queues = Annotated[
    list[str] | None,
    typer.Option("--queue", metavar="QUEUE", help="A queue of --broker whose dead letters to look at. Repeatable."),
]
Group = Annotated[str, typer.Option("--group", metavar="NAME", help="The name of the worker that reads --queue.")]
Limit = Annotated[int, typer.Option("--limit", "-n", metavar="N", min=1, max=1000, help="List this many at most.")]
WorkLimit = Annotated[
    int | None, typer.Option("--limit", "-n", metavar="N", min=1, help="Stop after this many, the oldest first.")
]
Cursor = Annotated[
    str | None,
    typer.Option("--cursor", metavar="CURSOR", help="Continue after this page: its last line shows the cursor."),
]
Table = Annotated[
    str | None,
    typer.Option("--table", metavar="TABLE", help="The outbox's table, if it is not the one that migrate makes."),
]
OutboxUrl = Annotated[
    str | None, typer.Option("--outbox", metavar="URL", help="The database of the outbox, if it is not --store.")
]
InboxUrl = Annotated[
    str | None, typer.Option("--inbox", metavar="URL", help="The database of the inbox, if it is not --store.")
]
InboxTable = Annotated[
    str | None,
    typer.Option("--inbox-table", metavar="TABLE", help="The inbox's table, if it is not the one that migrate makes."),
]
Listen = Annotated[
    str | None,
    typer.Option(
        "--listen",
        metavar="ADDRESS",
        help="Serve /metrics, /healthz and /readyz here, as in 127.0.0.1:9464, or :9464 for the same.",
    ),
]
OnlyInDoubt = Annotated[bool, typer.Option("--in-doubt", help="List only those that wait for an operator.")]
OnlyScope = Annotated[str | None, typer.Option("--scope", metavar="SCOPE", help="List only those of this scope.")]
OlderThan = Annotated[
    str | None,
    typer.Option("--older-than", metavar="SPAN", help="List only what has not changed for this long, as in 1h."),
]
NewerThan = Annotated[
    str | None,
    typer.Option("--newer-than", metavar="SPAN", help="List only what has changed within this span, as in 10m."),
]
Retention = Annotated[
    str, typer.Option("--retention", metavar="SPAN", help="Keep the record for this long from now on.")
]
Retry = Annotated[bool, typer.Option("--retry", help="It did not happen: run it again, under a new key.")]
Abandon = Annotated[bool, typer.Option("--abandon", help="Give it up: it counts as failed.")]
Result = Annotated[str | None, typer.Option("--result", metavar="JSON", help="With --done: its result.")]
Json = Annotated[bool, typer.Option("--json", help="Print JSON, for programs.")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Only show what would be done.")]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask for confirmation.")]
AuditFile = Annotated[
    str | None,
    typer.Option(
        "--audit",
        metavar="FILE",
        help="Log who did what to this file. Default: EFFECTONCE_AUDIT, else pyproject.toml.",
    ),
]

MIGRATE_HINT = "create it with: effectonce migrate"


@contextmanager
def open_store(url: str | None, *, new: bool = False) -> Iterator[Store]:
    """Open the store at ``url``, else the one in the settings, and close it afterwards.

    A store that does not exist yet is created only with ``new``; otherwise it is an error.
    """
    with connect(settings.require_url("store", url), sweep_every=None) as store:
        if not new:
            require_existing(store.runtime.backend, MIGRATE_HINT)
        yield store


def either(argument: str | None, option: str | None) -> str | None:
    """Return the store of a command that takes it as an argument, too. Raises `ConfigurationError` for both."""
    if argument is not None and option is not None:
        raise ConfigurationError("the store was named twice: give URL or --store URL")
    return argument if option is None else option


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
