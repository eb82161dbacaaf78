"""The life of one guarded call: `begin`, then the handler, then `finish` or `abort`.

Written once, over a `Side` of either colour. A side answers with an awaitable, or, of threads and where the store is
in this process, with the reply itself; `begin` and `finish` pass that on: they return an awaitable, or None when they
are done. The handler is called by the guard, between them and never inside a coroutine of ours: a handler's
``StopIteration`` raised inside one would become a ``RuntimeError``.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Awaitable, Callable
from contextvars import ContextVar
from typing import Any, Final, Literal

from msgspec import Struct
from msgspec.structs import force_setattr

from effectonce.errors import (
    ConfigurationError,
    EffectOnceError,
    LeaseLost,
    MissingKey,
    Reentered,
    StoreUnavailable,
    show,
)
from effectonce.record import Answer, Claim, Look, Remember, Renewal, Reply, Settlement, written_often
from effectonce.values.provider_keys import provider_key

from .codec import ABANDONED, Codec, Unstorable, encode_error, with_trace, without_trace
from .engine import Engine, Side, log, release
from .refusals import refusal
from .waiting import FIRST_POLL, LAST_POLL

SEEN_GENERATION: Final = -1  # what a private result is bound to in mode S, which claims no generation


class Policy(Struct, frozen=True, kw_only=True):
    """The settings of one guard. Never written into a store: two guards on one store keep their own."""

    scope: str
    codec: Codec
    seen: bool = False  # mode S
    lease: int = 30_000_000
    retention: int = 15 * 86_400_000_000
    hold: int = 0  # how long what is not finished is kept; 0: as long as what is
    wait: float | None = None
    max_attempts: int = 0
    max_run: float = 3600.0
    doubt_on_error: bool = False
    doubt_on_lapse: bool = False
    run_on_store_error: bool = False
    permanent: tuple[type[BaseException], ...] = ()

    def __post_init__(self) -> None:
        if not self.hold:
            force_setattr(self, "hold", self.retention)


@written_often
class Run(Struct, eq=False, gc=False):
    """One guarded call: what `current()` returns, what the heartbeat renews, what an Outcome is made of.

    A slotted Struct outside of the cycle collector, since it is made on every call: it must not refer to anything of
    the handler's, which may refer back to it. (``value`` is of replays only, and was read from the store.)
    """

    engine: Engine
    policy: Policy
    key: str
    stored_key: str  # what the store sees: the key, or its keyed hash
    owner: bytes  # what its claim is known by; b"": nothing is claimed
    fingerprints: bytes
    parent: Run | None
    sent_at: float = math.inf  # when the lease was last asked for; inf: none is held, so none can be lost
    token: int = 0
    """The claim's fencing token: it grows from claim to claim, so outside systems can refuse an older one."""
    started_at: float = math.inf  # when its claim was granted, or, if nobody looked at the clock then, was asked for
    answer: Answer = Answer("absent", attempts=1)  # what else its claim came to, where it was not the first
    active: bool = True
    protected: bool = True
    replayed: bool = False  # what `begin` decided: the handler is not to run, it ran before
    redriven: bool = False
    refused: bool = False  # a renewal was refused: another delivery took over
    value: Any = None
    bypassing: bool = False  # redriven, and effects outside are to be skipped: see `bypass_external_effects`
    took: float = 0.0  # where somebody watches and it is over: how long, in seconds
    note: bytes | None = None  # what the claim brings where the record has none, as it is stored
    trace: bytes = b""  # of its handler; of a replay, that of the run whose result it gets
    calls: dict[str, bytes] | None = None  # what `http.client` has called: by key, the digest of what may be repeated

    @property
    def scope(self) -> str:
        """The scope of the guard that this runs under."""
        return self.policy.scope

    @property
    def attempt(self) -> int:
        """Which attempt at this operation this is, counted by the store from 1."""
        return self.answer.attempts

    @property
    def holds(self) -> bool:
        """Whether the claim was granted to it."""
        return not self.replayed and (self.token > 0 or self.answer.kind == "claimed")

    @property
    def generation(self) -> int:
        """How often an operator or a redrive has let this operation start anew."""
        return self.answer.generation

    @property
    def keeps(self) -> int:
        """How long, in microseconds, what is finished inside of this run is kept at least: as what it runs in says."""
        parent = self.parent
        return 0 if parent is None else parent.keeps

    @property
    def lapsed(self) -> bool:
        """Whether the attempt before this one ended without a word: its process died, or lost its lease."""
        return self.answer.lapsed

    @property
    def lease_lost(self) -> bool:
        """Whether another delivery may be running beside this one: stop before the next outside effect.

        True once a renewal was refused, and also when the lease has run out without one getting through.
        """
        monotonic = self.engine.monotonic  # 3.11 calls what an attribute holds slowly
        return self.refused or self.sent_at + self.policy.lease * 1e-6 <= monotonic()

    def provider_key(self, provider: str, *, account: str = "", operation: str = "", step: str = "") -> str:
        """The idempotency key to send to an outside API: the same for every attempt of this operation.

        A UUIDv5 (36 characters) of provider, account, scope, operation, key, step and generation, so that two
        tenants, two effects, or an operator's deliberate retry never share one (in mode S, which knows no
        generations, a retry does). `MissingKey` for a call that runs without a key.
        """
        if not self.key:
            raise MissingKey("this call runs without a key, so no key for a provider can be made from it")
        return provider_key(provider, account, self.scope, operation, self.key, step, str(self.generation))

    def __repr__(self) -> str:
        return f"<running {show(self.scope)} {show(self.key)!r}, attempt {self.attempt}>"

    def asks(self) -> Claim | Look:
        """What the store is asked; of mode S, a look."""
        policy = self.policy
        if policy.seen:
            return Look(policy.scope, self.stored_key, self.fingerprints)
        return Claim(
            policy.scope, self.stored_key, self.owner, policy.lease, policy.hold, policy.max_attempts,
            policy.doubt_on_lapse, self.fingerprints, False, self.note,
        )  # fmt: skip

    def renewal(self) -> Renewal:
        policy = self.policy
        return Renewal(policy.scope, self.stored_key, self.owner, self.token, policy.lease, policy.hold)

    def lost(self) -> None:
        self.engine.leased.discard(self)
        if self.active:  # else it has just settled, and that is why its renewal was refused
            self.refused = True
            # Not by `tell`: this is another thread, and the handler may end just now.
            self.engine.emit("lease_lost", self.scope, self.key, self.attempt, self.token)

    def ended(self) -> None:
        """Whatever came of it: it is renewed no longer, and `current()` is again what it was before."""
        self.engine.leased.discard(self)
        parent = self.parent
        if running.get() is self:  # a coroutine that is closed elsewhere sees another's context
            set_running(parent)
        if parent is not None:
            self.parent = None

    # -- for the flow

    def over(self) -> None:
        """The handler has ended: `current()` is this no longer, and what is told from now on says how long it took."""
        if self.active:
            if self.engine.watched:
                self.took = max(0.0, self.engine.monotonic() - self.started_at)
            self.active = False

    def tell(self, kind: str, detail: str = "") -> None:
        if self.engine.hooks:
            self.engine.emit(kind, self.scope, self.key, self.attempt, self.token, self.took, detail)

    def sealed(self, plain: bytes | None, generation: int) -> bytes | None:
        privacy = self.engine.privacy
        return plain if privacy is None else privacy.seal(plain, self.scope, self.stored_key, generation)

    def opened(self, stored: bytes | None, generation: int) -> bytes | None:
        privacy = self.engine.privacy
        if privacy is None:
            return stored
        return privacy.open(stored, self.scope, self.stored_key, (generation, SEEN_GENERATION))


