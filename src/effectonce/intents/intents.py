"""`Intents`: calls to outside APIs, which no transaction can hold.

    intents = eo.Intents(store, scope="billing")

    @intents.operation("stripe", "charge")
    def charge(intent: eo.Intent[Payment]) -> Receipt:
        return stripe.charge(intent.request, headers=intent.headers)

    charge(Payment("pay_1", 4200), key=message.key)

The intent is committed, then the call is made under a key that stays the same, then its outcome is committed. The
process that resumes it after a crash finds the request as it was frozen, how often it was sent and when first. It sends
again while the provider keeps the key, looks the effect up, or puts the intent in doubt.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from functools import partial
from itertools import islice
from typing import Any, Final, Literal, TypeVar, overload

from effectonce.core.claim_notes import read_listed_note
from effectonce.core.codec import Codec
from effectonce.core.guarded_call.run import Policy
from effectonce.core.unfinished import never_stop
from effectonce.errors import (
    ConfigurationError,
    CorruptRecord,
    InvalidOption,
    NotInDoubt,
    Retryable,
    SchemaMissing,
    SyncAsyncMismatch,
    show,
)
from effectonce.guard.introspection import is_async, name_of, refuse_unguardable, return_type
from effectonce.guard.options import UNFINISHED_RETENTION_US, check_scope, policy_options
from effectonce.providers import Provider, find_provider
from effectonce.record import Record
from effectonce.store import Store, require_existing, require_store
from effectonce.values.durations import Duration, micros, span_text
from effectonce.values.scopes import INTENT_PREFIX

from .decisions import DEFAULT_RETENTION, IntentDecision, apply_decision
from .logged_intent import LoggedIntent, decode_log
from .operation import Classifier, Intent, IntentOperation, Reconciler, Req, Res
from .orphans import find_orphaned_scopes, list_records, rebuild_id
from .recovery import IntentRecovery, RecoveryCounts
from .resend_rules import ResendRules

logger = logging.getLogger("effectonce")

F = TypeVar("F")

_KEY_LENGTH: Final = 36  # characters of our keys, which a provider has to take


class Intents:
    """The intent log of one consumer: modes K (the provider keeps keys) and I (it does not).

    K: nothing is doubled and nothing silently lost inside the provider's window; past it an intent is in doubt, never
    sent blindly. I: nothing is doubled, and every ambiguous outcome is in doubt.
    """

    def __init__(self, store: Store, *, scope: str) -> None:
        require_store(store, "Intents({}, …)")
        check_scope(scope)
        self.store = store
        self.scope = scope
        self.operations: dict[str, IntentOperation[Any, Any]] = {}
        self.classifiers: dict[str, Classifier] = {}
        self.reconcilers: dict[str, Reconciler] = {}
        self._recovery = IntentRecovery(self)

    @overload
    def operation(
        self,
        provider: str | Provider,
        name: str,
        *,
        window: Duration | None = None,
        margin: Duration = "5m",
        without_key: Literal["at-most-once", "at-least-once"] | None = None,
        lease: Duration = "30s",
        retention: Duration = DEFAULT_RETENTION,
        wait: Duration | None = None,
        max_run: Duration = "1h",
    ) -> Callable[[Callable[[Intent[Req]], Res]], IntentOperation[Req, Res]]: ...
    @overload
    def operation(
        self,
        provider: str | Provider,
        name: str,
        *,
        returns: Any,
        window: Duration | None = None,
        margin: Duration = "5m",
        without_key: Literal["at-most-once", "at-least-once"] | None = None,
        lease: Duration = "30s",
        retention: Duration = DEFAULT_RETENTION,
        wait: Duration | None = None,
        max_run: Duration = "1h",
    ) -> Callable[[Callable[[Intent[Req]], Any]], IntentOperation[Req, Any]]: ...
    def operation(
        self,
        provider: str | Provider,
        name: str,
        *,
        window: Duration | None = None,
        margin: Duration = "5m",
        without_key: Literal["at-most-once", "at-least-once"] | None = None,
        lease: Duration = "30s",
        retention: Duration = DEFAULT_RETENTION,
        wait: Duration | None = None,
        max_run: Duration = "1h",
        returns: Any = ...,
    ) -> Callable[[Callable[[Intent[Req]], Any]], IntentOperation[Req, Any]]:
        """Make a function an operation: ``fn(intent)`` makes the call, with ``intent.request`` and its key.

        Provider and ``name`` identify it, so that a recovery in another process finds it. ``window`` is how long the
        provider keeps a key, if it does not say; resends end ``margin`` before that. ``without_key`` is your choice for
        a provider without keys: ``at-most-once``, or ``at-least-once`` at the risk of a second effect.
        The result has the type of the function's annotation. ``returns`` is its type where a classifier makes it of
        what the function returns; type checkers take it for Any then.
        """
        known, margin_us = find_provider(provider), micros(margin, "margin")
        key_window = micros(window, "window") if window is not None else known.window_of(name)
        if known.keyed and without_key is not None:
            raise ConfigurationError(f"{known.name} keeps keys; without_key= is for providers that do not")
        if known.keyed and key_window is None:
            raise ConfigurationError(
                f"{known.name} does not say how long it keeps the keys of {name!r}; find out, and pass window="
            )
        if not known.keyed and without_key not in ("at-most-once", "at-least-once"):
            raise ConfigurationError(
                f"{known.name} keeps no keys: choose without_key='at-most-once' (ambiguous outcomes are in doubt) or "
                "'at-least-once' (it is sent again, and may happen twice)"
            )
        if known.keyed and known.limit < _KEY_LENGTH:
            raise ConfigurationError(f"{known.name} takes keys of {known.limit} characters; ours have {_KEY_LENGTH}")
        if key_window is not None and key_window <= margin_us:
            raise ConfigurationError(
                f"margin={margin!r} leaves nothing of a window of {span_text(key_window)}; give a shorter margin="
            )
        scope = f"{INTENT_PREFIX}{self.scope}/{known.name}/{name}"
        check_scope(scope)
        rules = ResendRules(
            provider=known.name,
            operation=name,
            scope=self.scope,
            keyed=known.keyed,
            window_us=key_window or 0,
            margin_us=margin_us,
            may_repeat=without_key == "at-least-once",
        )
        options = policy_options(lease=lease, retention=retention, wait=wait, max_run=max_run, permanent=(Exception,))

        def decorate(function: Callable[[Intent[Req]], Any]) -> IntentOperation[Req, Any]:
            refuse_unguardable(function)
            if scope in self.operations:
                raise ConfigurationError(f"{known.name} {name!r} is an operation already: {self.operations[scope]!r}")
            codec = Codec(return_type(function, returns), self.store.max_result)
            policy = Policy(scope=scope, codec=codec, unfinished_retention_us=UNFINISHED_RETENTION_US, **options)
            operation: IntentOperation[Req, Any] = IntentOperation(self, function, known, rules, policy)
            self.store.take_scope(scope, function)
            self.operations[scope] = operation
            return operation

        return decorate

    def classify(self, provider: str | Provider) -> Callable[[Classifier], Classifier]:
        """Make a function the classifier of ``provider``: it gets a response or an error, and returns a `Verdict`, or
        None for the built-in classification."""
        known = find_provider(provider).name

        def register(function: Classifier) -> Classifier:
            if is_async(function):
                raise SyncAsyncMismatch(f"the classifier of {known} must be a plain def: {name_of(function)} is async")
            return self._register(self.classifiers, "classifier", known, function)

        return register

    def reconcile(self, provider: str | Provider) -> Callable[[Reconciler], Reconciler]:
        """Make a function the reconciler of ``provider``: it looks an effect up, and returns `Verdict.success` if it
        happened, ``not_executed`` if it is proven absent, ``pending`` if it has to be asked again later, and otherwise
        ``unknown``. It is async if the operations are."""
        return partial(self._register, self.reconcilers, "reconciler", find_provider(provider).name)

    def _register(self, registry: dict[str, F], role: str, provider: str, function: F) -> F:
        if provider in registry:
            raise ConfigurationError(f"{provider} has a {role} already: {name_of(registry[provider])}")
        registry[provider] = function
        return function

    # -- recovery

    def recover(
        self, *, idle: Duration = "1m", limit: int | None = None, stop: Callable[[], bool] = never_stop
    ) -> RecoveryCounts:
        """Resume every unfinished intent that has not changed for ``idle``. With ``limit``, resume so many, and the
        next call continues there. ``stop`` is asked before each: once it returns True, the rest is left. It is safe
        to run several at once, and beside the workers. Async operations are left to `arecover`. An operation that
        raises `SystemExit`, or is cancelled by itself, is unknown as after any error, and does not end the others.

        A transactional intent (`IntentOperation.send`) is not completed: its result is recorded, and the delivery that
        writes its rows completes it. An intent of a saga's step is left to the saga, which may have turned around."""
        return self._recovery.recover(micros(idle, "idle"), limit, stop)

    async def arecover(
        self, *, idle: Duration = "1m", limit: int | None = None, stop: Callable[[], bool] = never_stop
    ) -> RecoveryCounts:
        """`recover`, for async operations; several at a time."""
        return await self._recovery.arecover(micros(idle, "idle"), limit, stop)

    # -- for operators

    def id_of(self, record: Record) -> str:
        """Return the id of a record's intent; with ``private=`` the record's key is a hash of it."""
        if self.store.runtime.privacy is None:
            return record.key
        log, operation = self.log(record), self.operations.get(record.scope)
        if operation is not None:
            return operation.rules.intent_id(log.key, log.account, log.step)
        id = rebuild_id(self, record)
        if id is None:
            raise CorruptRecord(f"the record {show(record.scope)} {show(record.key)} does not belong to these intents")
        return id

    def log(self, record: Record) -> LoggedIntent:
        """Read the log of an intent's record: the request, how often it was sent, and when first."""
        return decode_log(read_listed_note(record, self.store.runtime.privacy))

    def orphaned_scopes(self) -> list[str]:
        """List the scopes that have unfinished intents but no operation any more: it was renamed or removed. No process
        resumes these intents, and under a new name they are sent again."""
        return find_orphaned_scopes(self)

    def get(self, id: str) -> Record | None:
        """Return the record of the intent ``id``, or None; orphaned intents included."""
        records = (self.store.get(scope, id) for scope in self._scopes())
        return next((record for record in records if record is not None), None)

    def in_doubt(self, limit: int = 100) -> list[Record]:
        """List up to ``limit`` intents that an operator has to decide; orphaned intents included."""
        records = (
            record
            for scope in self._scopes(in_doubt_only=True)
            for record in list_records(self.store, limit, state="in_doubt", scope=scope)
        )
        return list(islice(records, max(0, limit)))

    def _scopes(self, in_doubt_only: bool = False) -> Iterator[str]:
        """Iterate over the scopes of all operations, and then over the orphaned ones, which take a walk to find."""
        yield from self.operations
        yield from find_orphaned_scopes(self, in_doubt_only=in_doubt_only)

    def resolve(self, id: str, outcome: IntentDecision, *, result: Any = ..., who: str = "") -> None:
        """Decide an intent in doubt: it happened (``done``, with its result), it is sent again under a new key
        (``retry``), or it is given up (``abandon``). The result is a value of the operation's type, or JSON that
        decodes as one: a dict for a class. Raises `NotInDoubt` where it is not in doubt. The decision, and ``who`` made
        it, is emitted and logged."""
        if outcome not in ("done", "retry", "abandon"):
            raise InvalidOption(
                f"resolve takes 'done', 'retry' or 'abandon', not {show(outcome)!r}; nothing was changed"
            )
        record = self.get(id)
        if record is None:
            raise NotInDoubt(f"there is no intent {show(id)!r}; see effectonce intents list --in-doubt")
        apply_decision(self, record, id, outcome, result)
        who = who or "this program"
        logger.warning("intent %s (%s) was resolved as %s by %s", id, record.scope, outcome, who)
        self.store.runtime.emit("resolved", record.scope, id, detail=f"{outcome} by {who}")

    # -- start-up checks

    def check(self, redelivery: Duration) -> None:
        """Raise `ConfigurationError` where a message may be delivered again after its record is deleted, or after its
        provider has dropped the key and no reconciler can look the effect up. Warn of operations that were renamed or
        removed and left unfinished intents. ``redelivery``: how long the broker may still deliver a message."""
        horizon = micros(redelivery, "redelivery")
        for operation in self.operations.values():
            rules, retention = operation.rules, operation.policy.retention_us
            operation.check_reconciler()
            if retention < horizon:
                raise ConfigurationError(
                    f"{operation!r} keeps finished intents for {span_text(retention)}, and messages may be redelivered "
                    f"for {span_text(horizon)}: it would be sent again; lengthen retention="
                )
            if rules.keyed and rules.window_us - rules.margin_us < horizon and operation.reconciler is None:
                raise ConfigurationError(
                    f"{rules.provider} keeps keys for {span_text(rules.window_us)}, and messages may be redelivered "
                    f"for {span_text(horizon)}: add a reconciler (@intents.reconcile({rules.provider!r})), "
                    "or shorten the time of redelivery"
                )
        self._warn_of_orphans()

    def _warn_of_orphans(self) -> None:
        try:
            require_existing(self.store.runtime.backend, "")
            # Without those that the previous release is sending now: it and a rolling deploy would wait for each other.
            orphaned = find_orphaned_scopes(self, unleased_only=True)
        except SchemaMissing:  # then there are no intents either
            return
        except Retryable as error:
            logger.warning("could not look for intents of renamed operations: %s", error)
            return
        if orphaned:
            names = ", ".join(show(scope.partition("/")[2]) for scope in orphaned[:5])
            logger.warning(
                "%s%s left unfinished intents, and this program has no such operation. If another program has it, all "
                "is well; if it was renamed or removed, no process resumes them, and under a new name they are sent "
                "again: keep the old name until they are finished (effectonce intents list)",
                names,
                " and more" if len(orphaned) > 5 else "",
            )
