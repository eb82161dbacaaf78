"""What the commands have in common: options by the same names, prompts, the audit log, and how things are told."""

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
from effectonce.store import Store, connect, require_there
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
#: The same, where a command takes nothing else.
Url = Annotated[str | None, typer.Argument(metavar="URL", show_default=False, help="The store, as with --store.")]
Limit = Annotated[int, typer.Option("--limit", "-n", min=1, max=1000, help="At most so many.")]
Cursor = Annotated[
    str | None, typer.Option("--cursor", show_default=False, help="Go on where the page before ended: its last line.")
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON, for programs.")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Only say what would be done.")]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")]
AuditFile = Annotated[
    str | None,
    typer.Option(
        "--audit",
        metavar="FILE",
        show_default=False,
        help="Write down there who did what.  [else: EFFECTONCE_AUDIT, [tool.effectonce]]",
    ),
]

MAKE_STORE = "make it with: effectonce migrate"
#: What ends the recovery of one intent or saga, as its store's hooks are told.
ENDS = frozenset(("completed", "failed", "exhausted", "in_doubt", "released"))
COUNTED = 10_000  # the most that are counted before a bar is drawn


def group(help: str) -> typer.Typer:
    """A command that has commands of its own."""
    return typer.Typer(help=help, no_args_is_help=True, add_completion=False, rich_markup_mode=None)


@contextmanager
def opened(*urls: str | None, new: bool = False) -> Iterator[Store]:
    """The store at the first of ``urls`` that is given, or else the one that is set; closed afterwards. One that is not
    there yet is made only where it may be ``new``."""
    given = [each for each in urls if each is not None]
    if len(given) > 1:
        raise ConfigurationError("the store is named twice: give its URL or --store, not both")
    with connect(settings.url("store", *given), sweep_every=None) as store:
        if not new:
            require_there(store.runtime.backend, MAKE_STORE)
        yield store


def paged(
    store: Store, lists: Sequence[tuple[str, State | None]], limit: int, cursor: str | None
) -> tuple[list[Record], str | None]:
    """A page of several lists, one after the other, and the cursor of the next: which list, and where in it. A list is
    a scope and a state; without one, what is not finished."""
    number, _, place = (cursor or "0:").partition(":")
    if not (number.isascii() and number.isdecimal() and len(number) < 9):
        raise InvalidOption(f"--cursor {show(cursor)!r} is not one that a page before ended with")
    found: list[Record] = []
    for at in range(int(number), len(lists)):
        scope, state = lists[at]
        while True:
            page = store.list(
                scope=scope, state=state, unfinished=state is None, limit=limit - len(found), cursor=place or None
            )
            found, place = found + page.records, page.cursor or ""
            if len(found) >= limit and (place or at + 1 < len(lists)):
                return found, f"{at}:{place}" if place else f"{at + 1}:"
            if not place:
                break
    return found, None


def chosen(words: Mapping[Any, bool], how: str) -> Any:
    """The one of ``words`` that was said."""
    said = [word for word, is_said in words.items() if is_said]
    if len(said) != 1:
        raise ConfigurationError(f"say one thing: {how}")
    return said[0]


# -- what is done


def operator() -> str:
    """Who sits at the terminal."""
    try:
        user = getpass.getuser()
    except (KeyError, OSError):  # a user without a name, as in some containers
        user = "unknown"
    return f"{user}@{socket.gethostname()}"


def audited(
    file: str | None, action: str, target: str, detail: str = "", *, place: object = ""
) -> AbstractContextManager[None]:
    """Write down who does this, before and after. ``place``: the backend whose records or messages these are."""
    where = repr(place) if place else ""
    return Audit(settings.setting("audit", file)).doing(action, target, by=operator(), detail=detail, place=where)


class Patience:
    """Ctrl-C during work that is done in steps: the step at hand is finished, then ``over`` is true. Once more: now."""

    over = False

    def __enter__(self) -> Patience:
        self._before = signal.signal(signal.SIGINT, self._told)
        return self

    def __exit__(self, *_: object) -> None:
        signal.signal(signal.SIGINT, self._before)

    def _told(self, number: int, frame: FrameType | None) -> None:
        if self.over:
            raise KeyboardInterrupt
        self.over = True
        # Not by `print`: what was interrupted may be just that, and would not be entered twice.
        os.write(2, b"\nstopping after this step (Ctrl-C again: at once)\n")

    def asked(self) -> bool:
        return self.over

    def leave(self) -> None:
        """End the command as Ctrl-C does, where it was asked for."""
        if self.over:
            raise KeyboardInterrupt


# -- what is told


def report(as_json: bool, text: str, **facts: object) -> None:
    """``text`` for people, or the ``facts`` as one JSON object."""
    print(json.encode(facts).decode() if as_json else text, flush=True)


def tally(as_json: bool, counts: Mapping[str, int]) -> None:
    """How many of each: ``3 done, 1 in doubt``."""
    report(as_json, ", ".join(f"{count} {name.replace('_', ' ')}" for name, count in counts.items()), **counts)


def listing(
    as_json: bool,
    name: str,
    rows: Sequence[Mapping[str, Any]],
    heads: Sequence[str],
    *,
    none: str,
    cursor: str | None = None,
    colours: Mapping[str, Any] | None = None,
) -> None:
    """A page: a table for people, of those columns in ``heads`` that hold anything, or one JSON object with all.

    ``none`` is said where there is nothing. The cursor of the next page goes to stderr, so that a pipe sees rows only.
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
        # It holds a key, which comes from outside.
        how = f"--cursor {shlex.quote(cursor)}" if cursor.isprintable() else "--json tells the cursor"
        print(f"there may be more: {how}", file=sys.stderr)


def _cell(value: object) -> str:
    text = "" if value is None else str(value)
    return show(text, 300) or "-"


def details(as_json: bool, facts: Mapping[str, Any]) -> None:
    """One thing, a line for each of its facts, or one JSON object."""
    if as_json:
        print(json.encode(facts).decode())
        return
    screen = Screen()
    width = max(len(name) for name in facts) + 2
    for name, value in facts.items():
        text = value if isinstance(value, str) else json.encode(value).decode() if value is not None else "-"
        print(f"{screen.paint(name.replace('_', ' ').ljust(width), 'dim')}{show(text, 4000)}")


def moment(at: int | None) -> str:
    """A time in microseconds, as UTC."""
    return datetime.fromtimestamp(at / 1e6, UTC).strftime("%Y-%m-%d %H:%M:%SZ") if at else "-"


def away(at: int | None, now: int) -> str:
    """How long ago, or how soon, that is."""
    if not at:
        return "-"
    return f"{readable(now - at)} ago" if at <= now else f"in {readable(at - now)}"


def json_value(text: str, option: str) -> Any:
    """``text`` as JSON; what it cannot be is said with the option's name."""
    try:
        return json.decode(text)
    except ValueError as error:
        raise ConfigurationError(f"{option} takes JSON, and {show(text)!r} is none: {error}") from error
