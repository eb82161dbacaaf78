"""`Relay`: publishes the rows of an outbox to a broker, and retries until the broker has confirmed each of them.

    relay = eo.Relay(eo.connect("postgresql://…"), eo.connect_broker("redis://…"))
    relay.run()            # a process of its own, until SIGTERM; `await relay.serve()` inside another

A row is leased, sent, confirmed and settled, each step in its own short transaction or none. When a relay dies in
between, its lease ends and another relay sends the message again, with the same id. Several relays share the work.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Literal, TypeVar, get_args

from effectonce.broker import Broker, require_broker
from effectonce.contracts import BrokerBackend, Contention, Envelope, OutboxPort
from effectonce.contracts.outbox import OutboxBacklog, OutboxPage, OutboxState
from effectonce.core.retry import Retry
from effectonce.core.run_sync import run_sync
from effectonce.core.shared_loop import shared_loop
from effectonce.core.signals import serve_until_signalled
from effectonce.envelopes import CloudEvents
from effectonce.errors import ConfigurationError, InvalidOption, StoreUnavailable, show
from effectonce.store import Store, require_store
from effectonce.values.durations import Duration, micros

from .pump import retry_request
from .relay_run import MAX_ROWS_PER_STATEMENT, RelayRun
from .settings import RelaySettings, RelayTotals, require_outboxes

T = TypeVar("T")


class Relay:
    """Sends the rows of the outbox in ``store`` to ``broker``.

    - ``order``: ``"key"`` sends messages of one ordering key in the order of their rows; one that fails holds up those
      behind it, and no others. None sends them as they come, which is faster where many share few keys.
    - ``retry``: when a message that the broker refuses is tried again. After the last attempt it is parked, with its
      error: see `list` and `unpark`. While the broker is away, the relay waits and counts no attempt.
    - ``batch``: the most rows in one lease. The relay takes fewer large ones, and only as many as the broker confirms
      in time. ``lease``: how long a relay owns them; after that another relay sends them again.
    - ``keep``: how long published rows stay, for you to look at; 0 deletes them at once, which is the fastest.
    - ``poll``: the longest pause between two reads of an idle outbox.
    - ``table``: the outbox's table, if it is not the one that the store's `migrate` made.
    - ``envelope``: the format of the messages; default: the broker's.
    - ``listen``: the address that serves /metrics, /healthz and /readyz, as for a `Worker`.
    """

    def __init__(
        self,
        store: Store,
        broker: Broker | BrokerBackend,
        *,
        order: Literal["key"] | None = "key",
        retry: Retry | None = None,
        batch: int = 500,
        lease: Duration = "30s",
        keep: Duration = "1h",
        poll: Duration = "1s",
        table: str | None = None,
        envelope: Envelope | None = None,
        listen: str | None = None,
    ) -> None:
        require_store(store, "Relay({}, …)")
        if not hasattr(broker, "publisher"):  # a `BrokerBackend` may stand in place of the handle
            require_broker(broker, "Relay(store, {}, …)")
        if order not in ("key", None):
            raise InvalidOption(f"order={order!r} is not 'key' or None")
        if type(batch) is not int or not 1 <= batch <= 10_000:
            raise InvalidOption(f"batch={batch!r} is not a number of messages; give 1 to 10000")
        self.store = store
        self.broker = broker
        #: The outbox's table; None: the one that the store's `migrate` made.
        self.table = table
        #: Counters since this relay was made.
        self.totals = RelayTotals()
        self._settings = RelaySettings(
            store=store,
            broker=broker,
            table=table,
            envelope=envelope or (broker.envelope if isinstance(broker, Broker) else CloudEvents()),
            retry=retry if retry is not None else Retry(10),
            ordered=order == "key",
            max_batch=batch,
            lease_us=micros(lease, "lease"),
            keep_us=0 if keep == 0 else micros(keep, "keep"),
            poll_s=micros(poll, "poll") / 1e6,
            totals=self.totals,
        )
        self._run: RelayRun | None = None
        self._companions: list[Relay] = []
        #: The address that serves /metrics, /healthz and /readyz.
        self.listen = listen
        #: Whether SIGINT (Ctrl-C) ended `run`.
        self.interrupted = False

    # -- running

    def add(self, companion: Relay) -> None:
        """Run another relay in this relay's process, as long as this one runs; if one of them fails, both stop.

        With ``listen=`` its metrics and its readiness are served, too.
        """
        self._companions.append(companion)

    def run(self) -> None:
        """Serve until SIGTERM or SIGINT, then confirm and settle what was sent and give the rest back. A second signal
        ends it at once."""
        self.interrupted = shared_loop.drive(serve_until_signalled(self.serve, self.stop))

    def stop(self) -> None:
        """Lease no more rows, settle what was sent and give the rest back; `serve` returns when that is done. A second
        call does not wait for it. You may call it from any thread."""
        run = self._run
        if run is not None:
            run.loop.call_soon_threadsafe(run.stop)
            for companion in self._companions:
                companion.stop()

    async def serve(self) -> None:
        """Relay until `stop` is called. While the broker or the store is away, it waits. Raises `ConfigurationError`
        where it cannot work, for example because the tables are missing."""
        if self._run is not None:
            raise ConfigurationError("this relay is already serving; create another Relay")
        self._run = run = RelayRun(self._settings)
        try:
            with self._endpoints():
                await self._serve_all(run)
        finally:
            self._run = None

    async def _serve_all(self, run: RelayRun) -> None:
        try:
            async with asyncio.TaskGroup() as serving:  # it cancels the others when one fails; they settle first
                for companion in self._companions:
                    serving.create_task(companion.serve())
                await run.serve()
                for companion in self._companions:
                    if companion.phase == "running":  # `stop` was called before that one had begun to serve
                        companion.stop()
        except ExceptionGroup as failures:
            error = failures.exceptions[0]
            raise error from error.__cause__

    @property
    def phase(self) -> Literal["stopped", "running", "draining"]:
        """``running`` in `serve`, ``draining`` after `stop` until `serve` returns, ``stopped`` otherwise."""
        run = self._run
        if run is None:
            return "stopped"
        return "draining" if run.state.stopping else "running"

    @property
    def outage(self) -> Exception | None:
        """Why nothing can be sent now, while the broker is away."""
        return self._run.state.outage if self._run is not None else None

    def _endpoints(self) -> AbstractContextManager[Any]:
        if self.listen is None:
            return nullcontext()
        from effectonce.telemetry.endpoints import Endpoints  # above the tools, and only for those who ask for it

        return Endpoints(self, self.listen, self._companions)

    async def drain(self) -> int:
        """Send all rows that are due, and return how many were published. Rows that wait for their next attempt, and
        rows that other relays have leased, stay. Raises `BrokerUnavailable` when the broker is away; unsent rows stay
        due."""
        before = self.totals.published
        await RelayRun(self._settings).drain()
        return self.totals.published - before

    # -- for operators

    def check(self) -> None:
        """Connect, and raise an error for anything that would break the outbox's promise."""
        ask_outbox(self.store, self._settings.table, lambda port: port.check())

    def stats(self) -> OutboxBacklog:
        """Return the number of rows in each state, and when the oldest unpublished one was written."""
        return ask_outbox(self.store, self._settings.table, lambda port: port.stats())

    def list(self, state: OutboxState = "parked", *, limit: int = 100, cursor: str | None = None) -> OutboxPage:
        """Return a page of at most ``limit`` rows; pass its ``cursor`` to get the next."""
        if state not in get_args(OutboxState):
            raise InvalidOption(f"state={show(state)!r} is none of {', '.join(get_args(OutboxState))}")
        size = max(1, min(limit, 1000))
        return ask_outbox(self.store, self._settings.table, lambda port: port.list(state, size, cursor))

    def unpark(self, *seqs: int) -> int:
        """Try these parked messages again, or all of them if you name none; messages that wait behind them follow.
        Returns how many."""
        return unpark(self.store, self._settings.table, seqs or None)

    def discard(self, *seqs: int) -> int:
        """Delete these parked messages, which are then never sent; messages that wait behind them follow. Returns how
        many."""
        if not seqs:
            raise InvalidOption("discard needs the numbers (seq) of the messages that are never to be sent")
        return unpark(self.store, self._settings.table, seqs, discard=True)


def ask_outbox(store: Store, table: str | None, request: Callable[[OutboxPort], Coroutine[Any, Any, T]]) -> T:
    """Await ``request(port)`` on a connection of its own, and return its reply."""
    port = require_outboxes(store).sync_outbox(table)
    try:
        return run_sync(retry_request(lambda: request(port)))
    except Contention as error:
        raise StoreUnavailable(f"{store!r} did not answer: {error}") from error
    finally:
        run_sync(port.close())


def unpark(store: Store, table: str | None, seqs: Sequence[int] | None, *, discard: bool = False) -> int:
    """Unpark or discard rows, as `Relay.unpark` and `Relay.discard` do. ``seqs`` None: all parked rows."""
    total = 0
    while True:
        count = ask_outbox(store, table, lambda port: port.unpark(seqs, MAX_ROWS_PER_STATEMENT, discard=discard))
        total += count
        if seqs is not None or count < MAX_ROWS_PER_STATEMENT:
            return total