running: ContextVar[Run | None] = ContextVar("effectonce_running", default=None)
set_running = running.set
reset_running = running.reset


def current() -> Run:
    """The guarded call that this code runs in: key, scope, attempt, token, lease_lost, redriven, provider_key().

    Outside of a guarded handler: `ConfigurationError`. A thread that you start yourself is outside, unless you
    carry the context over (``contextvars.copy_context().run``; ``asyncio.to_thread`` does).
    """
    run = running.get()
    if run is None or not run.active:
        raise ConfigurationError(
            "current() was called outside of a guarded handler; call it in a function under @once, in a block, or "
            "in a thread that carries the handler's context (asyncio.to_thread, copy_context().run)"
        )
    return run


# -- begin ----------------------------------------------------------------------------------------------------


def prepare(
    engine: Engine, policy: Policy, key: str, fingerprints: bytes, first: Callable[..., int] | None = None
) -> Run:
    """A run of ``key``, not begun. `Reentered` where the caller is itself running under that key.

    With the ``first`` of its side it is granted its claim at once where the key is new to a store in this process: it
    has a token then, and `leased` takes the place of `begin`.
    """
    parent = running.get()
    if parent is not None:
        parent = _around(parent, engine, policy.scope, key)
    stored_key = key
    if engine.privacy is not None:
        stored_key = engine.privacy.hide(policy.scope, key)
        fingerprints = engine.privacy.hide_fingerprints(policy.scope, fingerprints)
    if policy.seen:
        return Run(engine, policy, key, stored_key, b"", fingerprints, parent)
    new_owner, monotonic = engine.new_owner, engine.monotonic  # 3.11 calls what an attribute holds slowly
    owner, asked = new_owner(), monotonic()
    if first is None:
        return Run(engine, policy, key, stored_key, owner, fingerprints, parent, asked, 0, asked)
    try:
        token = first(policy.scope, stored_key, owner, policy.lease, policy.hold, policy.doubt_on_lapse, fingerprints)
    except StoreUnavailable as error:
        run = Run(engine, policy, key, stored_key, owner, fingerprints, parent)
        _without_store(run, error)
        return run
    return Run(engine, policy, key, stored_key, owner, fingerprints, parent, asked, token, asked)


