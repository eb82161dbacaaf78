"""What the commands share: options, the store they open, the audit log, interrupts, and output as text or JSON."""

from __future__ import annotations

import getpass
import os
import shlex
import signal
import socket
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from datetime import UTC, datetime
from types import FrameType
from typing import Annotated, Any

import typer
from msgspec import json

from effectonce.errors import ConfigurationError, InvalidOption, show
from effectonce.record import Record, State
from effectonce.store import Store, connect, require_existing
from effectonce.telemetry.audit_log import Audit
from effectonce.values.durations import readable

from . import settings
from .terminal import Cell, Screen, table

StoreUrl = Annotated[
    str | None,
    typer.Option(
        "--store",
        "-s",
        metavar="URL",
        show_default=False,
        help="The store: sqlite:///shop.db, redis://…, postgresql://…  [else: EFFECTONCE_STORE, [tool.effectonce]]",
    ),
]
BrokerUrl = Annotated[
    str | None,
    typer.Option(
        "--broker",
        "-b",
        metavar="URL",
        show_default=False,
        help="The broker: amqp://…, kafka://…, redis://…  [else: EFFECTONCE_BROKER, [tool.effectonce]]",
    ),
]
#: The same as an argument, for commands that take nothing else.
Url = Annotated[str | None, typer.Argument(metavar="URL", show_default=False, help="The store, as with --store.")]
Limit = Annotated[int, typer.Option("--limit", "-n", min=1, max=1000, help="How many at most.")]
Cursor = Annotated[
    str | None,
    typer.Option("--cursor", show_default=False, help="Continue after a page: its last line has the cursor."),
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON, for programs.")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Only show what would be done.")]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask for confirmation.")]
AuditFile = Annotated[
    str | None,
    typer.Option(
        "--audit",
        metavar="FILE",
        show_default=False,
        help="Log who did what to this file.  [else: EFFECTONCE_AUDIT, [tool.effectonce]]",
    ),
]

MIGRATE_HINT = "make it with: effectonce migrate"
#: The events that end the recovery of one intent or saga.
FINISHING_EVENTS = frozenset(("completed", "failed", "exhausted", "in_doubt", "released"))
MAX_COUNTED = 10_000  # a progress bar's total is counted up to here


def command_group(help: str) -> typer.Typer:
    """Make a command that has subcommands."""
    return typer.Typer(help=help, no_args_is_help=True, add_completion=False, rich_markup_mode=None)


@contextmanager
def open_store(*urls: str | None, new: bool = False) -> Iterator[Store]:
    """Open the store at the URL in ``urls``, or else the one in the settings, and close it afterwards. A store that
    does not exist yet is created only with ``new``."""
    given = [url for url in urls if url is not None]
    if len(given) > 1:
        raise ConfigurationError("the store is named twice: give its URL or --store, not both")
    with connect(settings.url("store", *given), sweep_every=None) as store:
        if not new:
            require_existing(store.runtime.backend, MIGRATE_HINT)
        yield store


def list_page(
    store: Store, lists: Sequence[tuple[str, State | None]], limit: int, cursor: str | None
) -> tuple[list[Record], str | None]:
    """Return a page over several lists, one after the other, and the cursor of the next page: the list's number, and
    the place in it. A list is a scope and a state; None as the state: its unfinished records."""
    number, _, place = (cursor or "0:").partition(":")
    if not (number.isascii() and number.isdecimal() and len(number) < 9):
        raise InvalidOption(f"--cursor {show(cursor)!r} is not the cursor of a page: copy it from the page's last line")
    records: list[Record] = []
    for index in range(int(number), len(lists)):
        scope, state = lists[index]
        while True:
            page = store.list(
                scope=scope, state=state, unfinished=state is None, limit=limit - len(records), cursor=place or None
            )
            records, place = records + page.records, page.cursor or ""
            if len(records) >= limit and (place or index + 1 < len(lists)):
                return records, f"{index}:{place}" if place else f"{index + 1}:"
            if not place:
                break
    return records, None


def require_one(words: Mapping[Any, bool], how: str) -> Any:
    """Return the one of ``words`` that the command line gave. Raises `ConfigurationError` for none or several."""
    given = [word for word, is_given in words.items() if is_given]
    if len(given) != 1:
        raise ConfigurationError(f"give exactly one of: {how}")
    return given[0]


# -- actions


