"""One guarded call while it lasts: its settings, what `current()` returns, and what the heartbeat renews."""

from __future__ import annotations

import math
from contextvars import ContextVar
from typing import Any, Final

from msgspec import Struct
from msgspec.structs import force_setattr

from effectonce.core.codec import Codec
from effectonce.core.store_runtime import StoreRuntime
from effectonce.errors import ConfigurationError, MissingKey, show
from effectonce.record import Answer, Claim, Look, Renewal
from effectonce.values.provider_keys import provider_key

SEEN_GENERATION: Final = -1  # what a private result is bound to in mode S, which claims no generation


class Policy(Struct, frozen=True, kw_only=True):
    """The settings of one guard. Never written into a store: two guards on one store keep their own.

    ``lease``, ``retention`` and ``hold`` are in microseconds, ``wait`` and ``max_run`` in seconds.
    """

    scope: str
    codec: Codec
    seen: bool = False  # mode S
    lease: int = 30_000_000
    retention: int = 15 * 86_400_000_000
    hold: int = 0  # how long a record that is not finished is kept after its last change; 0: as long as a finished one
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


class Run(Struct, eq=False, gc=False):
    """One guarded call: what `current()` returns, what the heartbeat renews, what an Outcome is made of.

    The cycle collector does not track runs: no field leads back to its run. With all that a worker keeps of each
    message tracked, collections took 12 % of its time (no-op handler, Redis Streams).
    """

    runtime: StoreRuntime
    policy: Policy
    key: str
    stored_key: str  # what the store sees: the key, or its keyed hash
    owner: bytes  # what its claim is known by; b"": nothing is claimed
    fingerprints: bytes
    parent: Run | None
    sent_at: float = math.inf  # when the lease was last asked for; inf: none is held, so none can be lost
    token: int = 0
    """The claim's fencing token: it grows from claim to claim, so outside systems can refuse an older one."""
    started_at: float = math.inf  # when its claim was granted
    answer: Answer = Answer("absent", attempts=1)  # the store's answer to its claim
    active: bool = True
    protected: bool = True
    replayed: bool = False  # what `begin` decided: the handler is not to run, it ran before
    redriven: bool = False
    refused: bool = False  # a renewal was refused: another delivery took over
    value: Any = None  # of a replay: what the first run gave
    bypassing: bool = False  # redriven, and effects outside are to be skipped: see `bypass_external_effects`
    took: float = 0.0  # how long its handler ran, in seconds, once it has ended
    note: bytes | None = None  # the note that the claim writes where the record has none, as it is stored
    trace: bytes = b""  # of its handler; of a replay, that of the run whose result it gets
    calls: dict[str, bytes] | None = None  # requests of `http.client`: by key, the digest that a repetition must have

    @property
    def scope(self) -> str:
        """The scope of the guard that this runs under."""
        return self.policy.scope

    @property
    def attempt(self) -> int:
        """Which attempt at this operation this is, counted by the store from 1."""
        return self.answer.attempts

    @property
    def holds_claim(self) -> bool:
        """Whether the claim was granted to it."""
        return not self.replayed and self.answer.kind == "claimed"

    @property
    def generation(self) -> int:
        """How often an operator or a redrive has let this operation start anew."""
        return self.answer.generation

    @property
    def min_retention(self) -> int:
        """How long, in microseconds, what is finished inside of this run is kept at least: as what it runs in says."""
        return 0 if self.parent is None else self.parent.min_retention

    @property
    def lapsed(self) -> bool:
        """Whether the attempt before this one never reported an outcome: its process died, or lost its lease."""
        return self.answer.lapsed

    @property
    def lease_lost(self) -> bool:
        """Whether another delivery may be running beside this one: stop before the next outside effect.

        True once a renewal was refused, and also when the lease has run out without one getting through.
        """
        return self.refused or self.sent_at + self.policy.lease / 1e6 <= self.runtime.monotonic()

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

    # -- what the store is asked

    def claim_request(self) -> Claim | Look:
        """Make the request that asks the store whether this may run: a claim, or a look in mode S."""
        policy = self.policy
        if policy.seen:
            return Look(policy.scope, self.stored_key, self.fingerprints)
        return Claim(
            scope=policy.scope,
            key=self.stored_key,
            owner=self.owner,
            lease=policy.lease,
            retention=policy.hold,
            max_attempts=policy.max_attempts,
            doubt_on_lapse=policy.doubt_on_lapse,
            fingerprints=self.fingerprints,
            note=self.note,
        )

    def renewal(self) -> Renewal:
        policy = self.policy
        return Renewal(
            scope=policy.scope,
            key=self.stored_key,
            owner=self.owner,
            token=self.token,
            lease=policy.lease,
            retention=policy.hold,
        )

    def seal(self, plain: bytes | None) -> bytes | None:
        """Encrypt ``plain`` for the store, where the store is private."""
        privacy = self.runtime.privacy
        if privacy is None:
            return plain
        generation = SEEN_GENERATION if self.policy.seen else self.generation
        return privacy.seal(plain, self.scope, self.stored_key, generation)

    def unseal(self, stored: bytes | None, generation: int) -> bytes | None:
        privacy = self.runtime.privacy
        if privacy is None:
            return stored
        return privacy.open(stored, self.scope, self.stored_key, (generation, SEEN_GENERATION))

    # -- its life

    def enter(self) -> None:
        """Make this what `current()` returns."""
        running.set(self)

    def mark_lost(self) -> None:
        """A renewal was refused. Called by the heartbeat, on its own thread."""
        self.runtime.leased_runs.discard(self)
        if self.active:  # else it has just settled, and that is why its renewal was refused
            self.refused = True
            self.emit("lease_lost", seconds=0.0)  # the handler may end just now: how long it took is not known

    def stop_clock(self) -> None:
        """Note that the handler has ended: this is no longer `current()`, and later events say how long it took."""
        if self.active:
            self.took = max(0.0, self.runtime.monotonic() - self.started_at)
            self.active = False

    def end(self) -> None:
        """Stop the renewals of its lease, and make `current()` what it was before."""
        self.runtime.leased_runs.discard(self)
        if running.get() is self:  # a coroutine that is closed elsewhere sees another's context
            running.set(self.parent)
        self.parent = None

    def emit(self, kind: str, detail: str = "", seconds: float | None = None) -> None:
        """Report what has happened to this run; ``seconds``: how long that took, if not as long as its handler."""
        runtime = self.runtime
        if runtime.hooks:
            took = self.took if seconds is None else seconds
            runtime.emit(kind, self.scope, self.key, self.attempt, self.token, took, detail)


running: ContextVar[Run | None] = ContextVar("effectonce_running", default=None)


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
