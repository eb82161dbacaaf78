"""One operation of an outside API: frozen, sent, judged and settled, in either colour."""

from __future__ import annotations

import typing
from collections.abc import Callable, Iterator, Sequence
from types import TracebackType
from typing import Any, Final, Generic, Protocol, TypeVar

from msgspec import Struct

from .connections.callers import session_on
from .contracts import Joinable, Session
from .core import intent_flow as flow
from .core.codec import Codec, Unstorable
from .core.drive import Pending, drive
from .core.engine import Side
from .core.flow import Policy, Run, begin, completion_of, leave, prepare, running, stored_result
from .core.intent_flow import Log, Terms
from .core.notes import hidden
from .errors import ConfigurationError, InDoubt, LeaseLost, PermanentFailure, Retryable, WrongColour
from .fingerprint import fingerprints
from .guard import Outcome
from .handlers import LAZY, is_async, name_of, refuse_lazy
from .keys import Key, encode_key
from .providers import Provider, Verdict, classify
from .record import Record, Settlement
from .store import Store

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


class Operation(Generic[Req, Res]):
    """A function under `Intents.operation`: called with a request and a key, it happens once."""

    def __init__(self, intents: Book, function: Callable[..., Any], provider: Provider, terms: Terms, policy: Policy,
                 request: Any) -> None:  # fmt: skip
        self._intents = intents
        self._function = function
        self._is_async = is_async(function)
        self.provider = provider
        self.terms = terms
        self._policy = policy
        self._requests = Codec(request, MAX_REQUEST)

    @property
    def scope(self) -> str:
        """The scope that the records of this operation live in."""
        return self._policy.scope

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
        return Sent(self, self._written_down(request, key, account, step))

    # -- one intent

    def _start(self, request: Req, key: Key, account: str, step: str, give: Callable[[Run, Any], Any]) -> Any:
        return self._go(self._written_down(request, key, account, step), give)

    def _written_down(self, request: Req, key: Key, account: str, step: str) -> Run:
        """The run of this intent, not begun; `ConfigurationError` where the request cannot be frozen."""
        try:
            body = self._requests.encode(request)
        except Unstorable as error:
            raise ConfigurationError(f"this request cannot be written down: {error}; nothing was sent") from error
        name = encode_key(key)
        run = self._run(self.terms.id(name, account, step), fingerprints(request))
        run.note = hidden(run, flow.frozen(Log(body, name, account, step)))
        return run

    def _run(self, id: str, prints: bytes) -> Run:
        engine = self._intents.store.engine
        if not engine.backend.capabilities.notes:
            raise ConfigurationError(
                f"{engine.backend!r} keeps no notes, which intents need; use sqlite://, postgresql:// or mysql://"
            )
        self.require_colour()
        return prepare(engine, self._policy, id, prints)

    def require_colour(self) -> None:
        """`WrongColour` where the reconciler of its provider is of another colour."""
        reconcile = self._intents.reconcilers.get(self.provider.name)
        if reconcile is not None and is_async(reconcile) != self._is_async:
            raise WrongColour(
                f"the reconciler of {self.provider.name} must be {_colour(self._is_async)}, as {self!r} is"
            )

    def _go(self, run: Run, give: Callable[[Run, Any], Any]) -> Any:
        if self._is_async:
            return self._awaited(run, give)
        value, error = drive(self._through(run, run.engine.sync_side()))
        if error is not None:
            raise error
        return give(run, value)

    async def _awaited(self, run: Run, give: Callable[[Run, Any], Any]) -> Any:
        value, error = await self._through(run, run.engine.async_side())
        if error is not None:
            raise error
        return give(run, value)

    async def _through(self, run: Run, side: Side, complete: bool = True) -> tuple[Any, BaseException | None]:
        """From the claim to the settlement; without ``complete``, a success is left for the caller to settle.

        Of both colours: what the user's functions raise is returned, since a StopIteration among it must not pass
        through a coroutine.
        """
        held = False
        began = run.sent_at = run.engine.monotonic()
        try:
            pending = begin(run, side)
            if pending is not None:
                await pending
            if run.replayed:
                return run.value, None
            running.set(run)
            log = flow.log_of(run)
            verdict = await self._looked_up(run, side, log, began)
            error: Exception | None = None
            if verdict is None:
                await flow.stamp(run, side, log, self.terms, began)
                value, error = await self._called(self._function, run, side, log)
                if isinstance(error, WrongColour):  # it gave something that nobody has run
                    await flow.undo(run, side, log, "the operation is of the wrong colour")
                    return None, error
                verdict = self._judged(value if error is None else error, log)
            if verdict.kind == "success" and not complete:
                held = True
                return verdict.result, None
            return await self._settled(run, side, log, verdict, error)
        finally:
            if not held:
                run.ended()

    async def _looked_up(self, run: Run, side: Side, log: Log, began: float) -> Verdict | None:
        """What the reconciler says where it may not simply be sent; None: send it."""
        if self.terms.next(log, flow.now(run, began)) == "send":
            return None
        reconcile = self._intents.reconcilers.get(self.provider.name)
        if reconcile is None:
            why = "the provider keeps no keys" if not self.terms.keyed else "the provider may no longer keep its key"
            await flow.doubt(run, side, log, f"it went out before, and {why}")
        verdict, error = await self._called(reconcile, run, side, log)
        if error is not None:
            why = f"the reconciler raised {type(error).__name__}: {error}"
            await flow.unknown(run, side, log, self.terms, why, 1.0, self.has_reconciler)
        if not isinstance(verdict, Verdict):
            raise ConfigurationError(f"the reconciler of {self.provider.name} gave {verdict!r}, which is no Verdict")
        if verdict.kind == "not_executed":  # proven absent: begin anew, under another key
            log.rounds += 1
            log.begin_anew()
            return None
        if verdict.kind == "unknown":
            await flow.doubt(run, side, log, f"the reconciler does not know either: {verdict.why}")
        return verdict

    async def _called(self, function: Any, run: Run, side: Side, log: Log) -> tuple[Any, Exception | None]:
        try:
            value = function(self._intent(run, log))
            if self._is_async:
                value = await value
            elif type(value) in LAZY or hasattr(value, "__await__"):
                refuse_lazy(function, value)
            return value, None
        except Exception as error:
            return None, error
        except GeneratorExit:  # nothing may be awaited any more: the lease ends by itself
            raise
        except BaseException as error:  # cancelled, or the process ends: whether it happened is not known
            try:
                await flow.unknown(run, side, log, self.terms, type(error).__name__, 0.0, self.has_reconciler)
            except (Retryable, InDoubt):
                pass
            raise

    def _judged(self, outcome: Any, log: Log) -> Verdict:
        mine = self._intents.classifiers.get(self.provider.name)
        verdict = mine(outcome) if mine is not None else None
        if verdict is None:
            verdict = classify(self.provider, outcome)
        silent = verdict.kind == "not_executed" or (verdict.kind == "failure" and not self.terms.keyed)
        if silent and log.send_count > 1:
            return Verdict.unknown(f"{verdict.why}, which says nothing about the send before", verdict.retry_after)
        return verdict

    async def _settled(
        self, run: Run, side: Side, log: Log, verdict: Verdict, error: Exception | None
    ) -> tuple[Any, BaseException | None]:
        if verdict.kind == "success":
            await flow.complete(run, side, verdict.result)
            return verdict.result, None
        if verdict.kind == "failure":
            await flow.fail(run, side, error, verdict.why)
            return None, error or PermanentFailure(f"intent {run.key} failed for good: {verdict.why}", "refused")
        try:
            if verdict.kind == "not_executed":
                await flow.turned_away(run, side, log, verdict.why, verdict.retry_after)
            await flow.unknown(run, side, log, self.terms, verdict.why, verdict.retry_after, self.has_reconciler)
        except (Retryable, InDoubt) as told:
            told.__cause__ = error
            return None, told
        raise AssertionError("one of both raises")

    def _intent(self, run: Run, log: Log) -> Intent[Any]:
        return Intent(
            id=run.key,
            provider=self.provider,
            operation=self.terms.operation,
            account=log.account,
            key=log.key,
            step=log.step,
            request=self._requests.decode(log.request),
            provider_key=self.terms.key(log) if self.terms.keyed else run.key,
            send_count=log.send_count,
        )

    # -- recovery

    def unfinished(self) -> Iterator[Record]:
        """The records of its intents that somebody may have to go on with."""
        cursor: str | None = None
        while True:
            page = self._intents.store.list(scope=self.scope, unfinished=True, cursor=cursor)
            yield from page.records
            cursor = page.cursor
            if cursor is None:
                return

    def __repr__(self) -> str:
        return f"<intent {self.scope} {name_of(self._function)}>"


