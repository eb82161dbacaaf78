"""The sources of the dashboard: a store, and the broker, outbox and programs that were named beside it."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from typing import Any, Final

from effectonce.broker import Broker
from effectonce.contracts import OutboxBackend
from effectonce.contracts.outbox import OutboxBacklog, OutboxPage, OutboxState
from effectonce.core.claim_notes import read_listed_note
from effectonce.dead_letters.queue import DeadLetterQueue
from effectonce.display.formatting import format_target
from effectonce.display.timeline import Moment, kind_of, record_timeline
from effectonce.doctor import DoctorFinding, examine
from effectonce.errors import ConfigurationError, CorruptRecord, InvalidOption, show
from effectonce.intents.intents import Intents
from effectonce.intents.logged_intent import LoggedIntent
from effectonce.intents.logged_intent import decode_log as decode_intent_log
from effectonce.record import Page, Record, State
from effectonce.relay.relay import ask_outbox, unpark
from effectonce.sagas.log import SagaLog
from effectonce.sagas.log import decode_log as decode_saga_log
from effectonce.sagas.saga import Saga
from effectonce.store import Store
from effectonce.telemetry.audit_log import ASKED_OUTCOME, AuditEntry, AuditLog
from effectonce.worker.worker import Worker

MAX_SCOPES: Final = 200
"""How many scopes are discovered in a store at most."""
PAGE_SIZE: Final = 50
EMPTY_PAGES_TIMEOUT_S: Final = 0.04
"""How long a search skips empty pages. After that it returns an empty page with a cursor."""
AFTER_SCOPE: Final = "\x01"
"""Appended to a scope's name, it sorts after all of the scope's records."""
MAX_AUDIT_ENTRIES: Final = 1000
"""How many of the newest audit entries are searched for those of one record."""


class Sources:
    """One store, and the broker, workers, intents and sagas around it.

    The store is read through a handle without its secret: keys are shown as they are stored, and sealed values stay
    sealed. `intents` and `sagas` are by scope. A record in doubt is decided by its program, if that is among them;
    otherwise as a bare record.
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
        audit: AuditLog | None = None,
    ) -> None:
        source = store or next((worker.store for worker in workers if worker.store is not None), None)
        if source is None:
            raise ConfigurationError(
                "the dashboard needs a store: give --store URL, set EFFECTONCE_STORE, or name a --worker that has one"
            )
        backend = source.runtime.backend
        self.privacy = source.runtime.privacy
        self.store = Store(backend, sweep_every=None)
        #: The poller has a handle of its own, so that it delays no page.
        self.polling_store = Store(backend, sweep_every=None)
        self.workers = list(workers)
        self.broker = broker
        self.intents = {scope: program for program in intents for scope in program.operations}
        self.sagas: dict[str, Saga[Any]] = {saga.scope: saga for saga in sagas}
        self.outbox = outbox or (self.store if isinstance(backend, OutboxBackend) else None)
        self.table = table
        self.queues, self.group = list(queues), group
        for url in metrics:
            if not url.startswith(("http://", "https://")):
                raise ConfigurationError(f"--metrics takes the http address of a worker's /metrics, not {show(url)!r}")
        self.metrics = list(metrics)
        self.audit = audit if audit is not None else AuditLog()
        self.dead_letter_queues = dict(self._dead_letter_queues(broker))
        self._discovered_scopes: list[str] = []

    def _dead_letter_queues(self, broker: Broker | None) -> Iterable[tuple[str, DeadLetterQueue]]:
        for worker in self.workers:
            for queue in worker.queues:
                yield f"{worker.name}/{queue}", DeadLetterQueue(worker, queue)
        for queue in self.queues:
            if broker is None:
                raise ConfigurationError(f"--queue {show(queue)} needs the broker that holds it: give --broker URL")
            yield f"{self.group}/{queue}", DeadLetterQueue(broker, queue, group=self.group)

    # -- scopes

    @property
    def scopes(self) -> list[str]:
        """The scopes of the programs, and those that were discovered in the store."""
        of_workers = [
            route.policy.scope for worker in self.workers if worker.store is not None for route in worker.routes
        ]
        return sorted({*of_workers, *self.intents, *self.sagas, *self._discovered_scopes})

    def discover_scopes(self) -> None:
        """Find the scopes in the store with one query each, where the store keeps records in order."""
        if not self.polling_store.capabilities.ordered:
            return
        scopes: list[str] = []
        after = ("", "")
        while len(scopes) < MAX_SCOPES:
            page = self.polling_store.list(limit=1, after=after)
            if not page.records:  # the end, or many expired records that wait for a sweep: the next poll gets further
                break
            scopes.append(page.records[0].scope)
            after = (scopes[-1] + AFTER_SCOPE, "")
        self._discovered_scopes = scopes

    def remember_scopes(self, records: Iterable[Record]) -> None:
        """Remember the scopes of these records, for stores in which scopes cannot be discovered."""
        new = {record.scope for record in records}.difference(self._discovered_scopes)
        if new and len(self._discovered_scopes) < MAX_SCOPES:
            self._discovered_scopes = [*self._discovered_scopes, *new]

    # -- records

    def search(self, key: str, scope: str, state: State | None, cursor: str | None) -> Page:
        """Return a page of records: all of a scope and state, those with a key, or for ``key*`` those with a prefix."""
        if not key:
            return self._list(scope or None, state, cursor)
        if not key.endswith("*"):
            scopes = [scope] if scope else self.scopes
            return Page([record for record in self._find_by_key(scopes, key) if state in (None, record.state)])
        prefix = key[:-1]
        if not self.store.capabilities.ordered:
            raise InvalidOption(
                f"{self.store.capabilities.name} keeps keys in no order: search for a whole key, without the *"
            )
        if not prefix:
            return self._list(scope or None, state, cursor)
        if scope:
            return self._find_by_prefix(prefix, scope, state, cursor)
        records: list[Record] = []
        for known_scope in self.scopes:
            records += self._find_by_prefix(prefix, known_scope, state, None).records
            if len(records) > PAGE_SIZE:
                break
        return Page(records[:PAGE_SIZE])

    def _list(
        self, scope: str | None, state: State | None, cursor: str | None, after: tuple[str, str] | None = None
    ) -> Page:
        """Return the first page with a record; after a time limit an empty one, since a rare state may be many pages
        away."""
        deadline = time.monotonic() + EMPTY_PAGES_TIMEOUT_S
        while True:
            page = self.store.list(scope=scope, state=state, limit=PAGE_SIZE, cursor=cursor, after=after)
            cursor = page.cursor
            if page.records or cursor is None or time.monotonic() > deadline:
                self.remember_scopes(page.records)
                return page

    def _find_by_key(self, scopes: Iterable[str], key: str) -> Iterable[Record]:
        for scope in scopes:
            record = self.store.get(scope, key)
            if record is None and self.privacy is not None:
                record = self.store.get(scope, self.privacy.hide(scope, key))
            if record is not None:
                yield record

    def _find_by_prefix(self, prefix: str, scope: str, state: State | None, cursor: str | None) -> Page:
        page = self._list(scope, state, cursor, after=(scope, prefix))
        records = [record for record in page.records if record.key.startswith(prefix)]
        next_cursor = page.cursor if len(records) == len(page.records) else None
        exact = self.store.get(scope, prefix) if cursor is None else None  # listing starts after the prefix itself
        if exact is not None and state in (None, exact.state):
            records.insert(0, exact)
        return Page(records, next_cursor)

    def log(self, record: Record) -> LoggedIntent | SagaLog | None:
        """Return the log of an intent or a saga. None if the record has none, if it is sealed and its
        program is not known, or if a newer release wrote it."""
        kind = kind_of(record.scope)
        if record.note is None or kind == "guard":
            return None
        program = self.intents.get(record.scope) or self.sagas.get(record.scope)
        try:
            note = read_listed_note(record, program.store.runtime.privacy if program is not None else None)
            return decode_intent_log(note) if kind == "intent" else decode_saga_log(note)
        except CorruptRecord:
            return None

    def timeline(self, record: Record) -> list[Moment]:
        """Return the moments of a record, oldest first."""
        place = repr(self.store.runtime.backend)
        return record_timeline(record, self.log(record), self._audit_entries(record), place)

    def _audit_entries(self, record: Record) -> list[AuditEntry]:
        """Return what operators did to a record, newest first. Of an action that was asked and then ended, only its end
        is returned. The command line names a saga by its own name and id, so both names are looked for."""
        targets = {format_target(scope, record.key) for scope in (record.scope, record.scope.removeprefix("saga/"))}
        entries: list[AuditEntry] = []
        ended: set[tuple[str, ...]] = set()
        for entry in self.audit.recent(MAX_AUDIT_ENTRIES):
            if entry.target in targets:
                action = (entry.action, entry.by, entry.detail, entry.place)
                if entry.outcome != ASKED_OUTCOME:
                    ended.add(action)
                elif action in ended:
                    ended.remove(action)
                    continue
                entries.append(entry)
        return entries

    # -- the outbox

    def outbox_stats(self) -> OutboxBacklog:
        return ask_outbox(self._require_outbox(), self.table, lambda port: port.stats())

    def outbox_rows(self, state: OutboxState, cursor: str | None) -> OutboxPage:
        return ask_outbox(self._require_outbox(), self.table, lambda port: port.list(state, PAGE_SIZE, cursor))

    def unpark(self, seqs: Sequence[int] | None) -> int:
        return unpark(self._require_outbox(), self.table, seqs)

    @property
    def outbox_name(self) -> str:
        """The audit log's name of the outbox."""
        return f"{self._require_outbox().runtime.backend!r} {self.table or 'outbox'}"

    def _require_outbox(self) -> Store:
        if self.outbox is None:
            raise ConfigurationError(f"{self.store!r} cannot hold an outbox; give --outbox URL of the one that does")
        return self.outbox

    # -- doctor

    def examine(self) -> list[DoctorFinding]:
        """Return doctor's findings, each once: a store that a program uses is examined with the program only."""
        programs: list[Worker | Intents] = [*self.workers, *dict.fromkeys(self.intents.values())]
        backends = {id(program.store.runtime.backend) for program in programs if program.store is not None}
        findings = examine(
            None if id(self.polling_store.runtime.backend) in backends else self.polling_store,
            broker=self.broker,
            queues=self.queues,
            group=self.group,
            programs=programs,
            outbox=self.table if self.outbox is self.store else None,
        )
        if self.outbox is not None and self.outbox is not self.store:
            of_outbox = examine(self.outbox, outbox=self.table)
            findings += [finding for finding in of_outbox if finding not in findings]
        return findings

    # -- closing

    def close(self) -> None:
        """Close our own handles, and those of the programs, which live in this process."""
        programs: list[Worker | Intents | Saga[Any]] = [*self.workers, *self.intents.values(), *self.sagas.values()]
        stores = [self.store, self.polling_store, self.outbox, *(program.store for program in programs)]
        brokers = [self.broker, *(worker.broker for worker in self.workers)]
        for handle in {handle for handle in (*stores, *brokers) if handle is not None}:
            handle.close()
