"""What the dashboard looks at: a store, and what is known of the programs that use it."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final

from effectonce.broker import Broker
from effectonce.contracts import OutboxBackend
from effectonce.contracts.outbox import OutboxBacklog, OutboxPage, OutboxState
from effectonce.dead_letters.queue import DeadLetterQueue
from effectonce.errors import ConfigurationError, InvalidOption, show
from effectonce.intents.intents import Intents
from effectonce.record import Page, Record, State
from effectonce.relay.relay import ask_outbox, unpark
from effectonce.sagas.saga import Saga
from effectonce.store import Store
from effectonce.telemetry.audit_log import Audit
from effectonce.worker.worker import Worker

SCOPES: Final = 200
"""The most scopes that are found in a store by looking."""
ROWS: Final = 50
"""Rows of one page."""
PATIENCE: Final = 0.04
"""Seconds after which an empty page is shown as such, with the way on."""
NEXT: Final = "\x01"
"""Behind a scope's name: what comes after all of its records."""


class Sources:
    """One store, and what stands around it.

    The store is read through a handle of our own, without its secret where it has one: keys are shown as they are
    stored, and what is sealed stays sealed. `intents` and `sagas` by scope: with them what they keep can be decided as
    their program would; without, records are all there is to see.
    """

    def __init__(
        self,
        store: Store | None = None,
        *,
        broker: Broker | None = None,
        workers: Sequence[Worker] = (),
        intents: Sequence[Intents] = (),
        sagas: Sequence[Saga[Any]] = (),
        outbox: Store | None = None,
        table: str | None = None,
        queues: Sequence[str] = (),
        group: str = "worker",
        metrics: Sequence[str] = (),
        audit: Audit | None = None,
    ) -> None:
        given = store or next((worker.store for worker in workers if worker.store is not None), None)
        if given is None:
            raise ConfigurationError(
                "which store? Give --store URL, set EFFECTONCE_STORE, or name a --worker that has one"
            )
        backend = given.engine.backend
        self.privacy = given.engine.privacy
        self.store = Store(backend, sweep_every=None)
        #: For the watcher, which must keep no page waiting.
        self.watched = Store(backend, sweep_every=None)
        self.workers = list(workers)
        self.broker = broker
        self.intents = {scope: each for each in intents for scope in each.operations}
        self.sagas: dict[str, Saga[Any]] = {each.scope: each for each in sagas}
        self.outbox = outbox or (self.store if isinstance(backend, OutboxBackend) else None)
        self.table = table
        self.queues, self.group = list(queues), group
        for url in metrics:
            if not url.startswith(("http://", "https://")):
                raise ConfigurationError(f"--metrics takes the http address of a worker's /metrics, not {show(url)!r}")
        self.metrics = list(metrics)
        self.audit = audit if audit is not None else Audit()
        self.letters = dict(self._letters(broker))
        self._scopes: list[str] = []

    def _letters(self, broker: Broker | None) -> Iterable[tuple[str, DeadLetterQueue]]:
        for worker in self.workers:
            for queue in worker.queues:
                yield f"{worker.name}/{queue}", DeadLetterQueue(worker, queue)
        for queue in self.queues:
            if broker is None:
                raise ConfigurationError(f"the dead letters of {show(queue)} are in which broker? Give --broker URL")
            yield f"{self.group}/{queue}", DeadLetterQueue(broker, queue, group=self.group)

    # -- scopes

    @property
    def scopes(self) -> list[str]:
        """The scopes that are known: of the programs, and those that were found in the store."""
        own = [route.policy.scope for worker in self.workers if worker.store is not None for route in worker.routes]
        return sorted({*own, *self.intents, *self.sagas, *self._scopes})

    def look_for_scopes(self) -> None:
        """Find the scopes that are in the store: one step each, where it keeps records in order."""
        if not self.watched.capabilities.ordered:
            return
        found: list[str] = []
        place = ("", "")
        while len(found) < SCOPES:
            page = self.watched.list(limit=1, after=place)
            if page.records:
                found.append(page.records[0].scope)
                place = (found[-1] + NEXT, "")
            elif page.cursor is None:
                break
            else:  # many that have expired, and no sweeper has taken yet: not today
                break
        self._scopes = found

    def note_scopes(self, records: Iterable[Record]) -> None:
        """Remember the scopes of what was seen, for stores that cannot be searched for them."""
        new = {record.scope for record in records}.difference(self._scopes)
        if new and len(self._scopes) < SCOPES:
            self._scopes = [*self._scopes, *new]

    # -- records

    def search(self, key: str, scope: str, state: State | None, cursor: str | None) -> Page:
        """A page of records: all of a scope and state, those with a key, or whose key begins with ``key*``."""
        if not key:
            return self._listed(scope or None, state, cursor)
        if not key.endswith("*"):
            scopes = [scope] if scope else self.scopes
            return Page([record for record in self._exact(scopes, key) if state in (None, record.state)])
        prefix = key[:-1]
        if not self.store.capabilities.ordered:
            raise InvalidOption(
                f"{self.store.capabilities.name} keeps keys in no order: search for a whole key, without the *"
            )
        if not prefix:
            return self._listed(scope or None, state, cursor)
        if scope:
            return self._beginning(prefix, scope, state, cursor)
        found: list[Record] = []
        for each in self.scopes:
            found += self._beginning(prefix, each, state, None).records
            if len(found) > ROWS:
                break
        return Page(found[:ROWS])

    def _listed(self, scope: str | None, state: State | None, cursor: str | None) -> Page:
        return self._filled(lambda after: self.store.list(scope=scope, state=state, limit=ROWS, cursor=after), cursor)

    def _filled(self, ask: Callable[[str | None], Page], cursor: str | None) -> Page:
        """The first page with something on it, as far as there is time: those of a rare state may be empty."""
        until = time.monotonic() + PATIENCE
        page = ask(cursor)
        while not page.records and page.cursor is not None and time.monotonic() < until:
            page = ask(page.cursor)
        self.note_scopes(page.records)
        return page

    def _exact(self, scopes: Iterable[str], key: str) -> Iterable[Record]:
        for scope in scopes:
            record = self.store.get(scope, key)
            if record is None and self.privacy is not None:
                record = self.store.get(scope, self.privacy.hide(scope, key))
            if record is not None:
                yield record

    def _beginning(self, prefix: str, scope: str, state: State | None, cursor: str | None) -> Page:
        place = (scope, prefix)
        page = self._filled(
            lambda after: self.store.list(scope=scope, state=state, limit=ROWS, cursor=after, after=place), cursor
        )
        records = [record for record in page.records if record.key.startswith(prefix)]
        goes_on = page.cursor if len(records) == len(page.records) else None
        whole = self.store.get(scope, prefix) if cursor is None else None
        if whole is not None and state in (None, whole.state):
            records.insert(0, whole)
        return Page(records, goes_on)

    def record(self, scope: str, key: str) -> Record | None:
        """The record of a stored key."""
        return self.store.get(scope, key)

    # -- the outbox

    def outbox_stats(self) -> OutboxBacklog:
        return ask_outbox(self._outbox(), self.table, lambda port: port.stats())

    def outbox_rows(self, state: OutboxState, cursor: str | None) -> OutboxPage:
        return ask_outbox(self._outbox(), self.table, lambda port: port.list(state, ROWS, cursor))

    def unpark(self, seqs: Sequence[int] | None) -> int:
        return unpark(self._outbox(), self.table, seqs)

    @property
    def outbox_name(self) -> str:
        """How the audit log names it."""
        return f"{self._outbox().engine.backend!r} {self.table or 'outbox'}"

    def _outbox(self) -> Store:
        if self.outbox is None:
            raise ConfigurationError(f"{self.store!r} cannot hold an outbox; give --outbox URL of the one that does")
        return self.outbox

    # -- the end

    def close(self) -> None:
        """Close what is ours, and the handles of the programs, which live in this process."""
        programs: list[Worker | Intents | Saga[Any]] = [*self.workers, *self.intents.values(), *self.sagas.values()]
        stores = [self.store, self.watched, self.outbox, *(program.store for program in programs)]
        for store in {id(each): each for each in stores if each is not None}.values():
            store.close()
        brokers = [self.broker, *(worker.broker for worker in self.workers)]
        for broker in {id(each): each for each in brokers if each is not None}.values():
            broker.close()
