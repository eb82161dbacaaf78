"""`IntentOperation`: one operation of an outside API. Called with a request and a key, it happens once."""

from __future__ import annotations

import typing
from collections.abc import Callable, Coroutine
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final, Generic, Literal, TypeVar, overload

from msgspec import Struct

from effectonce.core.claim_notes import seal_note
from effectonce.core.codec import Codec, Unstorable
from effectonce.core.guarded_call.begin import begin, prepare_noted_run
from effectonce.core.guarded_call.run import Policy, StoreRun, current_run
from effectonce.core.run_sync import run_sync
from effectonce.core.store_clients import StoreClient
from effectonce.errors import ConfigurationError, SyncAsyncMismatch, show
from effectonce.guard.introspection import is_async, name_of
from effectonce.guard.once import Outcome
from effectonce.providers import Provider, Verdict
from effectonce.values.fingerprint import fingerprints
from effectonce.values.identity import Key, encode_key

from .claimed_intent import ClaimedIntent
from .logged_intent import LoggedIntent, encode_log
from .resend_rules import ResendRules
from .runner import IntentResult, IntentRunner
from .spans import intent_span, record_outcome
from .transactional import Sent

if TYPE_CHECKING:
    from .intents import Intents

Req = TypeVar("Req")
Res = TypeVar("Res")
Res_co = TypeVar("Res_co", covariant=True)
T = TypeVar("T")

Classifier = Callable[[Any], "Verdict | None"]
Reconciler = Callable[["Intent[Any]"], Any]

Completion = Literal["record", "leave", "recover"]
"""Who completes a success: ``record``: the operation itself. ``leave``: its caller. ``recover``: the operation, unless
the intent is transactional; then its result is recorded for the delivery that writes its rows."""

MAX_REQUEST_BYTES: Final = 256 * 1024


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
    #: When it was claimed for its first send, by the store's clock. No send of this effect is older.
    first_sent_at: datetime

    @property
    def headers(self) -> dict[str, str]:
        """The key as a header; empty where the provider does not take it in one."""
        return {self.provider.field: self.provider_key} if self.provider.carrier == "header" else {}

    def __repr__(self) -> str:
        """Show the intent without its request, which may hold a card's number or a password."""
        return f"<intent {self.id} {self.provider.name} {show(self.operation)}, send {self.send_count}>"


