"""`effectonce relay`: an outbox to a broker, as a process of its own; and `effectonce outbox`, what waits in one."""

from __future__ import annotations

import asyncio
import sys
import threading
import time
from typing import Annotated, Any, Literal

import typer
from msgspec import json

from effectonce.broker import ENVIRONMENT as BROKER
from effectonce.broker import connect_broker
from effectonce.contracts import Event
from effectonce.errors import InvalidOption, show
from effectonce.outgoing import Backlog, Entry
from effectonce.relay import Relay, ask_outbox, unpark
from effectonce.store import ENVIRONMENT as STORE
from effectonce.store import connect

from .terminal import Screen, without_secrets

From = Annotated[
    str, typer.Option("--from", metavar="URL", envvar=STORE, show_default=False, help="The database of the outbox.")
]
To = Annotated[str, typer.Option("--to", metavar="URL", envvar=BROKER, show_default=False, help="The broker.")]
Database = Annotated[
    str, typer.Argument(metavar="URL", envvar=STORE, show_default=False, help="The database of the outbox.")
]
Table = Annotated[
    str | None, typer.Option(help="The outbox, where it is not the one that `migrate` made.", show_default=False)
]
Seqs = Annotated[list[int] | None, typer.Argument(metavar="SEQ…", show_default=False, help="The messages' numbers.")]
Json = Annotated[bool, typer.Option("--json", help="Print JSON, one object a line.")]


def relay(
    from_: From,
    to: To,
    order: Annotated[str, typer.Option(help="key: messages of one ordering key in order; none: as they come.")] = "key",
    batch: Annotated[int, typer.Option(help="The most messages in one lease.")] = 500,
    lease: Annotated[str, typer.Option(help="After how long another relay sends what this one has not.")] = "30s",
    keep: Annotated[str, typer.Option(help="How long published messages stay in the table; 0: not at all.")] = "1h",
    table: Table = None,
    once: Annotated[bool, typer.Option("--once", help="Send what is due, then end.")] = False,
    every: Annotated[float, typer.Option(metavar="SECONDS", help="How often to say how far it is.")] = 10.0,
    as_json: Json = False,
) -> None:
    """Send what outboxes hold to a broker, until SIGTERM. Run as many as you like: they share the work."""
    if order not in ("key", "none"):
        raise InvalidOption(f"--order is key or none, not {show(order)!r}")
    with connect(from_, sweep_every=None) as store, connect_broker(to) as broker:
        worker = Relay(
            store,
            broker,
            order="key" if order == "key" else None,
            batch=batch,
            lease=lease,
            keep=0 if keep in ("0", "0s") else keep,
            table=table,
        )
        reporter = Reporter(worker, as_json)
        store.add_hook(reporter.event)
        worker.check()
        reporter.say(
            f"from {without_secrets(from_)} to {without_secrets(to)}, "
            + ("in order of their keys" if order == "key" else "in no order"),
            event="started",
        )
        if once:
            asyncio.run(worker.drain())
        else:
            with reporter.every(every):
                worker.run()
        reporter.total("ended")


class Reporter:
    """What a relay is doing, in lines for people or for programs."""

    def __init__(self, relay: Relay, as_json: bool) -> None:
        self._relay = relay
        self._json = as_json
        self._screen = Screen()
        self._began = self._last = time.monotonic()
        self._said = 0
        self._end = threading.Event()

    def say(self, text: str, colour: Any = "", **facts: object) -> None:
        if self._json:
            print(json.encode(facts).decode(), flush=True)
        else:
            self._screen.tell("relay", text, colour)

    def event(self, event: Event) -> None:
        if event.kind in ("parked", "publish_failed"):
            what = "was parked" if event.kind == "parked" else "was refused, and is tried again"
            self.say(
                f"{show(event.key)} to {show(event.scope)} {what} (attempt {event.attempt}): {show(event.detail, 300)}",
                "red" if event.kind == "parked" else "yellow",
                event=event.kind, id=event.key, destination=event.scope, attempt=event.attempt, error=event.detail,
            )  # fmt: skip
        elif event.kind in ("relay_paused", "sweep_failed"):
            self.say(show(event.detail, 500), "yellow", event=event.kind, error=event.detail)

    def every(self, seconds: float) -> Reporter:
        self._every = max(0.1, seconds)
        return self

    def __enter__(self) -> None:
        threading.Thread(target=self._run, name="effectonce-report", daemon=True).start()

    def __exit__(self, *_: object) -> None:
        self._end.set()

    def _run(self) -> None:
        while not self._end.wait(self._every):
            if self._relay.totals.published != self._said:
                self.total("progress")

    def total(self, event: Literal["progress", "ended"]) -> None:
        totals, now = self._relay.totals, time.monotonic()
        since, before = (self._last, self._said) if event == "progress" else (self._began, 0)
        rate = (totals.published - before) / max(now - since, 0.001)
        self._last, self._said = now, totals.published
        self.say(
            f"{totals.published:,} published ({rate:,.0f}/s), {totals.failed:,} refused, {totals.parked:,} parked",
            "green" if event == "ended" else "",
            event=event, published=totals.published, refused=totals.failed, parked=totals.parked,
            cleaned=totals.cleaned, per_second=round(rate, 1),
        )  # fmt: skip