def _around(parent: Run | None, engine: Engine, scope: str, key: str) -> Run | None:
    """What a call of ``key`` runs in, unless it runs in itself."""
    while parent is not None and not parent.active:  # of a handler that has ended, and that started this task
        parent = parent.parent
    outer = parent
    while outer is not None:
        if outer.key == key and outer.scope == scope and outer.active and outer.engine is engine:
            raise Reentered(
                f"scope {show(scope)!r} is already running key {show(key)!r} in this call: a handler that calls itself "
                "with its own key would wait for itself; give the inner call its own scope or key"
            )
        outer = outer.parent
    return parent


def begin(run: Run, side: Side) -> Awaitable[None] | None:
    """Claim it. Then, unless ``run.replayed``, the handler is to run; else ``run.value`` is what it gave before.

    Raises what else a claim can come to. Where the store does not answer nothing runs, unless the guard says
    ``on_store_error="run"``. What it returns, if anything, is to be awaited.
    """
    try:
        answer = side.claim(run.asks())
    except StoreUnavailable as error:
        _without_store(run, error)
        return None
    if type(answer) is Answer:
        if answer.kind == "claimed":
            _granted(run, answer)
            return None
        if answer.kind != "in_progress" or run.policy.wait is None:
            _answered(run, answer)
            return None
    return _begin(run, side, answer)


async def _begin(run: Run, side: Side, answer: Any) -> None:
    wait = run.policy.wait
    try:
        if type(answer) is not Answer:
            pending = answer
            try:
                answer = await pending
            except asyncio.CancelledError:
                _give_back(run, pending, side)
                raise
    except StoreUnavailable as error:
        _without_store(run, error)
        return
    if answer.kind == "in_progress" and wait is not None and not run.policy.seen:
        # Here another delivery is known to run: a store that fails now is no reason to run beside it.
        answer = await _wait_turn(run, side, wait)
    _answered(run, answer)


