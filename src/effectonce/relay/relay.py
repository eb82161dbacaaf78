"""`Relay`: takes what outboxes hold to the broker, as often as it takes, and never holds a transaction meanwhile.

    relay = eo.Relay(eo.connect("postgresql://…"), eo.connect_broker("redis://…"))
    relay.run()            # a process of its own, until SIGTERM; `await relay.serve()` inside another

A row is leased, sent, confirmed and settled. A relay that dies in between leaves a lease that ends: another sends the
message again, with the same id. Several relays share the work.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Literal, TypeVar, get_args

from effectonce.broker import Broker
from effectonce.contracts import BrokerBackend, Contention, Envelope, OutboxBackend, OutboxPort
from effectonce.contracts.outbox import Backlog, Entries, State
from effectonce.core.retry import Retry
from effectonce.core.run_sync import run_sync
from effectonce.core.signals import serve_until_signalled
from effectonce.envelopes import CloudEvents
from effectonce.errors import ConfigurationError, InvalidOption, StoreUnavailable, show
from effectonce.store import Store
from effectonce.values.durations import Duration, micros

from .pump import Settings, Totals, insist
from .run import CLEANED, Session

T = TypeVar("T")


class Relay:
    """Sends the rows of the outbox in ``store`` to ``broker``.

    - ``order``: ``"key"``: messages of one ordering key leave in the order of their rows; one that fails holds up those
      behind it, and nobody else. None: as they come, which is faster where many share few keys.
    - ``retry``: when a message that the broker refuses is tried again. After the last attempt it is parked, with its
      error: see `list` and `unpark`. A broker that is away is nobody's fault: the relay waits, and counts no attempt.
    - ``batch``: the most rows in one lease; it takes fewer of large ones, and as many as the broker confirms in time.
      ``lease``: how long a relay has them; after that another sends them again.
    - ``keep``: how long published rows stay, for people to look at; 0: not at all, which is the fastest.
    - ``poll``: the longest time between two looks at an idle outbox.
    - ``table``: the outbox, where it is not the one that the store's `migrate` has made.
    - ``envelope``: how messages are written; default: the broker's.
    - ``listen``: where /metrics, /healthz and /readyz are served, as of a `Worker`.
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
        if order not in ("key", None):
            raise InvalidOption(f"order={order!r} is not 'key' or None")
        if type(batch) is not int or not 1 <= batch <= 10_000:
            raise InvalidOption(f"batch={batch!r} is not a number of messages; give 1 to 10000")
        self.store = store
        self._broker = broker
        self._envelope = envelope or (broker.envelope if isinstance(broker, Broker) else CloudEvents())
        self._retry = retry if retry is not None else Retry(10)
        self._ordered = order == "key"
        self._batch = batch
        self._span = micros(lease, "lease")
        self._keep = 0 if keep == 0 else micros(keep, "keep")
        self._poll = micros(poll, "poll") / 1e6
        self._table = table
        self._session: Session | None = None
        #: Where /metrics, /healthz and /readyz are served.
        self.listen = listen
        #: What this relay has done so far.
        self.totals = Totals()
        #: Whether SIGINT, Ctrl-C, has ended `run`.
        self.interrupted = False

    def __repr__(self) -> str:
        return f"<relay from {self.store!r} to {self._broker!r}>"

    def _settings(self) -> Settings:
        return Settings(
            runtime=self.store.runtime,
            outboxes=outboxes(self.store),
            table=self._table,
            broker=self._broker.backend if isinstance(self._broker, Broker) else self._broker,
            envelope=self._envelope,
            retry=self._retry,
            ordered=self._ordered,
            batch=self._batch,
            span=self._span,
            keep=self._keep,
            poll=self._poll,
            totals=self.totals,
        )

    # -- running

    def run(self) -> None:
        """Serve until SIGTERM or SIGINT: then what is on its way is confirmed and settled, and the rest given back. A
        second signal does not wait for that."""
        with asyncio.Runner() as runner:
            self.interrupted = runner.run(serve_until_signalled(self.serve, self.stop))

    def stop(self) -> None:
        """Lease no more, settle what is on its way, give back what was not sent. Called again: do not wait. From any
        thread; `serve` returns when it is done."""
        session = self._session
        if session is not None:
            session.loop.call_soon_threadsafe(session.stop)

    async def serve(self) -> None:
        """Relay until `stop` is called. A broker or a store that is away is waited for; `ConfigurationError`: it cannot
        work, the tables are missing for example."""
        if self._session is not None:
            raise ConfigurationError("this relay is serving already; make another one")
        self._session = session = Session(self._settings())
        try:
            with self._endpoints():
                await session.serve()
        finally:
            self._session = None

    @property
    def phase(self) -> Literal["stopped", "running", "draining"]:
        """Where it is between two `serve`: sending, or coming to its end."""
        session = self._session
        return "stopped" if session is None else "draining" if session.signals.stopping else "running"

    @property
    def outage(self) -> Exception | None:
        """Why nothing can be sent now, where the broker is away."""
        return self._session.signals.outage if self._session is not None else None

    def _endpoints(self) -> AbstractContextManager[Any]:
        if self.listen is None:
            return nullcontext()
        from effectonce.telemetry.endpoints import (
            Endpoints,  # which stands above the tools, and is for those who ask for it
        )

        return Endpoints(self, self.listen)

    async def drain(self) -> int:
        """Send what is due, and return when nothing is; how many were published. What waits for its next attempt, and
        what other relays have leased, is left. `BrokerUnavailable`: what was not sent stays due."""
        before = self.totals.published
        await Session(self._settings()).drain()
        return self.totals.published - before

    # -- for people

    def check(self) -> None:
        """Connect, and raise what would keep the outbox from its promise."""
        ask_outbox(self.store, self._table, lambda port: port.check())

    def stats(self) -> Backlog:
        """How many rows there are in each state, and how old the oldest is that has not left."""
        return ask_outbox(self.store, self._table, lambda port: port.stats())

    def list(self, state: State = "parked", *, limit: int = 100, cursor: str | None = None) -> Entries:
        """A page of at most ``limit`` rows; pass its ``cursor`` on for the next."""
        if state not in get_args(State):
            raise InvalidOption(f"state={show(state)!r} is none of {', '.join(get_args(State))}")
        size = max(1, min(limit, 1000))
        return ask_outbox(self.store, self._table, lambda port: port.list(state, size, cursor))

    def unpark(self, *seqs: int) -> int:
        """Try these parked messages again (without any: all of them); what waits behind them follows. How many."""
        return unpark(self.store, self._table, seqs or None)

    def discard(self, *seqs: int) -> int:
        """Delete these parked messages, which then never leave; what waits behind them follows. How many."""
        if not seqs:
            raise InvalidOption("discard needs the numbers of the messages (seq) that are never to be sent")
        return unpark(self.store, self._table, seqs, discard=True)


def outboxes(store: Store) -> OutboxBackend:
    """The part of ``store`` that opens outboxes, or `ConfigurationError`."""
    backend = store.runtime.backend
    if not isinstance(backend, OutboxBackend):
        raise ConfigurationError(
            f"{backend!r} cannot hold an outbox; those in sqlite:///, postgresql://, mysql:// and mariadb:// can"
        )
    return backend


def ask_outbox(store: Store, table: str | None, ask: Callable[[OutboxPort], Coroutine[Any, Any, T]]) -> T:
    """What ``ask(port)`` gives, on a connection of its own."""
    port = outboxes(store).sync_outbox(table)
    try:
        return run_sync(insist(lambda: ask(port)))
    except Contention as error:
        raise StoreUnavailable(f"{store!r} did not answer: {error}") from error
    finally:
        run_sync(port.close())


def unpark(store: Store, table: str | None, seqs: Sequence[int] | None, *, discard: bool = False) -> int:
    """See `Relay.unpark` and `Relay.discard`; None: all."""
    total = 0
    while True:
        count = ask_outbox(store, table, lambda port: port.unpark(seqs, CLEANED, discard=discard))
        total += count
        if seqs is not None or count < CLEANED:
            return total