class IntentOperation(Generic[Req, Res_co]):
    """A function under `Intents.operation`: called with a request and a key, it happens once.

    ``Req`` is the type of its requests, and ``Res_co`` what the function returns: a coroutine if it is async.
    """

    def __init__(
        self, intents: Intents, function: Callable[..., Any], provider: Provider, rules: ResendRules, policy: Policy
    ) -> None:
        self._intents = intents
        self.function = function
        self.is_async = is_async(function)
        self.provider = provider
        self.rules = rules
        self.policy = policy
        self.requests = Codec(_request_type(function), MAX_REQUEST_BYTES)

    @property
    def scope(self) -> str:
        """The scope of this operation's records."""
        return self.policy.scope

    @property
    def classifier(self) -> Classifier | None:
        return self._intents.classifiers.get(self.provider.name)

    @property
    def reconciler(self) -> Reconciler | None:
        return self._intents.reconcilers.get(self.provider.name)

    def __call__(self, request: Req, *, key: Key, account: str = "", step: str = "") -> Res_co:
        """Do it once for ``key``, and return its result. Await that if the function is async."""
        run = self._prepare_new(request, key, account, step)
        return self._execute(run, as_outcome=False)  # type: ignore[no-any-return]

    @overload
    def call(  # type: ignore[overload-overlap]
        self: IntentOperation[Req, Coroutine[Any, Any, T]],
        request: Req,
        *,
        key: Key,
        account: str = "",
        step: str = "",
    ) -> Coroutine[Any, Any, Outcome[T]]: ...
    @overload
    def call(self, request: Req, *, key: Key, account: str = "", step: str = "") -> Outcome[Res_co]: ...
    def call(self, request: Req, *, key: Key, account: str = "", step: str = "") -> Any:
        """Do it once for ``key`` and return an `Outcome`. Await it if the function is async."""
        run = self._prepare_new(request, key, account, step)
        return self._execute(run, as_outcome=True)

    @overload
    def send(
        self: IntentOperation[Req, Coroutine[Any, Any, T]],
        request: Req,
        *,
        key: Key,
        account: str = "",
        step: str = "",
    ) -> Sent[T]: ...
    @overload
    def send(self, request: Req, *, key: Key, account: str = "", step: str = "") -> Sent[Res_co]: ...
    def send(self, request: Req, *, key: Key, account: str = "", step: str = "") -> Sent[Any]:
        """Do it once for ``key``, and complete it in your own transaction: ``with charge.send(…) as sent:``."""
        return Sent(self, self._prepare_new(request, key, account, step, transactional=True))

    # -- one intent

    def _prepare_new(self, request: Req, key: Key, account: str, step: str, transactional: bool = False) -> StoreRun:
        """Make the run of an intent that may be new. Raises `ConfigurationError` if the request cannot be stored."""
        try:
            body = self.requests.encode(request)
        except Unstorable as error:
            raise ConfigurationError(f"this request cannot be stored: {error}; nothing was sent") from error
        name = encode_key(key)
        run = self.prepare_run(self.rules.intent_id(name, account, step), fingerprints(request))
        log = LoggedIntent(body, name, account, step, transactional=transactional, in_saga=run.min_retention > 0)
        run.note = seal_note(run, encode_log(log))
        return run

    def prepare_run(self, id: str, request_fingerprints: bytes = b"") -> StoreRun:
        """Make a run of the intent ``id``, which is not claimed yet. Raises `ConfigurationError` on a store without
        notes."""
        run = prepare_noted_run(self._intents.store.runtime, self.policy, id, request_fingerprints, "intents")
        self.check_reconciler()
        return run

    def check_reconciler(self) -> None:
        """Raise `SyncAsyncMismatch` unless the function and its provider's reconciler are both sync, or both async."""
        if self.reconciler is not None and is_async(self.reconciler) != self.is_async:
            kind = "async def" if self.is_async else "a plain def"
            raise SyncAsyncMismatch(f"the reconciler of {self.provider.name} must be {kind}, as {self!r} is")

    def _execute(self, run: StoreRun, as_outcome: bool) -> Any:
        """Run the intent and return its result, or an `Outcome`; a coroutine of it if the function is async."""
        if self.is_async:
            return self._execute_async(run, as_outcome)
        return _unwrap(run, run_sync(self.run_intent(run, run.runtime.sync_client())), as_outcome)

    async def _execute_async(self, run: StoreRun, as_outcome: bool) -> Any:
        return _unwrap(run, await self.run_intent(run, run.runtime.async_client()), as_outcome)

    async def run_intent(self, run: StoreRun, client: StoreClient, completion: Completion = "record") -> IntentResult:
        """Run an intent from its claim to its settlement, and end its run.

        With ``completion="leave"`` a success is not settled, and its run goes on: the caller settles it and calls
        ``run.end()``. Until then the heartbeat keeps the claim.
        """
        left_to_caller = False
        # The run may have been prepared long ago: its lease counts from now.
        claimed_after = run.lease_requested_at = run.started_at = run.runtime.monotonic()
        try:
            await begin(run, client)
            if run.replayed:
                return IntentResult(run.value)
            current_run.set(run)
            claimed = ClaimedIntent(run, client, self.rules, self.reconciler is not None, claimed_after)
            runner = IntentRunner(self, claimed, recovering=completion == "recover")
            with intent_span(self, run) as span:
                verdict, error = await runner.run()
                span.set("effectonce.attempt", claimed.log.send_count)
                if verdict.kind == "success" and completion == "leave":
                    left_to_caller = True
                    result = IntentResult(verdict.result)
                else:
                    result = await runner.settle(verdict, error)
                record_outcome(span, result.error)
            return result
        finally:
            if not left_to_caller:
                run.end()

    def make_intent(self, run: StoreRun, log: LoggedIntent, request: Any) -> Intent[Any]:
        """Make the argument of the function, for the next send."""
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
            first_sent_at=datetime.fromtimestamp(log.first_sent_at / 1e6, UTC),
        )

    def __repr__(self) -> str:
        return f"<intent {self.scope} {name_of(self.function)}>"


def _unwrap(run: StoreRun, result: IntentResult, as_outcome: bool) -> Any:
    if result.error is not None:
        raise result.error
    if as_outcome:
        return Outcome(result.value, run.replayed, run.key, run.scope, run.attempt)
    return result.value


def _request_type(function: Any) -> Any:
    """Return ``Req`` if the first parameter is annotated ``Intent[Req]``; otherwise Any."""
    try:
        hints = typing.get_type_hints(function)
    except NameError as error:
        raise ConfigurationError(
            f"the annotations of {name_of(function)} name something that is not defined yet ({error}); define the type "
            "of its requests before it"
        ) from error
    hints.pop("return", None)
    first = next(iter(hints.values()), Any)
    args = typing.get_args(first)
    return args[0] if typing.get_origin(first) is Intent and args and not isinstance(args[0], TypeVar) else Any