def _answered(run: Run, answer: Answer) -> None:
    kind = answer.kind
    if kind == "claimed":
        _granted(run, answer)
    elif kind == "absent":  # mode S: nothing is held, and nothing is counted
        if run.engine.watched:
            run.started_at = run.engine.monotonic()
            run.tell("claimed")
    else:
        _replay(run, answer)


def _granted(run: Run, answer: Answer) -> None:
    run.answer, run.token = answer, answer.token
    leased(run)


def leased(run: Run) -> None:
    """It has a lease: that is kept from now on, and told."""
    engine = run.engine
    engine.leased.add(run)
    if run.policy.lease < engine.heartbeat.shortest:
        engine.heartbeat.hurry(run.policy.lease)
    if engine.watched:
        # Inside of this process a claim takes no time that would be worth looking at the clock for.
        waited = 0.0
        if not engine.in_process:
            run.started_at = granted = engine.monotonic()
            waited = granted - run.sent_at
        try:
            meter = engine.claimed[run.policy.scope]
        except KeyError:
            meter = None  # not told from in here: a hook that raises would seem to have raised over this
        if meter is None:
            engine.emit("claimed", run.scope, run.key, run.attempt, run.token, waited, "lapsed" if run.lapsed else "")
            return
        try:
            meter(waited)
        except Exception:
            engine.hook_raised("claimed")


def answered(run: Run, reply: Reply) -> None:
    """What `begin` does when its claim is answered, for a run whose ``asks`` went out in a block with others."""
    if type(reply) is Answer:
        _answered(run, reply)
    elif isinstance(reply, StoreUnavailable):
        _without_store(run, reply)
    elif isinstance(reply, Exception):
        raise reply


def _give_back(run: Run, pending: Awaitable[Answer], side: Side) -> None:
    """The caller was cancelled. If that was just as its claim was granted, nobody will run it: free it."""
    if isinstance(pending, asyncio.Future) and pending.done() and not pending.cancelled():
        answer = None if pending.exception() else pending.result()
        op = run.asks()
        if answer is not None and answer.kind == "claimed" and isinstance(op, Claim):
            settled = asyncio.ensure_future(side.settle(release(op, answer)))
            settled.add_done_callback(lambda done: done.cancelled() or done.exception())


async def _wait_turn(run: Run, side: Side, wait: float) -> Answer:
    """Ask again whenever the record may have changed, until it is settled, ours, or ``wait`` is over."""
    engine = run.engine
    monotonic = engine.monotonic
    deadline = monotonic() + wait
    identity = (run.scope, run.stored_key)
    signal = side.signal()
    poll = FIRST_POLL
    claim = run.asks()
    assert isinstance(claim, Claim)
    claim.waiting = True
    try:
        # Registered before the record is asked again, so that a settlement in between is not missed.
        engine.waiters.add(identity, signal.wake)
        engine.listen()
        while True:
            signal.clear()
            run.sent_at = run.started_at = monotonic()
            answer: Answer = side.claim(claim)
            if type(answer) is not Answer:
                pending: Any = answer
                try:
                    answer = await pending
                except asyncio.CancelledError:
                    _give_back(run, pending, side)
                    raise
            left = deadline - monotonic()
            if answer.kind != "in_progress" or left <= 0:
                return answer
            await signal.wait(min(poll, left, max(answer.retry_after, 0.001)))
            poll = min(poll * 2, LAST_POLL)
    finally:
        engine.waiters.remove(identity, signal.wake)


def _without_store(run: Run, error: StoreUnavailable) -> None:
    if not run.policy.run_on_store_error:
        raise error
    unprotected(run, "unprotected", str(error))


def unprotected(run: Run, why: str, detail: str) -> None:
    """Let ``run`` go ahead with nothing claimed: the caller's explicit choice, and an event each time."""
    run.protected = False
    run.sent_at = math.inf
    run.tell(why, detail)


