"""One operation of an outside API: frozen, sent, judged and settled, in either colour."""

from __future__ import annotations

import typing
from collections.abc import Callable
from typing import Any, Final, Generic, Protocol, TypeVar

from msgspec import Struct
from msgspec.structs import replace

from effectonce.core.codec import Codec, Unstorable
from effectonce.core.guarded_call.begin import begin, prepare
from effectonce.core.guarded_call.finish import encode_result, leave
from effectonce.core.guarded_call.run import Policy, Run, running
from effectonce.core.interrupts import is_own_exit
from effectonce.core.notes import hidden
from effectonce.core.run_sync import run_sync
from effectonce.core.store_runtime import StoreClient
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
from effectonce.intents import log as flow
from effectonce.providers import Provider, Verdict, classify
from effectonce.sagas.log import told
from effectonce.store import Store
from effectonce.values.fingerprint import fingerprints
from effectonce.values.identity import Key, encode_key

from .log import Log, Terms
from .transactional import Sent

Req = TypeVar("Req")
Res = TypeVar("Res")

Classifier = Callable[[Any], "Verdict | None"]
Reconciler = Callable[["Intent[Any]"], Any]

MAX_REQUEST: Final = 256 * 1024
"""Bytes of one frozen request."""


class Book(Protocol):
    """What an operation needs of the `Intents` that it belongs to."""

    store: Store
    classifiers: dict[str, Classifier]
    reconcilers: dict[str, Reconciler]


class Intent(Struct, Generic[Req], frozen=True, kw_only=True):
    """What an operation is called with: the request as it was frozen, and the key to send with it."""

    id: str
    provider: Provider
    operation: str
    account: str
    key: str
    step: str
    request: Req
    #: The same for every send of this effect; another after an operator's retry.
    provider_key: str
    #: Which send this is, from 1.
    send_count: int

    @property
    def headers(self) -> dict[str, str]:
        """The key as a header, where the provider takes it there."""
        return {self.provider.field: self.provider_key} if self.provider.carrier == "header" else {}

    def __repr__(self) -> str:
        """Without the request, which may hold a card's number or a password."""
        return f"<intent {self.id} {self.provider.name} {show(self.operation)}, send {self.send_count}>"


