"""`effectonce relay`: publishes an outbox's messages to a broker, as a process of its own."""

from __future__ import annotations

import asyncio
import threading
import time
from typing import Annotated, Any, Literal

import typer
from msgspec import json

from effectonce.broker import connect_broker
from effectonce.contracts import Event
from effectonce.errors import InvalidOption, show
from effectonce.relay.relay import Relay
from effectonce.store import connect

from . import settings
from .options import Json
from .outbox import Table
from .terminal import Screen, show_progress, without_secrets
from .worker import Listen

From = Annotated[
    str | None,
    typer.Option("--from", "--store", "-s", metavar="URL", show_default=False, help="The database of the outbox."),
]
To = Annotated[
    str | None, typer.Option("--to", "--broker", "-b", metavar="URL", show_default=False, help="The broker.")
]


def relay(
    from_: From = None,
    to: To = None,
    order: Annotated[str, typer.Option(help="key: messages of one ordering key in order; none: as they come.")] = "key",
    batch: Annotated[int, typer.Option(help="The most messages in one lease.")] = 500,
    lease: Annotated[
        str, typer.Option(help="After how long another relay takes over what this one has not sent.")
    ] = "30s",
    keep: Annotated[str, typer.Option(help="How long published messages stay in the table; 0: not at all.")] = "1h",
    table: Table = None,
    once: Annotated[bool, typer.Option("--once", help="Send what is due, then end.")] = False,
    every: Annotated[float, typer.Option(metavar="SECONDS", help="How often to report progress.")] = 10.0,
    as_json: Json = False,
    listen: Listen = None,
) -> None:
    """Publish the messages of outboxes to a broker, until SIGTERM. Run as many as you like: they share the work."""
    if order not in ("key", "none"):
        raise InvalidOption(f"--order is key or none, not {show(order)!r}")
    source, target = settings.url("store", from_), settings.url("broker", to)
    with connect(source, sweep_every=None) as store, connect_broker(target) as broker:
        worker = Relay(
            store,
            broker,
            order="key" if order == "key" else None,
            batch=batch,
            lease=lease,
            keep=0 if keep in ("0", "0s") else keep,
            table=table,
            listen=listen,
        )
        reporter = Reporter(worker, as_json)
        store.add_hook(reporter.on_event)
        worker.check()
        reporter.report(
            f"from {without_secrets(source)} to {without_secrets(target)}, "
            + ("in order of their keys" if order == "key" else "in no order"),
            event="started",
        )
        if once:
            due = worker.stats()
            known = None if (count := due.counts.get("pending", 0)) >= due.cap else count
            with show_progress("sending", known) as advance:
                store.add_hook(lambda event: advance(1) if event.kind == "published" else None)
                try:
                    asyncio.run(worker.drain())
                except KeyboardInterrupt:
                    worker.interrupted = True
        else:
            with reporter.every(every):
                worker.run()
        reporter.report_totals("ended")
    if worker.interrupted:
        raise KeyboardInterrupt


class Reporter:
    """Reports what a relay does, in lines for people or as JSON."""

    def __init__(self, relay: Relay, as_json: bool) -> None:
        self._relay = relay
        self._json = as_json
        self._screen = Screen()
        self._started_at = self._reported_at = time.monotonic()
        self._reported_count = 0
        self._stopping = threading.Event()

    def report(self, text: str, colour: Any = "", **facts: object) -> None:
        if self._json:
            print(json.encode(facts).decode(), flush=True)
        else:
            self._screen.print_tagged("relay", text, colour)

    def on_event(self, event: Event) -> None:
        if event.kind in ("parked", "publish_failed"):
            what = "was parked" if event.kind == "parked" else "was refused, and is tried again"
            self.report(
                f"{show(event.key)} to {show(event.scope)} {what} (attempt {event.attempt}): {show(event.detail, 300)}",
                "red" if event.kind == "parked" else "yellow",
                event=event.kind,
                id=event.key,
                destination=event.scope,
                attempt=event.attempt,
                error=event.detail,
            )
        elif event.kind in ("relay_paused", "sweep_failed"):
            self.report(show(event.detail, 500), "yellow", event=event.kind, error=event.detail)

    def every(self, seconds: float) -> Reporter:
        self._every = max(0.1, seconds)
        return self

    def __enter__(self) -> None:
        threading.Thread(target=self._run, name="effectonce-report", daemon=True).start()

    def __exit__(self, *_: object) -> None:
        self._stopping.set()

    def _run(self) -> None:
        while not self._stopping.wait(self._every):
            if self._relay.totals.published != self._reported_count:
                self.report_totals("progress")

    def report_totals(self, event: Literal["progress", "ended"]) -> None:
        totals, now = self._relay.totals, time.monotonic()
        since, before = (self._reported_at, self._reported_count) if event == "progress" else (self._started_at, 0)
        rate = (totals.published - before) / max(now - since, 0.001)
        self._reported_at, self._reported_count = now, totals.published
        self.report(
            f"{totals.published:,} published ({rate:,.0f}/s), {totals.failed:,} refused, {totals.parked:,} parked",
            "green" if event == "ended" else "",
            event=event,
            published=totals.published,
            refused=totals.failed,
            parked=totals.parked,
            cleaned=totals.cleaned,
            per_second=round(rate, 1),
        )