def _replay(run: Run, answer: Answer) -> None:
    """What a call comes to that may not run: the stored value, or an error that says why."""
    run.answer, run.token = answer, answer.token
    run.active = False
    run.replayed = True
    kind = answer.kind
    if kind == "done":
        if run.engine.watched:
            run.tell("replayed")
        stored = run.opened(answer.result, answer.generation)
        if stored is not None:
            stored, run.trace = without_trace(stored)
            if run.trace and run.engine.tracer is not None:
                run.engine.tracer.replayed(run)
            run.value = run.policy.codec.decode(stored)
            return
        if run.policy.codec.discards:
            return
    else:
        run.tell(kind)
    error = answer.error
    if kind == "failed" and error != ABANDONED:  # who gives a private record up may not have its secret
        error = run.opened(error, answer.generation)
    raise refusal(answer, run.scope, run.key, error, run.policy.permanent)


# -- finish and abort -----------------------------------------------------------------------------------------


def finish(run: Run, side: Side, value: Any) -> Awaitable[None] | None:
    """Record the success. `LeaseLost` where another delivery took over; `StoreUnavailable` where it cannot be
    recorded (the effect has happened and may repeat), unless ``on_store_error="run"``. What it returns, if
    anything, is to be awaited."""
    run.active = False
    if not run.protected:
        return None
    engine = run.engine
    watched = engine.watched
    if watched:
        monotonic = engine.monotonic
        took = monotonic() - run.started_at
        if took < 0.0:  # nobody watched its start, in mode S
            took = 0.0
    result: bytes | None
    policy = run.policy
    try:
        result = policy.codec.encode(value)
    except Unstorable as error:
        result = None
        if watched:
            run.took = took
        _not_stored(run, error)
    if watched and engine.traced:
        result = traced(run, result)
    complete = side.complete
    recorded: Any
    try:
        if complete is not None and run.parent is None and not policy.seen:
            recorded = complete(policy.scope, run.stored_key, run.owner, run.token, policy.retention, result)
        else:
            recorded = side.settle(completion_of(run, result))
    except Exception as error:
        recorded = _raised(error)
    if recorded is True and not engine.waiters.waiting:  # what `_recorded` would come to
        if watched:
            try:
                meter = engine.completed[policy.scope]
            except KeyError:
                meter = None
            if meter is None:
                run.took = took
                run.tell("completed")
                return None
            try:
                meter(took)
            except Exception:
                engine.hook_raised("completed")
        return None
    if watched:
        run.took = took
    if type(recorded) is not bool:
        return _finish(run, side, result, recorded)
    _recorded(run, recorded)
    return None


def traced(run: Run, result: bytes | None) -> bytes | None:
    """``result``, with the trace that it was made in, where somebody traces."""
    tracer = run.engine.tracer
    return result if tracer is None or result is None else with_trace(result, run.trace or tracer.context())


def stored_result(run: Run, value: Any) -> bytes | None:
    """``value`` as it is stored; None, and a warning, where it cannot be."""
    try:
        return run.policy.codec.encode(value)
    except Unstorable as error:
        _not_stored(run, error)
        return None


def _not_stored(run: Run, why: Unstorable) -> None:
    log.warning("scope %s: the result is not stored: %s", show(run.scope), str(why))
    run.tell("result_not_stored", str(why))


async def _finish(run: Run, side: Side, result: bytes | None, pending: Awaitable[bool]) -> None:
    try:
        try:
            recorded = await pending
        except (StoreUnavailable, ConfigurationError):
            raise
        except Exception:
            if result is None:
                raise
            recorded = await _insist(run, side, result)
    except StoreUnavailable as error:
        run.tell("unrecorded", str(error))
        if not run.policy.run_on_store_error:
            raise StoreUnavailable(
                f"scope {show(run.scope)!r}, key {show(run.key)!r}: the handler ran, but that could not be recorded: "
                f"the delivery must come again and its effect may repeat: {error}",
                error.retry_after,
            ) from error
    else:
        _recorded(run, recorded)


