"""`IntentOperation`: one operation of an outside API. Its request is frozen, sent, classified and settled.

Written once for sync and async operations: everything that waits goes through the `Side`.
"""

from __future__ import annotations

import typing
from collections.abc import Callable
from typing import Any, Final, Generic, Protocol, TypeVar

from msgspec import Struct
from msgspec.structs import replace

from effectonce.core.codec import Codec, Unstorable
from effectonce.core.drive import drive
from effectonce.core.ends import ended_itself
from effectonce.core.engine import Side
from effectonce.core.error_text import describe_error
from effectonce.core.flow import Policy, Run, begin, leave, prepare, running, stored_result
from effectonce.core.notes import seal_note
from effectonce.errors import (
    ConfigurationError,
    CorruptRecord,
    InDoubt,
    OutcomeUnknown,
    PermanentFailure,
    Retryable,
    StoreUnavailable,
    SyncAsyncMismatch,
    show,
)
from effectonce.guard.introspection import LAZY, is_async, name_of, refuse_lazy
from effectonce.guard.once import Outcome
from effectonce.intents import log as intent_log
from effectonce.providers import Provider, Verdict, classify
from effectonce.store import Store
from effectonce.values.fingerprint import fingerprints
from effectonce.values.identity import Key, encode_key

from .log import LoggedIntent, ResendRules
from .transactional import Completion, Sent

Req = TypeVar("Req")
Res = TypeVar("Res")

Classifier = Callable[[Any], "Verdict | None"]
Reconciler = Callable[["Intent[Any]"], Any]

MAX_REQUEST_BYTES: Final = 256 * 1024


class IntentRegistry(Protocol):
    """The parts of its `Intents` that an operation needs."""

    store: Store
    classifiers: dict[str, Classifier]
    reconcilers: dict[str, Reconciler]


class Intent(Struct, Generic[Req], frozen=True, kw_only=True):
    """The argument of an operation's function: the request as it was frozen, and the key to send with it."""

    id: str
    provider: Provider
    operation: str
    account: str
    key: str
    step: str
    request: Req
    #: The same for every send of this effect; a new one after an operator's retry.
    provider_key: str
    #: The number of this send, from 1.
    send_count: int

    @property
    def headers(self) -> dict[str, str]:
        """The key as a header; empty where the provider does not take it in one."""
        return {self.provider.field: self.provider_key} if self.provider.carrier == "header" else {}

    def __repr__(self) -> str:
        """Without the request, which may hold a card's number or a password."""
        return f"<intent {self.id} {self.provider.name} {show(self.operation)}, send {self.send_count}>"