def operator() -> str:
    """Return the name of the user at the terminal, for the audit log."""
    try:
        user = getpass.getuser()
    except (KeyError, OSError):  # a user without a name, as in some containers
        user = "unknown"
    return f"{user}@{socket.gethostname()}"


def audit_action(
    file: str | None, action: str, target: str, detail: str = "", *, place: object = ""
) -> AbstractContextManager[None]:
    """Write to the audit log who does this, before and after. ``place``: the backend that holds the target."""
    where = repr(place) if place else ""
    return Audit(settings.setting("audit", file)).doing(action, target, by=operator(), detail=detail, place=where)


class GracefulInterrupt:
    """Turns Ctrl-C into a request to stop after the current step. A second Ctrl-C interrupts at once."""

    requested = False

    def __enter__(self) -> GracefulInterrupt:
        self._before = signal.signal(signal.SIGINT, self._handle)
        return self

    def __exit__(self, *_: object) -> None:
        signal.signal(signal.SIGINT, self._before)

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if self.requested:
            raise KeyboardInterrupt
        self.requested = True
        # Not with `print`: the signal may have interrupted a `print`, which cannot be entered twice.
        os.write(2, b"\nstopping after this step (Ctrl-C again: at once)\n")

    def is_requested(self) -> bool:
        return self.requested

    def raise_if_requested(self) -> None:
        """End the command as Ctrl-C does, where it was pressed."""
        if self.requested:
            raise KeyboardInterrupt


# -- output


def report(as_json: bool, text: str, **facts: object) -> None:
    """Print ``text``, or the ``facts`` as one JSON object."""
    print(json.encode(facts).decode() if as_json else text, flush=True)


def report_counts(as_json: bool, counts: Mapping[str, int]) -> None:
    """Print how many of each there are: ``3 done, 1 in doubt``."""
    report(as_json, ", ".join(f"{count} {name.replace('_', ' ')}" for name, count in counts.items()), **counts)


def print_page(
    as_json: bool,
    name: str,
    rows: Sequence[Mapping[str, Any]],
    heads: Sequence[str],
    *,
    none: str,
    cursor: str | None = None,
    colours: Mapping[str, Any] | None = None,
) -> None:
    """Print a page: a table of the columns in ``heads`` that hold anything, or one JSON object with everything.

    ``none`` is printed where there are no rows. The cursor of the next page goes to stderr: a pipe sees rows only.
    """
    if as_json:
        print(json.encode({name: rows, "cursor": cursor}).decode())
        return
    screen = Screen()
    if rows:
        known = colours or {}
        heads = [head for head in heads if any(row[head] not in (None, "") for row in rows)]
        cells = [
            [
                Cell(_cell(row[head]).replace("_", " "), known.get(str(row[head]), ""))
                if head == "state"
                else Cell(_cell(row[head]))
                for head in heads
            ]
            for row in rows
        ]
        print("\n".join(table(screen, [head.replace("_", " ") for head in heads], cells)))
    elif cursor is None:
        print(none)
    if cursor is not None:
        # The cursor holds a key, which may contain control characters.
        how = f"--cursor {shlex.quote(cursor)}" if cursor.isprintable() else "--json prints the cursor"
        print(f"there may be more: {how}", file=sys.stderr)


def _cell(value: object) -> str:
    text = "" if value is None else str(value)
    return show(text, 300) or "-"


def print_details(as_json: bool, facts: Mapping[str, Any]) -> None:
    """Print one thing: a line for each of its facts, or one JSON object."""
    if as_json:
        print(json.encode(facts).decode())
        return
    screen = Screen()
    width = max(len(name) for name in facts) + 2
    for name, value in facts.items():
        text = "-" if value is None else value if isinstance(value, str) else json.encode(value).decode()
        print(f"{screen.paint(name.replace('_', ' ').ljust(width), 'dim')}{show(text, 4000)}")


def format_time(at: int | None) -> str:
    """Format a time in microseconds, in UTC."""
    return datetime.fromtimestamp(at / 1e6, UTC).strftime("%Y-%m-%d %H:%M:%SZ") if at else "-"


def format_age(at: int | None, now: int) -> str:
    """Format how long ago ``at`` was, or in how long it will be."""
    if not at:
        return "-"
    return f"{readable(now - at)} ago" if at <= now else f"in {readable(at - now)}"


def parse_json(text: str, option: str) -> Any:
    """Decode an option's value as JSON. The error names the option."""
    try:
        return json.decode(text)
    except ValueError as error:
        raise ConfigurationError(f"{option} takes JSON, and {show(text)!r} is not JSON: {error}") from error