async def _insist(run: Run, side: Side, result: bytes) -> bool:
    """Once more: what was raised may have been no word of the store's (a time limit, from a signal's handler). If it
    was, the store cannot hold this result. It happened all the same: done, without it."""
    try:
        recorded = side.settle(completion_of(run, result))
        return recorded if type(recorded) is bool else bool(await recorded)
    except (StoreUnavailable, ConfigurationError):
        raise
    except Exception as error:
        run.tell("result_not_stored", f"{type(error).__name__}: {error}")
        recorded = side.settle(completion_of(run, None))
        return recorded if type(recorded) is bool else bool(await recorded)


async def _raised(error: Exception) -> bool:
    raise error


def recorded(run: Run, reply: Reply) -> None:
    """What `finish` does when its completion is answered, for a run whose ``completion_of`` went out in a block."""
    if isinstance(reply, Exception):
        run.tell("unrecorded", str(reply))
        raise reply
    _recorded(run, reply is True)


def _recorded(run: Run, recorded: bool) -> None:
    engine = run.engine
    if engine.waiters.waiting:
        engine.waiters.wake((run.scope, run.stored_key))
    if recorded:
        if engine.watched:
            run.tell("completed")
        return
    run.tell("fenced")
    if not run.policy.seen:  # in mode S a claim, a doubt or a failure of another guard stands there, and says more
        raise LeaseLost(
            f"scope {show(run.scope)!r}, key {show(run.key)!r}: the lease ended and another delivery took over, or an "
            "operator settled it; this attempt's outcome was not recorded and its effect may have happened twice"
        )


def completion_of(run: Run, result: bytes | None) -> Settlement | Remember:
    """What records the success of ``run``."""
    policy = run.policy
    if run.engine.privacy is not None:
        result = run.sealed(result, SEEN_GENERATION if policy.seen else run.answer.generation)
    kept = policy.retention if run.parent is None else max(policy.retention, run.keeps)
    if policy.seen:
        return Remember(policy.scope, run.stored_key, kept, run.fingerprints, result)
    return Settlement(policy.scope, run.stored_key, run.owner, run.token, "done", kept, result)


async def abort(run: Run, side: Side, error: BaseException) -> None:
    """The handler raised ``error``: store a permanent one, else release or doubt. Never raises an `Exception`.

    The handler's own exception is what the caller sees; a settlement that fails leaves the lease to its end.
    """
    run.over()
    policy = run.policy
    if not run.protected or run.replayed or isinstance(error, GeneratorExit):
        return
    if policy.seen:
        run.tell("released", type(error).__name__)
        return
    if not run.holds:  # it was interrupted before its claim was answered
        return
    op = _ending(run, "in_doubt" if policy.doubt_on_error else "free")
    if isinstance(error, policy.permanent) and not isinstance(error, EffectOnceError):
        op.state, op.retention = "failed", max(policy.retention, run.keeps)
        op.error = run.sealed(encode_error(error), run.generation)
    await _end(run, side, op, type(error).__name__)


async def leave(run: Run, side: Side, state: Literal["free", "in_doubt"], why: str, note: bytes | None = None) -> bool:
    """End a run that did not raise and is not done either: free for the next delivery, or in doubt. Whether that is
    recorded.

    ``note``, as `notes.seal_note` makes it, replaces the record's. As `abort`, it never raises an `Exception`.
    """
    run.over()
    if run.protected and run.holds:
        op = _ending(run, state)
        op.note = note
        return await _end(run, side, op, why)
    return True


def _ending(run: Run, state: Literal["free", "in_doubt"]) -> Settlement:
    return Settlement(run.scope, run.stored_key, run.owner, run.token, state, run.policy.hold)


async def _end(run: Run, side: Side, op: Settlement, why: str) -> bool:
    try:
        applied = side.settle(op)
        if type(applied) is not bool:
            applied = await applied
    except Exception as failed:
        log.warning("scope %s: could not be settled as %s: %s", show(run.scope), op.state, failed)
        run.tell("unrecorded", str(failed) if isinstance(failed, EffectOnceError) else type(failed).__name__)
        return False
    if run.engine.waiters.waiting:
        run.engine.waiters.wake((run.scope, run.stored_key))
    run.tell(("released" if op.state == "free" else op.state) if applied else "fenced", why)
    return bool(applied)