class Operation(Generic[Req, Res]):
    """A function under `Intents.operation`: called with a request and a key, it happens once."""

    def __init__(
        self,
        intents: Book,
        function: Callable[..., Any],
        provider: Provider,
        terms: Terms,
        policy: Policy,
        request: Any,
    ) -> None:
        self._intents = intents
        self._function = function
        self.is_async = is_async(function)
        self.provider = provider
        self.terms = terms
        self.policy = policy
        self._requests = Codec(request, MAX_REQUEST)

    @property
    def scope(self) -> str:
        """The scope that the records of this operation live in."""
        return self.policy.scope

    @property
    def has_reconciler(self) -> bool:
        return self.provider.name in self._intents.reconcilers

    def __call__(self, request: Req, *, key: Key, account: str = "", step: str = "") -> Res:
        """Do it once for ``key``. Async where the function is."""
        return self._start(request, key, account, step, _value)  # type: ignore[no-any-return]

    def call(self, request: Req, *, key: Key, account: str = "", step: str = "") -> Outcome[Res]:
        """As calling it, but gives an `Outcome`; to be awaited where the function is async."""
        return self._start(request, key, account, step, _outcome)  # type: ignore[no-any-return]

    def send(self, request: Req, *, key: Key, account: str = "", step: str = "") -> Sent[Res]:
        """As calling it, but its completion joins a transaction of yours: ``with charge.send(…) as sent:``."""
        return Sent(self, self._written_down(request, key, account, step, joined=True))

    # -- one intent

    def _start(self, request: Req, key: Key, account: str, step: str, give: Callable[[Run, Any], Any]) -> Any:
        return self._go(self._written_down(request, key, account, step), give)

    def _written_down(self, request: Req, key: Key, account: str, step: str, joined: bool = False) -> Run:
        """The run of this intent, not begun; `ConfigurationError` where the request cannot be frozen."""
        try:
            body = self._requests.encode(request)
        except Unstorable as error:
            raise ConfigurationError(f"this request cannot be written down: {error}; nothing was sent") from error
        name = encode_key(key)
        run = self._run(self.terms.id(name, account, step), fingerprints(request))
        log = Log(body, name, account, step, joined=joined, within=run.min_retention > 0)
        run.note = hidden(run, flow.frozen(log))
        return run

    def _run(self, id: str, prints: bytes) -> Run:
        runtime = self._intents.store.runtime
        if not runtime.backend.capabilities.notes:
            raise ConfigurationError(
                f"{runtime.backend!r} keeps no notes, which intents need; use sqlite://, postgresql:// or mysql://"
            )
        self.require_colour()
        return prepare(runtime, self.policy, id, prints)

    def require_colour(self) -> None:
        """`SyncAsyncMismatch` where the reconciler of its provider is of another colour."""
        reconcile = self._intents.reconcilers.get(self.provider.name)
        if reconcile is not None and is_async(reconcile) != self.is_async:
            raise SyncAsyncMismatch(
                f"the reconciler of {self.provider.name} must be {_colour(self.is_async)}, as {self!r} is"
            )

    def _go(self, run: Run, give: Callable[[Run, Any], Any]) -> Any:
        if self.is_async:
            return self._awaited(run, give)
        value, error = run_sync(self.through(run, run.runtime.sync_client()))
        if error is not None:
            raise error
        return give(run, value)

    async def _awaited(self, run: Run, give: Callable[[Run, Any], Any]) -> Any:
        value, error = await self.through(run, run.runtime.async_client())
        if error is not None:
            raise error
        return give(run, value)

    async def through(
        self, run: Run, client: StoreClient, complete: bool | None = True
    ) -> tuple[Any, BaseException | None]:
        """From the claim to the settlement; without ``complete``, a success is left for the caller to settle. None: it
        is completed unless its completion joins rows.

        None is a recovery: there an end of the operation's own, which is no end of the process, is an unknown outcome.

        Of both colours: what the user's functions raise is returned, since a StopIteration among it must not pass
        through a coroutine.
        """
        held = False
        began = run.sent_at = run.started_at = run.runtime.monotonic()  # it may have been made long ago
        try:
            await begin(run, client)
            if run.replayed:
                return run.value, None
            running.set(run)
            log = flow.log_of(run)
            request, verdict = await self._read(run, client, log)
            if verdict is None:
                verdict = await self._looked_up(run, client, log, request, began, complete is None)
            error: Exception | None = None
            if verdict is None:
                await flow.stamp(run, client, log, self.terms, began)
                value, error = await self._called(self._function, run, client, log, request, complete is None)
                try:
                    verdict = self._judged(value if error is None else error, log)
                except BaseException as ended:
                    await self._interrupted(run, client, log, ended, complete is None)
                    raise
            if verdict.kind == "success" and complete is False:
                held = True
                return verdict.result, None
            if verdict.kind == "success" and complete is None and log.joined:
                return await self._left_to_its_delivery(run, client, log, verdict.result)
            return await self._settled(run, client, log, verdict, error)
        finally:
            if not held:
                run.end()

    async def _read(self, run: Run, client: StoreClient, log: Log) -> tuple[Any, Verdict | None]:
        """The request as it was frozen, and what came of it where that is known; read before anything is counted."""
        if log.doubted:  # an operator's word did not get to the log: it still has to be said
            await flow.doubt(run, client, log, "it waits for an operator")
        try:
            known = None if log.outcome is None else Verdict.success(self.policy.codec.decode(log.outcome))
            return self._requests.decode(log.request), known
        except CorruptRecord as error:
            await leave(run, client, "free", error.code)
            raise

    async def _looked_up(
        self, run: Run, client: StoreClient, log: Log, request: Any, began: float, recovering: bool
    ) -> Verdict | None:
        """What the reconciler says where it may not simply be sent; None: send it."""
        if self.terms.next(log, flow.now(run, began)) == "send":
            return None
        reconcile = self._intents.reconcilers.get(self.provider.name)
        if reconcile is None:
            why = "the provider keeps no keys" if not self.terms.keyed else "the provider may no longer keep its key"
            await flow.doubt(run, client, log, f"it went out before, and {why}")
        verdict, error = await self._called(reconcile, run, client, log, request, recovering)
        if error is not None:
            why = f"the reconciler raised {show(told(error), 200)}"
            await flow.unknown(run, client, log, self.terms, why, 1.0, self.has_reconciler)
        if not isinstance(verdict, Verdict):
            await leave(run, client, "free", "the reconciler gave no verdict")
            raise ConfigurationError(
                f"the reconciler of {self.provider.name} gave a {type(verdict).__name__}, which is no Verdict"
            )
        verdict = _worded(verdict)
        if verdict.kind == "not_executed":  # proven absent: begin anew, under another key
            log.rounds += 1
            log.begin_anew()
            return None
        if verdict.kind == "unknown":
            await flow.doubt(run, client, log, f"the reconciler does not know either: {verdict.why}")
        return verdict

    async def _called(
        self, function: Any, run: Run, client: StoreClient, log: Log, request: Any, recovering: bool
    ) -> tuple[Any, Exception | None]:
        try:
            value = function(self._intent(run, log, request))
            if self.is_async:
                value = await value
            elif type(value) in LAZY or hasattr(value, "__await__"):
                refuse_lazy(function, value)
            return value, None
        except Exception as error:
            return None, error
        except BaseException as error:
            await self._interrupted(run, client, log, error, recovering)
            raise

    async def _interrupted(
        self, run: Run, client: StoreClient, log: Log, error: BaseException, recovering: bool
    ) -> None:
        """Cancelled, or the process ends: whether it happened is not known, and that is written down."""
        if isinstance(error, GeneratorExit):  # nothing may be awaited any more: the lease ends by itself
            return
        try:
            await flow.unknown(run, client, log, self.terms, type(error).__name__, 0.0, self.has_reconciler)
        except (Retryable, InDoubt) as unknown:
            if recovering and is_own_exit(error):
                raise unknown from error

    def _judged(self, outcome: Any, log: Log) -> Verdict:
        """What came back, as a verdict. Whatever goes wrong here, the effect may have happened all the same."""
        mine, by = self._intents.classifiers.get(self.provider.name), "the classifier"
        try:
            verdict: Any = mine(outcome) if mine is not None else None
            if verdict is None:
                by = "what reads the answer"
                verdict = classify(self.provider, outcome, log.send_count > 1)
            elif not isinstance(verdict, Verdict):
                return Verdict.unknown(f"the classifier gave a {type(verdict).__name__}, which is no Verdict")
            given = _worded(verdict)
        except Exception as error:
            return Verdict.unknown(f"{by} raised {show(told(error), 200)}")
        silent = given.kind == "not_executed" or (given.kind == "failure" and not self.terms.keyed)
        if silent and log.send_count > 1:
            return Verdict.unknown(f"{given.why}, which says nothing about the send before", given.retry_after)
        return given

    async def _settled(
        self, run: Run, client: StoreClient, log: Log, verdict: Verdict, error: Exception | None
    ) -> tuple[Any, BaseException | None]:
        if verdict.kind == "success":
            await flow.complete(run, client, verdict.result)
            return verdict.result, None
        if verdict.kind == "failure":
            await flow.fail(run, client, error, verdict.why)
            return None, error or PermanentFailure(f"intent {run.key} failed for good: {verdict.why}", "refused")
        try:
            if verdict.kind == "not_executed":
                await flow.turned_away(run, client, log, verdict.why, verdict.retry_after)
            await flow.unknown(run, client, log, self.terms, verdict.why, verdict.retry_after, self.has_reconciler)
        except (Retryable, InDoubt) as unknown:
            if isinstance(error, SyncAsyncMismatch):  # that is what is to be mended
                return None, error
            unknown.__cause__ = error
            return None, unknown
        raise AssertionError("one of both raises")

    async def _left_to_its_delivery(
        self, run: Run, client: StoreClient, log: Log, result: Any
    ) -> tuple[None, OutcomeUnknown]:
        stored = encode_result(run, result)
        if stored is None:
            await leave(run, client, "free", "it waits for its delivery")
        else:
            await flow.found(run, client, log, stored)
        return None, OutcomeUnknown(f"intent {run.key} happened, and waits for the delivery that writes its rows", 0.0)

    def _intent(self, run: Run, log: Log, request: Any) -> Intent[Any]:
        return Intent(
            id=run.key,
            provider=self.provider,
            operation=self.terms.operation,
            account=log.account,
            key=log.key,
            step=log.step,
            request=request,
            provider_key=self.terms.key(log) if self.terms.keyed else run.key,
            send_count=log.send_count,
        )

    # -- recovery and people

    async def gone_on(self, id: str, client: StoreClient) -> tuple[Any, BaseException | None]:
        """Go on with the intent ``id``, for nobody. What is completed with its caller's rows is left to its delivery,
        with what it gave written down."""
        return await self.through(self._run(id, b""), client, None)

    async def decided(self, id: str, client: StoreClient, outcome: bytes | None) -> None:
        """Write an operator's word down, of an intent whose completion joins rows: what it gave, or (None) that it
        begins anew. Until that is done its log says "in doubt", so whoever takes it puts it back."""
        run = self._run(id, b"")
        try:
            await begin(run, client)
            log = flow.log_of(run)
            if outcome is None:
                written = await flow.retried(run, client, log)
            else:
                written = await flow.found(run, client, log, outcome)
            if not written:
                raise StoreUnavailable(f"intent {id}: what you said could not be written down; say it again")
        finally:
            run.active = False
            run.end()

    def __repr__(self) -> str:
        return f"<intent {self.scope} {name_of(self._function)}>"


def _value(run: Run, value: Any) -> Any:
    return value


def _outcome(run: Run, value: Any) -> Outcome[Any]:
    return Outcome(value, run.replayed, run.key, run.scope, run.attempt)


def _worded(verdict: Verdict) -> Verdict:
    """``verdict``, whose reason is a text: an exception is easily given for one."""
    why: Any = verdict.why
    if isinstance(why, str):
        return verdict
    return replace(verdict, why=show(told(why) if isinstance(why, BaseException) else type(why).__name__, 200))


def _colour(is_async: bool) -> str:
    return "async def" if is_async else "a plain def"


def request_type(function: Any) -> Any:
    """``Req`` of a first parameter that is annotated ``Intent[Req]``; Any where it is not."""
    try:
        hints = typing.get_type_hints(function)
    except NameError as error:
        raise ConfigurationError(
            f"the annotations of {name_of(function)} name something that is not there yet ({error}); define the type "
            "of its requests before it"
        ) from error
    hints.pop("return", None)
    first = next(iter(hints.values()), Any)
    found = typing.get_args(first)
    return found[0] if typing.get_origin(first) is Intent and found and not isinstance(found[0], TypeVar) else Any