class IntentOperation(Generic[Req, Res]):
    """A function under `Intents.operation`: called with a request and a key, it happens once."""

    def __init__(
        self,
        intents: IntentRegistry,
        function: Callable[..., Any],
        provider: Provider,
        rules: ResendRules,
        policy: Policy,
        request: Any,
    ) -> None:
        self._intents = intents
        self._function = function
        self.is_async = is_async(function)
        self.provider = provider
        self.rules = rules
        self.policy = policy
        self._requests = Codec(request, MAX_REQUEST_BYTES)

    @property
    def scope(self) -> str:
        """The scope of this operation's records."""
        return self.policy.scope

    @property
    def has_reconciler(self) -> bool:
        return self.provider.name in self._intents.reconcilers

    def __call__(self, request: Req, *, key: Key, account: str = "", step: str = "") -> Res:
        """Do it once for ``key``. Await it if the function is async."""
        return self._execute(self._prepare_new(request, key, account, step), _take_value)  # type: ignore[no-any-return]

    def call(self, request: Req, *, key: Key, account: str = "", step: str = "") -> Outcome[Res]:
        """Do it once for ``key`` and return an `Outcome`. Await it if the function is async."""
        return self._execute(self._prepare_new(request, key, account, step), _make_outcome)  # type: ignore[no-any-return]

    def send(self, request: Req, *, key: Key, account: str = "", step: str = "") -> Sent[Res]:
        """Do it once for ``key``, and complete it in your own transaction: ``with charge.send(…) as sent:``."""
        return Sent(self, self._prepare_new(request, key, account, step, transactional=True))

    # -- one intent

    def _prepare_new(self, request: Req, key: Key, account: str, step: str, transactional: bool = False) -> Run:
        """Prepare the run of an intent that may be new, unclaimed. Raises `ConfigurationError` where the request
        cannot be stored."""
        try:
            body = self._requests.encode(request)
        except Unstorable as error:
            raise ConfigurationError(f"this request cannot be stored: {error}; nothing was sent") from error
        name = encode_key(key)
        run = self._prepare(self.rules.intent_id(name, account, step), fingerprints(request))
        log = LoggedIntent(body, name, account, step, transactional=transactional, in_saga=run.keeps > 0)
        run.note = seal_note(run, intent_log.encode_log(log))
        return run

    def _prepare(self, id: str, prints: bytes = b"") -> Run:
        engine = self._intents.store.engine
        if not engine.backend.capabilities.notes:
            raise ConfigurationError(
                f"{engine.backend!r} keeps no notes, which intents need; use sqlite://, postgresql:// or mysql://"
            )
        self.check_reconciler()
        return prepare(engine, self.policy, id, prints)

    def check_reconciler(self) -> None:
        """Raise `SyncAsyncMismatch` where one of the function and its provider's reconciler is async and one is not."""
        reconciler = self._intents.reconcilers.get(self.provider.name)
        if reconciler is not None and is_async(reconciler) != self.is_async:
            kind = "async def" if self.is_async else "a plain def"
            raise SyncAsyncMismatch(f"the reconciler of {self.provider.name} must be {kind}, as {self!r} is")

    def _execute(self, run: Run, finish: Callable[[Run, Any], Any]) -> Any:
        """Run the intent and return ``finish(run, value)``; a coroutine of it if the function is async."""
        if self.is_async:
            return self._execute_async(run, finish)
        value, error = drive(self.run_intent(run, run.engine.sync_side()))
        if error is not None:
            raise error
        return finish(run, value)

    async def _execute_async(self, run: Run, finish: Callable[[Run, Any], Any]) -> Any:
        value, error = await self.run_intent(run, run.engine.async_side())
        if error is not None:
            raise error
        return finish(run, value)

    async def run_intent(
        self, run: Run, side: Side, completion: Completion = "record"
    ) -> tuple[Any, BaseException | None]:
        """Run an intent from its claim to its settlement. With ``completion="leave"`` a success is not settled.

        In a recovery, a function that ends itself (`sys.exit`) leaves an unknown outcome instead of ending the process.

        Errors of the user's functions are returned, since a StopIteration must not pass through a coroutine.
        """
        recovering = completion == "recover"
        left_to_caller = False
        began = run.sent_at = run.started_at = run.engine.monotonic()  # it may have been prepared long ago
        try:
            pending = begin(run, side)
            if pending is not None:
                await pending
            if run.replayed:
                return run.value, None
            running.set(run)
            log = intent_log.read_log(run)
            request, verdict = await self._read_request(run, side, log)
            if verdict is None:
                verdict = await self._reconcile(run, side, log, request, began, recovering)
            error: Exception | None = None
            if verdict is None:
                await intent_log.record_send(run, side, log, self.rules, began)
                value, error = await self._call(self._function, run, side, log, request, recovering)
                try:
                    verdict = self._classify(value if error is None else error, log)
                except BaseException as interruption:
                    await self._leave_interrupted(run, side, log, interruption, recovering)
                    raise
            if verdict.kind == "success" and completion == "leave":
                left_to_caller = True
                return verdict.result, None
            if verdict.kind == "success" and recovering and log.transactional:
                return await self._leave_to_delivery(run, side, log, verdict.result)
            return await self._settle(run, side, log, verdict, error)
        finally:
            if not left_to_caller:
                run.ended()

    async def _read_request(self, run: Run, side: Side, log: LoggedIntent) -> tuple[Any, Verdict | None]:
        """Read the frozen request, and its outcome where that is recorded; before anything is counted."""
        if log.doubted:  # an operator's decision did not reach the log: it has to be made again
            await intent_log.settle_in_doubt(run, side, log, "it waits for an operator")
        try:
            known = None if log.outcome is None else Verdict.success(self.policy.codec.decode(log.outcome))
            return self._requests.decode(log.request), known
        except CorruptRecord as error:
            await leave(run, side, "free", error.code)
            raise

    async def _reconcile(
        self, run: Run, side: Side, log: LoggedIntent, request: Any, began: float, recovering: bool
    ) -> Verdict | None:
        """Ask the reconciler where a resend is not safe. None: send it."""
        if self.rules.decide_next(log, intent_log.estimate_store_time(run, began)) == "send":
            return None
        reconciler = self._intents.reconcilers.get(self.provider.name)
        if reconciler is None:
            why = "the provider keeps no keys" if not self.rules.keyed else "the provider may no longer keep its key"
            await intent_log.settle_in_doubt(run, side, log, f"it went out before, and {why}")
        verdict, error = await self._call(reconciler, run, side, log, request, recovering)
        if error is not None:
            why = f"the reconciler raised {show(describe_error(error), 200)}"
            await self._leave_unknown(run, side, log, why, 1.0)
        if not isinstance(verdict, Verdict):
            await leave(run, side, "free", "the reconciler returned no verdict")
            raise ConfigurationError(
                f"the reconciler of {self.provider.name} returned a {type(verdict).__name__}, which is not a Verdict"
            )
        verdict = _with_text_reason(verdict)
        if verdict.kind == "not_executed":  # proven absent: start over, under another key
            log.rounds += 1
            log.start_over()
            return None
        if verdict.kind == "unknown":
            await intent_log.settle_in_doubt(run, side, log, f"the reconciler does not know either: {verdict.why}")
        return verdict

    async def _call(
        self, function: Any, run: Run, side: Side, log: LoggedIntent, request: Any, recovering: bool
    ) -> tuple[Any, Exception | None]:
        try:
            value = function(self._make_intent(run, log, request))
            if self.is_async:
                value = await value
            elif type(value) in LAZY or hasattr(value, "__await__"):
                refuse_lazy(function, value)
            return value, None
        except Exception as error:
            return None, error
        except BaseException as error:
            await self._leave_interrupted(run, side, log, error, recovering)
            raise

    async def _leave_interrupted(
        self, run: Run, side: Side, log: LoggedIntent, error: BaseException, recovering: bool
    ) -> None:
        """Record that the outcome is unknown: the call was cancelled, or the process ends."""
        if isinstance(error, GeneratorExit):  # nothing may be awaited any more: the lease ends by itself
            return
        try:
            await self._leave_unknown(run, side, log, type(error).__name__, 0.0)
        except (Retryable, InDoubt) as unknown:
            if recovering and ended_itself(error):
                raise unknown from error

    async def _leave_unknown(self, run: Run, side: Side, log: LoggedIntent, why: str, retry_after: float) -> None:
        await intent_log.leave_unknown(run, side, log, self.rules, why, retry_after, self.has_reconciler)

    def _classify(self, outcome: Any, log: LoggedIntent) -> Verdict:
        """Classify a response or an error. If anything goes wrong here, the effect may have happened all the same."""
        classifier, source = self._intents.classifiers.get(self.provider.name), "the classifier"
        try:
            verdict: Any = classifier(outcome) if classifier is not None else None
            if verdict is None:
                source = "reading the response"
                verdict = classify(self.provider, outcome, log.send_count > 1)
            elif not isinstance(verdict, Verdict):
                return Verdict.unknown(f"the classifier returned a {type(verdict).__name__}, which is not a Verdict")
            verdict = _with_text_reason(verdict)
        except Exception as error:
            return Verdict.unknown(f"{source} raised {show(describe_error(error), 200)}")
        about_this_send_only = verdict.kind == "not_executed" or (verdict.kind == "failure" and not self.rules.keyed)
        if about_this_send_only and log.send_count > 1:
            return Verdict.unknown(f"{verdict.why}, which says nothing about the send before", verdict.retry_after)
        return verdict  # type: ignore[no-any-return]

    async def _settle(
        self, run: Run, side: Side, log: LoggedIntent, verdict: Verdict, error: Exception | None
    ) -> tuple[Any, BaseException | None]:
        if verdict.kind == "success":
            await intent_log.complete(run, side, verdict.result)
            return verdict.result, None
        if verdict.kind == "failure":
            await intent_log.settle_failed(run, side, error, verdict.why)
            return None, error or PermanentFailure(f"intent {run.key} failed for good: {verdict.why}", "refused")
        try:
            if verdict.kind == "not_executed":
                await intent_log.leave_not_executed(run, side, log, verdict.why, verdict.retry_after)
            await self._leave_unknown(run, side, log, verdict.why, verdict.retry_after)
        except (Retryable, InDoubt) as unknown:
            if isinstance(error, SyncAsyncMismatch):  # the defect to fix
                return None, error
            unknown.__cause__ = error
            return None, unknown
        raise AssertionError("both calls raise")

    async def _leave_to_delivery(
        self, run: Run, side: Side, log: LoggedIntent, result: Any
    ) -> tuple[None, OutcomeUnknown]:
        stored = stored_result(run, result)
        if stored is None:
            await leave(run, side, "free", "it waits for its delivery")
        else:
            await intent_log.record_outcome(run, side, log, stored)
        return None, OutcomeUnknown(f"intent {run.key} happened, and waits for the delivery that writes its rows", 0.0)

    def _make_intent(self, run: Run, log: LoggedIntent, request: Any) -> Intent[Any]:
        return Intent(
            id=run.key,
            provider=self.provider,
            operation=self.rules.operation,
            account=log.account,
            key=log.key,
            step=log.step,
            request=request,
            provider_key=self.rules.provider_key(log) if self.rules.keyed else run.key,
            send_count=log.send_count,
        )

    # -- recovery and operators

    async def resume(self, id: str, side: Side) -> tuple[Any, BaseException | None]:
        """Resume the intent ``id`` in a recovery. A transactional one is left to its delivery, with its result
        recorded."""
        return await self.run_intent(self._prepare(id), side, "recover")

    async def write_decision(self, id: str, side: Side, outcome: bytes | None) -> None:
        """Write an operator's decision to the log of a transactional intent: its result, or (None) that it starts
        over. Until then its log says "in doubt", so that a process that claims it first puts it back."""
        run = self._prepare(id)
        try:
            pending = begin(run, side)
            if pending is not None:
                await pending
            log = intent_log.read_log(run)
            if outcome is None:
                recorded = await intent_log.record_retry(run, side, log)
            else:
                recorded = await intent_log.record_outcome(run, side, log, outcome)
            if not recorded:
                raise StoreUnavailable(f"intent {id}: your decision could not be recorded; make it again")
        finally:
            run.active = False
            run.ended()

    def __repr__(self) -> str:
        return f"<intent {self.scope} {name_of(self._function)}>"


def _take_value(run: Run, value: Any) -> Any:
    return value


def _make_outcome(run: Run, value: Any) -> Outcome[Any]:
    return Outcome(value, run.replayed, run.key, run.scope, run.attempt)


def _with_text_reason(verdict: Verdict) -> Verdict:
    """Return ``verdict`` with a reason that is a text: users easily pass an exception."""
    why: Any = verdict.why
    if isinstance(why, str):
        return verdict
    return replace(
        verdict, why=show(describe_error(why) if isinstance(why, BaseException) else type(why).__name__, 200)
    )


def request_type(function: Any) -> Any:
    """Return ``Req`` of a first parameter that is annotated ``Intent[Req]``; Any where it is not."""
    try:
        hints = typing.get_type_hints(function)
    except NameError as error:
        raise ConfigurationError(
            f"the annotations of {name_of(function)} name something that is not there yet ({error}); define the type "
            "of its requests before it"
        ) from error
    hints.pop("return", None)
    first = next(iter(hints.values()), Any)
    args = typing.get_args(first)
    return args[0] if typing.get_origin(first) is Intent and args and not isinstance(args[0], TypeVar) else Any
