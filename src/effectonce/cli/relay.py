"""`effectonce relay`: publishes an outbox's messages to a broker, as a process of its own."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Annotated, Literal

import typer

from effectonce.broker import connect_broker
from effectonce.contracts import Event
from effectonce.core.shared_loop import shared_loop
from effectonce.display.redaction import without_secrets
from effectonce.display.terminal import Colour, Screen
from effectonce.errors import InvalidOption, show
from effectonce.relay.relay import Relay
from effectonce.store import connect

from . import options, settings
from .output import print_json
from .progress import Progress

ORDERS = ("key", "none")
_MIN_REPORT_INTERVAL_S = 0.1


def relay(
    store_url: options.StoreUrl = None,
    broker_url: options.BrokerUrl = None,
    order: Annotated[
        str,
        typer.Option(
            metavar="ORDER",
            help="key: send the messages of one ordering key in order. none: send them as they come.",
            autocompletion=list(ORDERS).copy,
        ),
    ] = "key",
    batch: Annotated[int, typer.Option(metavar="N", help="Lease this many messages at once, at most.")] = 500,
    lease: Annotated[
        str, typer.Option(metavar="SPAN", help="Let another relay take over what was not sent after this long.")
    ] = "30s",
    keep: Annotated[
        str, typer.Option(metavar="SPAN", help="Keep published messages in the table for this long. 0: delete them.")
    ] = "1h",
    table: options.Table = None,
    once: Annotated[bool, typer.Option("--once", help="Send what is due, then exit.")] = False,
    every: Annotated[float, typer.Option(metavar="SECONDS", help="Report progress this often.")] = 10.0,
    as_json: options.Json = False,
    listen: options.Listen = None,
) -> None:
    """Publish the messages of an outbox to a broker, until SIGTERM. The outbox is in the database of --store.

    Run as many relays as you like: they share the work.

    Example: effectonce relay --store sqlite:///shop.db --broker amqp://mq
    """
    if order not in ORDERS:
        raise InvalidOption(f"--order is {' or '.join(ORDERS)}, not {show(order)!r}")
    source, target = settings.require_url("store", store_url), settings.require_url("broker", broker_url)
    with connect(source, sweep_every=None) as store, connect_broker(target) as broker:
        outbox_relay = Relay(
            store,
            broker,
            order="key" if order == "key" else None,
            batch=batch,
            lease=lease,
            keep=0 if keep in ("0", "0s") else keep,
            table=table,
            listen=listen,
        )
        reporter = RelayReporter(outbox_relay, as_json)
        store.add_hook(reporter.on_event)
        outbox_relay.check()
        order_text = "in order of their keys" if order == "key" else "in no order"
        route = f"from {without_secrets(source)} to {without_secrets(target)}"
        reporter.report(f"{route}, {order_text}", event="started")
        if once:
            _send_once(outbox_relay)
        else:
            with reporter.every(every):
                outbox_relay.run()
        reporter.report_totals("ended")
    if outbox_relay.interrupted:
        raise KeyboardInterrupt


def _send_once(relay: Relay) -> None:
    """Send what is due now, and show how far that is."""
    backlog = relay.stats()
    due = backlog.counts.get("pending", 0)
    with Progress("sending", due if due < backlog.cap else None) as progress:
        relay.store.add_hook(lambda event: progress.step() if event.kind == "published" else None)
        try:
            shared_loop.run(relay.drain())
        except KeyboardInterrupt:
            relay.interrupted = True


class RelayReporter:
    """Reports what a relay does, in lines for people or as JSON."""

    def __init__(self, relay: Relay, as_json: bool) -> None:
        self._relay = relay
        self._json = as_json
        self._screen = Screen()
        self._started_at = self._reported_at = time.monotonic()
        self._reported_count = 0

    def report(self, text: str, colour: Colour = "", **facts: object) -> None:
        if self._json:
            print_json(facts)
        else:
            self._screen.print_tagged("relay", text, colour)

    def on_event(self, event: Event) -> None:
        if event.kind in ("relay_paused", "sweep_failed"):
            self.report(show(event.detail, 500), "yellow", event=event.kind, error=event.detail)
        elif event.kind in ("parked", "publish_failed"):
            result = "was parked" if event.kind == "parked" else "was refused, and is tried again"
            message = f"{show(event.key)} to {show(event.scope)}"
            self.report(
                f"{message} {result} (attempt {event.attempt}): {show(event.detail, 300)}",
                "red" if event.kind == "parked" else "yellow",
                event=event.kind,
                id=event.key,
                destination=event.scope,
                attempt=event.attempt,
                error=event.detail,
            )

    @contextmanager
    def every(self, seconds: float) -> Iterator[None]:
        """Report the totals every so many seconds in which something was published."""
        stopping = threading.Event()

        def run() -> None:
            while not stopping.wait(max(_MIN_REPORT_INTERVAL_S, seconds)):
                if self._relay.totals.published != self._reported_count:
                    self.report_totals("progress")

        threading.Thread(target=run, name="effectonce-report", daemon=True).start()
        try:
            yield
        finally:
            stopping.set()

    def report_totals(self, event: Literal["progress", "ended"]) -> None:
        """Report what was published, and at which rate: since the last report, or in the end since the start."""
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
