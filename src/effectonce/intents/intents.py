"""Intents: calls to outside APIs, which no transaction can hold.

    intents = eo.Intents(store, scope="billing")

    @intents.operation("stripe", "charge")
    def charge(intent: eo.Intent[Payment]) -> Receipt:
        return stripe.charge(intent.request, headers=intent.headers)

    charge(Payment("pay_1", 4200), key=message.key)

What is about to be done is written down and committed, then done under a key that stays the same, then what came of it
is written down. Whoever comes after a crash finds the request as it was frozen, how often it went out and when first,
and goes on from there: it sends again while the provider keeps the key, looks the effect up, or says that nobody knows.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from functools import partial
from typing import Any, Final, Literal

from msgspec import Struct

from effectonce.core.codec import Codec
from effectonce.core.guarded_call.run import Policy
from effectonce.core.interrupts import remember_signal_handlers
from effectonce.core.notes import note_in
from effectonce.core.operator_result import said
from effectonce.core.run_sync import run_sync
from effectonce.core.store_runtime import StoreClient, log
from effectonce.core.unfinished import AT_ONCE, Leftovers, never
from effectonce.errors import (
    ConfigurationError,
    CorruptRecord,
    InDoubt,
    InvalidOption,
    LeaseLost,
    NotInDoubt,
    PermanentFailure,
    ResultNotStored,
    Retryable,
    SchemaMissing,
    SyncAsyncMismatch,
    show,
)
from effectonce.guard.introspection import is_async, name_of, refuse_unguardable, return_type
from effectonce.guard.options import check_scope
from effectonce.intents import log as flow
from effectonce.providers import Provider, find
from effectonce.record import Record
from effectonce.sagas.log import told
from effectonce.store import Store, require_there
from effectonce.values.durations import Duration, micros, readable

from .log import Log, Terms
from .operations import Classifier, Operation, Reconciler, Req, request_type
from .operations import Intent as Intent
from .orphans import id_in, orphaned

FOREVER: Final = 3650 * 86_400_000_000
"""How long what is not finished is kept: until somebody knows."""

RETENTION: Final = "30d"
"""How long what is finished is kept, unless its operation says otherwise."""


Word = Literal["done", "retry", "abandon"]
"""What an operator may say."""


class Recovered(Struct, frozen=True):
    """What one recovery came to, by number of intents."""

    done: int = 0
    failed: int = 0
    in_doubt: int = 0
    later: int = 0  # still unknown, turned away, or being run by another
    broken: int = 0  # could not be gone on with: see the log


class Intents:
    """The intent log of one consumer: modes K (the provider keeps keys) and I (it does not).

    K: nothing is doubled and nothing silently lost inside the provider's window; past it an intent is in doubt, never
    sent blindly. I: nothing is doubled, and every ambiguous outcome is in doubt.
    """

    def __init__(self, store: Store, *, scope: str) -> None:
        check_scope(scope)
        self.store = store
        self.scope = scope
        self.operations: dict[str, Operation[Any, Any]] = {}
        self.classifiers: dict[str, Classifier] = {}
        self.reconcilers: dict[str, Reconciler] = {}
        self._leftovers: dict[str, Leftovers] = {}

    def operation(
        self,
        provider: str | Provider,
        name: str,
        *,
        window: Duration | None = None,
        margin: Duration = "5m",
        keyless: Literal["at-most-once", "at-least-once"] | None = None,
        lease: Duration = "30s",
        retention: Duration = RETENTION,
        wait: Duration | None = None,
        max_run: Duration = "1h",
        returns: Any = ...,
    ) -> Callable[[Callable[[Intent[Req]], Any]], Operation[Req, Any]]:
        """Make a function an operation: ``fn(intent)`` makes the call, with ``intent.request`` and its key.

        Named by provider and ``name``, so that a recovery in another process finds it. ``window`` is how long the
        provider keeps a key, where it does not say; resends end ``margin`` before. ``keyless`` is the choice for
        providers without keys: ``at-most-once``, or ``at-least-once`` at the risk of a second effect.
        """
        known = find(provider)
        kept = micros(window, "window") if window is not None else known.kept(name)
        if known.keyed and keyless is not None:
            raise ConfigurationError(f"{known.name} keeps keys; keyless= is for providers that do not")
        if known.keyed and kept is None:
            raise ConfigurationError(
                f"{known.name} does not say how long it keeps the keys of {name!r}; find out, and pass window="
            )
        if not known.keyed and keyless not in ("at-most-once", "at-least-once"):
            raise ConfigurationError(
                f"{known.name} keeps no keys: choose keyless='at-most-once' (what is ambiguous is in doubt) or "
                "'at-least-once' (it is sent again, and may happen twice)"
            )
        if known.keyed and known.limit < 36:
            raise ConfigurationError(f"{known.name} takes keys of {known.limit} characters; ours have 36")
        if kept is not None and kept <= micros(margin, "margin"):
            raise ConfigurationError(f"margin={margin!r} leaves nothing of a window of {readable(kept)}")

        def decorate(function: Callable[[Intent[Req]], Any]) -> Operation[Req, Any]:
            refuse_unguardable(function)
            scope = f"intents/{self.scope}/{known.name}/{name}"
            check_scope(scope)
            if scope in self.operations:
                raise ConfigurationError(f"{known.name} {name!r} is an operation already: {self.operations[scope]!r}")
            terms = Terms(
                provider=known.name,
                operation=name,
                scope=self.scope,
                keyed=known.keyed,
                window=kept or 0,
                margin=micros(margin, "margin"),
                repeats=keyless == "at-least-once",
            )
            policy = Policy(
                scope=scope,
                codec=Codec(return_type(function, returns), self.store.max_result),
                lease=micros(lease, "lease"),
                retention=micros(retention, "retention"),
                unfinished_retention=FOREVER,
                wait=None if wait is None else micros(wait, "wait") / 1e6,
                max_run=micros(max_run, "max_run") / 1e6,
                permanent=(Exception,),
            )
            made: Operation[Req, Any] = Operation(self, function, known, terms, policy, request_type(function))
            self.store.take_scope(scope, function)
            self.operations[scope] = made
            self._leftovers[scope] = Leftovers(self.store, scope)
            return made

        return decorate

    def classify(self, provider: str | Provider) -> Callable[[Classifier], Classifier]:
        """Make a function say what a response, or what was raised, means: a `Verdict`, or None for our own guess."""
        known = find(provider).name

        def register(function: Classifier) -> Classifier:
            if is_async(function):
                raise SyncAsyncMismatch(f"the classifier of {known} must be a plain def: {name_of(function)} is async")
            registered: Classifier = self._register(self.classifiers, known, function)
            return registered

        return register

    def reconcile(self, provider: str | Provider) -> Callable[[Reconciler], Reconciler]:
        """Make a function look an effect up: `Verdict.success` where it is there, ``not_executed`` where it is proven
        absent, else ``unknown``. Of the colour of the operations."""
        return partial(self._register, self.reconcilers, find(provider).name)

    def _register(self, where: dict[str, Any], name: str, function: Any) -> Any:
        if name in where:
            raise ConfigurationError(f"{name} has one already: {name_of(where[name])}")
        where[name] = function
        return function

    # -- recovery and people

    def recover(
        self, *, idle: Duration = "1m", limit: int | None = None, stop: Callable[[], bool] = never
    ) -> Recovered:
        """Go on with every intent that nobody has touched for ``idle``; with ``limit`` with so many, and the next call
        goes on from there. ``stop`` is asked before each: once it is true, the rest is left. Safe to run several at
        once, and beside the workers. Operations that are async are left to `arecover`. One that raises `SystemExit`, or
        is cancelled by itself, is unknown as after any error, and ends no other.

        One whose completion joins rows of its caller's (`Operation.send`) is not completed: what it gave is written
        down, and the delivery that writes the rows completes it. One of a saga's step is left to the saga, which may
        have turned around."""
        remember_signal_handlers()
        client = self.store.runtime.sync_client()
        ends: Counter[str] = Counter()
        for page in self._left_behind(idle, limit, is_async=False):
            ends.update(run_sync(self._gone_on(operation, record, client)) for operation, record in page if not stop())
            if stop():
                break
        return Recovered(**ends)

    async def arecover(
        self, *, idle: Duration = "1m", limit: int | None = None, stop: Callable[[], bool] = never
    ) -> Recovered:
        """`recover`, for async operations; several at a time."""
        remember_signal_handlers()
        client = self.store.runtime.async_client()
        ends: Counter[str] = Counter()
        pages = self._left_behind(idle, limit, is_async=True)
        while (page := await asyncio.to_thread(next, pages, None)) is not None:
            for at in range(0, len(page), AT_ONCE):
                if stop():
                    return Recovered(**ends)
                some = (self._gone_on(operation, record, client) for operation, record in page[at : at + AT_ONCE])
                ends.update(await asyncio.gather(*some))
        return Recovered(**ends)

    async def _gone_on(self, operation: Operation[Any, Any], record: Record, client: StoreClient) -> str:
        """What became of one intent: a name of `Recovered`. One that cannot be read keeps no other waiting."""
        try:
            about = self.log(record)
            if about.outcome is not None or about.within:
                return "later"
            return await _came_to(operation.gone_on(self.id_of(record), client))
        except Exception as error:
            log.warning("an intent in %s could not be recovered: %s", show(record.scope), show(told(error), 500))
            return "broken"

    def _left_behind(
        self, idle: Duration, limit: int | None, is_async: bool
    ) -> Iterator[list[tuple[Operation[Any, Any], Record]]]:
        untouched, left = micros(idle, "idle"), limit
        for scope, operation in self.operations.items():
            if operation.is_async is is_async and (left is None or left > 0 or left == limit):
                for page in self._leftovers[scope].pages(left, untouched):
                    if left is not None:
                        left -= len(page)
                    yield [(operation, record) for record in page]

    def id_of(self, record: Record) -> str:
        """What a record's intent is known by; with ``private=`` that is not the record's key."""
        if self.store.runtime.privacy is None:
            return record.key
        about, operation = self.log(record), self.operations.get(record.scope)
        if operation is not None:
            return operation.terms.id(about.key, about.account, about.step)
        id = id_in(record, self.scope, about, self.store)
        if id is None:
            raise CorruptRecord(f"the record {show(record.scope)} {show(record.key)} is none of these intents")
        return id

    def log(self, record: Record) -> Log:
        """What a record of an intent says: the request, how often it was sent, and when first."""
        return flow.read(note_in(record, self.store.runtime.privacy))

    def orphaned(self) -> list[str]:
        """The scopes of operations that are not known any more, and have intents that are not finished. They were
        renamed or removed: nobody goes on with what is left of them, and a new name sends again."""
        return orphaned(self.store, self.scope, self.operations, self.log)

    def get(self, id: str) -> Record | None:
        """The record of the intent ``id``, or None; also of an operation that is not known any more."""
        for scope in self.operations:
            if (record := self.store.get(scope, id)) is not None:
                return record
        return next((each for at in self.orphaned() if (each := self.store.get(at, id)) is not None), None)

    def in_doubt(self, limit: int = 100) -> list[Record]:
        """Up to ``limit`` intents that an operator has to decide, those of operations that are not known any more among
        them."""
        found: list[Record] = []
        for scope in self._doubtful():
            cursor: str | None = None
            while len(found) < limit:
                page = self.store.list(state="in_doubt", scope=scope, limit=limit - len(found), cursor=cursor)
                found += page.records
                cursor = page.cursor
                if cursor is None:
                    break
            if len(found) >= limit:
                break
        return found

    def _doubtful(self) -> Iterator[str]:
        """The scopes to look for doubts in."""
        yield from self.operations
        yield from orphaned(self.store, self.scope, self.operations, self.log, doubtful=True)

    def resolve(self, id: str, outcome: Word, *, result: Any = ..., who: str = "") -> None:
        """Decide an intent in doubt: it happened (``done``, with its result), send it again under a new key
        (``retry``), or give it up (``abandon``). The result is a value of the operation's type, or what reads as one:
        a dict for a class. `NotInDoubt` where it is not in doubt. That is an event and a line in the log, with ``who``
        decided it."""
        if outcome not in ("done", "retry", "abandon"):
            raise InvalidOption(
                f"resolve takes 'done', 'retry' or 'abandon', not {show(outcome)!r}; nothing was changed"
            )
        record = self.get(id)
        if record is None:
            raise NotInDoubt(
                f"no intent is known by {show(id)!r}; look at the list: effectonce intents list --in-doubt"
            )
        scope, operation = record.scope, self.operations.get(record.scope)
        if operation is None:
            self._decide_orphan(record, id, outcome, result)
        else:
            self._decide(operation, record, id, outcome, result)
        log.warning("intent %s (%s) was resolved as %s by %s", id, scope, outcome, who or "this program")
        self.store.runtime.emit("resolved", scope, id, detail=f"{outcome} by {who or 'this program'}")

    def _decide_orphan(self, record: Record, id: str, outcome: Word, result: Any) -> None:
        """Of an operation that is not known any more: nobody can send it, and nobody knows the type of its result."""
        if outcome != "abandon" and record.state == "in_doubt":  # else the store says that it is not
            joined = self.log(record).joined
            if outcome == "retry" or joined:
                words = "'abandon'" if joined else "'done' or 'abandon'"
                raise ConfigurationError(
                    f"intent {id}: no operation is known by {show(record.scope)} any more, so nobody can go on with "
                    f"it: give it its old name back, or say {words}; nothing was changed"
                )
        self.store.resolve(record.scope, id, outcome, result=result, retention=RETENTION, quiet=True)

    def _decide(self, operation: Operation[Any, Any], record: Record, id: str, outcome: Word, result: Any) -> None:
        policy, scope = operation.policy, operation.scope
        stored: bytes | None = None
        if outcome == "done" and result is not ...:
            result, stored = said(policy.codec, result, scope.partition("/")[2])
        if outcome == "abandon" or not self.log(record).joined:
            kept = policy.hold if outcome == "retry" else policy.retention
            self.store.resolve(scope, id, outcome, result=result, retention=kept / 1e6, quiet=True)
            return
        if outcome == "done" and stored is None:
            raise ConfigurationError(
                f"intent {id} is completed with rows of its caller's, which need its result: say 'done' with it"
            )
        self.store.resolve(scope, id, "retry", retention=policy.hold / 1e6, quiet=True)
        run_sync(operation.decided(id, self.store.runtime.sync_client(), stored if outcome == "done" else None))

    def check(self, redelivery: Duration) -> None:
        """`ConfigurationError` where a message may come again after its provider has dropped the key, and nobody can
        look the effect up, or after the record is gone; or where an operation was renamed or removed and left what is
        not finished. ``redelivery``: how long the broker may still deliver it."""
        longest = micros(redelivery, "redelivery")
        for operation in self.operations.values():
            terms, kept = operation.terms, operation.policy.retention
            operation.require_colour()
            if kept < longest:
                raise ConfigurationError(
                    f"{operation!r} keeps what is done for {readable(kept)}, and messages may come again for "
                    f"{readable(longest)}: it would be sent again; lengthen retention="
                )
            if terms.keyed and terms.window - terms.margin < longest and not operation.has_reconciler:
                raise ConfigurationError(
                    f"{terms.provider} keeps keys for {readable(terms.window)}, and messages may come again for "
                    f"{readable(longest)}: add a reconciler (@intents.reconcile({terms.provider!r})), or shorten that"
                )
        self._tell_of_orphans()

    def _tell_of_orphans(self) -> None:
        backend = self.store.runtime.backend
        try:
            require_there(backend, "")
            # Not what the release before is just sending: a rolling deploy would wait for it, and it for the deploy.
            left = orphaned(self.store, self.scope, self.operations, self.log, left=True)
        except SchemaMissing:  # then nothing is left either
            return
        except Retryable as error:
            log.warning("whether renamed operations have left anything could not be looked up: %s", error)
            return
        if left:
            names = ", ".join(show(each.partition("/")[2]) for each in left[:5])
            log.warning(
                "%s%s left intents that are not finished, and this program has no such operation. If another one has "
                "it, all is well; if it was renamed or removed, nobody goes on with them, and under a new name they "
                "are sent again: keep the old name until they are finished (effectonce intents list)",
                names,
                " and more" if len(left) > 5 else "",
            )


async def _came_to(through: Awaitable[tuple[Any, BaseException | None]]) -> str:
    """What a recovery of one intent came to: a name of `Recovered`."""
    try:
        _, error = await through
    except (Retryable, InDoubt, LeaseLost, PermanentFailure, ResultNotStored) as told:
        error = told
    if error is None or isinstance(error, ResultNotStored):
        return "done"
    if isinstance(error, InDoubt):
        return "in_doubt"
    return "later" if isinstance(error, Retryable | LeaseLost) else "failed"