# -- what waits in an outbox

outbox = typer.Typer(help="What waits in an outbox, and what was parked there.", no_args_is_help=True)


@outbox.command()
def stats(url: Database, table: Table = None, as_json: Json = False) -> None:
    """How many messages there are in each state, and how old the oldest is that has not left."""
    with connect(url, sweep_every=None) as store:
        found: Backlog = ask_outbox(store, table, lambda port: port.stats())
        age = None if found.oldest is None else round((store.now() - found.oldest) / 1e6, 3)
    if as_json:
        print(json.encode({**found.counts, "oldest_seconds": age, "cleaned_at": found.cleaned_at}).decode())
        return
    for state, count in found.counts.items():
        print(f"{state:<10} {count:>9,}{'+' if count >= found.cap else ''}")
    print(f"{'oldest':<10} {'-' if age is None else f'{age:,.1f} s':>9}")


@outbox.command("list")
def list_(
    url: Database,
    state: Annotated[str, typer.Option(help="pending, waiting, parked or published.")] = "parked",
    limit: Annotated[int, typer.Option(help="At most so many.")] = 100,
    table: Table = None,
    as_json: Json = False,
) -> None:
    """The messages in one state, with the error of those that failed."""
    known: dict[str, Literal["pending", "waiting", "parked", "published"]] = {
        "pending": "pending", "waiting": "waiting", "parked": "parked", "published": "published",
    }  # fmt: skip
    if state not in known:
        raise InvalidOption(f"--state is one of {', '.join(known)}, not {show(state)!r}")
    with connect(url, sweep_every=None) as store:
        size = max(1, min(limit, 1000))
        page = ask_outbox(store, table, lambda port: port.list(known[state], size))
    for entry in page.entries:
        print(json.encode(entry).decode() if as_json else _line(entry))
    if page.cursor is not None:
        print(f"there are more than {size}: --limit", file=sys.stderr)


def _line(entry: Entry) -> str:
    key = "" if entry.ordering_key is None else f" in order of {show(entry.ordering_key, 40)}"
    error = "" if entry.error is None else f": {show(entry.error, 300)}"
    what = f"{show(entry.type, 40) or 'message'} {show(entry.id, 60)}"
    return f"{entry.seq:>8}  {what} to {show(entry.destination, 60)}{key}, {entry.attempts} attempts{error}"


@outbox.command("unpark")
def unpark_(
    url: Database,
    seqs: Seqs = None,
    every: Annotated[bool, typer.Option("--all", help="All that are parked.")] = False,
    table: Table = None,
    as_json: Json = False,
) -> None:
    """Try parked messages again; those that wait behind them follow."""
    if bool(seqs) == every:
        raise InvalidOption("name the messages by their numbers (`effectonce outbox list`), or say --all")
    _freed(url, seqs, table, as_json, discard=False)


@outbox.command()
def discard(url: Database, seqs: Seqs = None, table: Table = None, as_json: Json = False) -> None:
    """Delete parked messages, which then never leave; those that wait behind them follow."""
    if not seqs:
        raise InvalidOption("name the messages by their numbers: `effectonce outbox list` has them")
    _freed(url, seqs, table, as_json, discard=True)


def _freed(url: str, seqs: list[int] | None, table: str | None, as_json: bool, *, discard: bool) -> None:
    with connect(url, sweep_every=None) as store:
        count = unpark(store, table, seqs or None, discard=discard)
    word = "discarded" if discard else "unparked"
    print(json.encode({word: count}).decode() if as_json else f"{count} {word}")
