"""The sources of the dashboard: a store, and the broker, outbox and programs that were named beside it."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final

from effectonce.broker import Broker
from effectonce.contracts import InboxBackend, OutboxBackend
from effectonce.contracts.outbox import OutboxBacklog, OutboxPage, OutboxState
from effectonce.core.claim_notes import read_listed_note
from effectonce.dead_letters.queue import DeadLetterQueue
from effectonce.display.formatting import format_target
from effectonce.display.state_filters import StateFilter
from effectonce.display.timeline import Moment, record_timeline
from effectonce.doctor import DoctorReport, examine
from effectonce.errors import ConfigurationError, CorruptRecord, InvalidOption, show
from effectonce.intents.intents import Intents
from effectonce.intents.logged_intent import LoggedIntent
from effectonce.intents.logged_intent import decode_log as decode_intent_log
from effectonce.record import Page, Record
from effectonce.relay.relay import ask_outbox, unpark
from effectonce.sagas.log import SagaLog
from effectonce.sagas.log import decode_log as decode_saga_log
from effectonce.sagas.saga import Saga
from effectonce.search.matches import PlaceResult
from effectonce.search.records import MAX_SCOPES, discover_scopes, list_longer_keys
from effectonce.search.search import NO_QUEUES, SearchPlaces, search
from effectonce.store import Store
from effectonce.telemetry.audit_log import ASKED_OUTCOME, AuditEntry, AuditLog
from effectonce.values.key_term import KeyTerm
from effectonce.values.provider_keys import provider_key
from effectonce.values.scopes import INTENT_PREFIX, SAGA_PREFIX, kind_of_scope
from effectonce.worker.worker import Worker

PAGE_SIZE: Final = 50
EMPTY_PAGES_TIMEOUT_S: Final = 0.04
"""How long a search skips empty pages. After that it returns an empty page with a cursor."""
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
        inbox: Store | None = None,
        inbox_table: str | None = None,
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
        self.inbox = inbox or (self.store if isinstance(backend, InboxBackend) else None)
        self.inbox_table = inbox_table or next((worker.inbox.table_name for worker in workers if worker.inbox), None)
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
        if self.polling_store.capabilities.ordered:
            self._discovered_scopes, _ = discover_scopes(self.polling_store)

    def remember_scopes(self, records: Iterable[Record]) -> None:
        """Remember the scopes of these records, for stores in which scopes cannot be discovered."""
        new = {record.scope for record in records}.difference(self._discovered_scopes)
        if new and len(self._discovered_scopes) < MAX_SCOPES:
            self._discovered_scopes = [*self._discovered_scopes, *new]

    # -- everything by key

    def find(self, text: str) -> list[PlaceResult]:
        """Search for ``text`` in the records, the inbox, the outbox and the dead letters."""
        no_queues = "" if self.dead_letter_queues or self.broker is None else NO_QUEUES
        places = SearchPlaces(
            self.store,
            inbox=self.inbox,
            inbox_table=self.inbox_table,
            outbox=self.outbox,
            outbox_table=self.table,
            queues=self.dead_letter_queues,
            no_queues=no_queues,
            scopes=self.scopes,
            privacy=self.privacy,
        )
        return search(text, places)

    # -- records

    def search(
        self, key: str, scope: str, choice: StateFilter | None, cursor: str | None, *, newest_first: bool = True
    ) -> Page:
        """Return a page of records: all of a scope and state, or those whose key contains ``key``. The first page
        begins with those that have this very key, also as the key of an intent. ``key*`` finds those whose key begins
        so, in the order of their keys.

        Those that changed last come first; without ``newest_first`` the order is the store's, and no page is partial.
        """
        if key.endswith("*") and len(key) > 1:
            return self._search_prefix(key[:-1], scope, choice, cursor)
        key = key.removesuffix("*")
        exact: list[Record] = []
        if key and cursor is None:
            exact = [record for record in self._find_by_key(scope, key) if choice is None or choice.matches(record)]

        def list_page(cursor: str | None) -> Page:
            page = self.store.list(
                scope=scope or None,
                state=choice.state if choice is not None else None,
                limit=PAGE_SIZE,
                cursor=cursor,
                newest_first=newest_first,
                key_contains=key if newest_first else "",
            )
            return Page([record for record in page.records if key in record.key], page.cursor, page.partial)

        page = self._skip_empty_pages(list_page, choice, cursor)
        shown = {(record.scope, record.key) for record in exact}
        others = [record for record in page.records if (record.scope, record.key) not in shown]
        return Page([*exact, *others], page.cursor, page.partial)

    def _skip_empty_pages(
        self, list_page: Callable[[str | None], Page], choice: StateFilter | None, cursor: str | None
    ) -> Page:
        """Return the first page with a record of ``choice``; after a time limit an empty one, since a rare state may be
        many pages away."""
        deadline = time.monotonic() + EMPTY_PAGES_TIMEOUT_S
        while True:
            page = list_page(cursor)
            records = [record for record in page.records if choice is None or choice.matches(record)]
            cursor = page.cursor
            if records or cursor is None or time.monotonic() > deadline:
                self.remember_scopes(records)
                return Page(records, cursor, page.partial)

    def _find_by_key(self, scope: str, key: str) -> Iterable[Record]:
        for known_scope in [scope] if scope else self.scopes:
            for stored_key in self._stored_keys(known_scope, key):
                record = self.store.get(known_scope, stored_key)
                if record is not None:
                    yield record

    def _stored_keys(self, scope: str, key: str) -> Iterable[str]:
        """Return what ``key`` may be stored as: itself; of an intent its id, which is a hash of its names and its key;
        and either one hidden, in a private store."""
        keys = [key]
        if kind_of_scope(scope) == "intent":
            keys.append(self._intent_id(scope, key))
        if self.privacy is not None:
            keys += [self.privacy.hide(scope, text) for text in keys]
        return keys

    def _intent_id(self, scope: str, key: str) -> str:
        """Return the id of the intent ``key``, of no account and outside of a saga."""
        program = self.intents.get(scope)
        if program is not None:
            return program.operations[scope].rules.intent_id(key, "", "")
        names, _, operation = scope.removeprefix(INTENT_PREFIX).rpartition("/")
        program_scope, _, provider = names.rpartition("/")
        return provider_key(provider, "", program_scope, operation, key, "")

    def _search_prefix(self, prefix: str, scope: str, choice: StateFilter | None, cursor: str | None) -> Page:
        if not self.store.capabilities.ordered:
            raise InvalidOption(
                f"{self.store.capabilities.name} keeps keys in no order: leave out the * to find it anywhere in a key"
            )
        if scope:
            return self._find_by_prefix(prefix, scope, choice, cursor)
        records: list[Record] = []
        for known_scope in self.scopes:
            records += self._find_by_prefix(prefix, known_scope, choice, None).records
            if len(records) > PAGE_SIZE:
                break
        return Page(records[:PAGE_SIZE])

    def _find_by_prefix(self, prefix: str, scope: str, choice: StateFilter | None, cursor: str | None) -> Page:
        term, state = KeyTerm(prefix, is_prefix=True), choice.state if choice is not None else None

        def list_page(cursor: str | None) -> Page:
            return list_longer_keys(self.store, scope, term, limit=PAGE_SIZE, cursor=cursor, state=state)

        page = self._skip_empty_pages(list_page, choice, cursor)
        exact = self.store.get(scope, prefix) if cursor is None else None  # it is not longer than the prefix
        if exact is not None and (choice is None or choice.matches(exact)):
            page.records.insert(0, exact)
        return page

    def log(self, record: Record) -> LoggedIntent | SagaLog | None:
        """Return the log of an intent or a saga. None if the record has none, if it is sealed and its
        program is not known, or if a newer release wrote it."""
        kind = kind_of_scope(record.scope)
        if record.note is None or kind == "guard":
            return None
        program = self.intents.get(record.scope) or self.sagas.get(record.scope)
        try:
            note = read_listed_note(record, program.store.runtime.privacy if program is not None else None)
            return decode_intent_log(note) if kind == "intent" else decode_saga_log(note)
        except CorruptRecord:
            return None

    def business_key(self, record: Record) -> str:
        """Return the key that the program gave: of an intent that of its log, which is part of its request."""
        log = self.log(record)
        return log.key if isinstance(log, LoggedIntent) else record.key

    def timeline(self, record: Record) -> list[Moment]:
        """Return the moments of a record, oldest first."""
        place = repr(self.store.runtime.backend)
        return record_timeline(record, self.log(record), self._audit_entries(record), place)

    def _audit_entries(self, record: Record) -> list[AuditEntry]:
        """Return what operators did to a record, newest first. Of an action that was asked and then ended, only its end
        is returned. The command line names a saga by its own name and id, so both names are looked for."""
        targets = {format_target(scope, record.key) for scope in (record.scope, record.scope.removeprefix(SAGA_PREFIX))}
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

    def examine(self) -> DoctorReport:
        """Return doctor's checks, each once: a store that a program uses is examined with the program only."""
        programs: list[Worker | Intents] = [*self.workers, *dict.fromkeys(self.intents.values())]
        backends = {id(program.store.runtime.backend) for program in programs if program.store is not None}
        report = examine(
            None if id(self.polling_store.runtime.backend) in backends else self.polling_store,
            broker=self.broker,
            queues=self.queues,
            group=self.group,
            programs=programs,
            outbox=self.table if self.outbox is self.store else None,
        )
        if self.outbox is None or self.outbox is self.store:
            return report
        of_outbox = examine(self.outbox, outbox=self.table)
        return DoctorReport(report.checks + [check for check in of_outbox.checks if check not in report.checks])

    # -- closing

    def close(self) -> None:
        """Close our own handles, and those of the programs, which live in this process."""
        programs: list[Worker | Intents | Saga[Any]] = [*self.workers, *self.intents.values(), *self.sagas.values()]
        stores = [self.store, self.polling_store, self.outbox, self.inbox, *(program.store for program in programs)]
        brokers = [self.broker, *(worker.broker for worker in self.workers)]
        for handle in {handle for handle in (*stores, *brokers) if handle is not None}:
            handle.close()