class Sent(Generic[Res]):
    """An effect that has happened and is not recorded yet: its completion commits with rows of yours.

        with charge.send(payment, key=message.key) as sent:
            with conn.transaction():
                conn.execute("UPDATE orders SET paid = true …")
                outbox.send(conn, …)
                sent.complete(conn)

    Until that commits the intent is open: after a crash the next delivery sends it again with the same key, gets the
    provider's answer once more, and comes to this block again. ``replayed``: it was completed before, rows and all.
    """

    def __init__(self, operation: Operation[Any, Res], run: Run) -> None:
        self._operation = operation
        self._run = run
        self._result: Any = None
        self._completed = False

    @property
    def result(self) -> Res:
        return self._result  # type: ignore[no-any-return]

    @property
    def replayed(self) -> bool:
        return self._run.replayed

    def complete(self, connection: Any, result: Any = ...) -> Any:
        """Record the success, with its result, in the transaction that is open on ``connection``; on an async one
        `await` it. `LeaseLost` where another goes on with this intent: roll back. Nothing to do for a replay."""
        session = session_on(connection)
        session.require_transaction()
        done = self._complete(session, self._result if result is ... else result)
        return Pending(done, "complete(…)") if session.is_async else drive(done)

    async def _complete(self, session: Session, result: Any) -> None:
        run = self._run
        if run.replayed:
            return
        backend = run.engine.backend
        op = completion_of(run, stored_result(run, result))
        if not isinstance(backend, Joinable) or not isinstance(op, Settlement):
            raise ConfigurationError(
                f"{backend!r} is no SQL database, so no transaction of yours can complete an intent there"
            )
        dialect, statements = backend.completion(op)
        if dialect != session.dialect:
            raise ConfigurationError(
                f"the intents are in {backend!r}, and this connection speaks {session.dialect}: they must be in one "
                "database"
            )
        rows: Sequence[Any] = ()
        for sql, params in statements:
            rows = await session.rows(sql, params)
        if not rows:
            raise LeaseLost(f"intent {run.key}: its lease ended and another goes on with it: roll this back")
        self._completed = True
        run.engine.leased.discard(run)  # a renewal would be refused once this commits

    # -- the block

    def __enter__(self) -> Sent[Res]:
        if self._operation._is_async:
            raise WrongColour("this operation is async: write `async with`")
        return self._entered(drive(self._operation._through(self._run, self._run.engine.sync_side(), False)))

    async def __aenter__(self) -> Sent[Res]:
        return self._entered(await self._operation._through(self._run, self._run.engine.async_side(), False))

    def _entered(self, came: tuple[Any, BaseException | None]) -> Sent[Res]:
        self._result, error = came
        if error is not None:
            raise error
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        drive(self._exited(self._run.engine.sync_side()))

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None
    ) -> None:
        await self._exited(self._run.engine.async_side())

    async def _exited(self, side: Side) -> None:
        """What was completed is settled by the commit, or by nobody: only the database knows whether that happened."""
        run = self._run
        if not run.replayed and run.active:
            if self._completed:
                run.active = False
            else:
                await leave(run, side, "free", "it was not completed")
        run.ended()


def _value(run: Run, value: Any) -> Any:
    return value


def _outcome(run: Run, value: Any) -> Outcome[Any]:
    return Outcome(value, run.replayed, run.key, run.scope, run.attempt)


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
