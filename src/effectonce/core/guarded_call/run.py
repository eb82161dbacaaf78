"""`Policy`, the settings of a guard, and `Run`, one guarded call while it lasts. `current()` returns the run.

A `StoreRun` is claimed, renewed and settled in a store. The other runs belong to something that does that for them: a
transaction of the inbox, or a saga, whose step they are.

A run belongs to the task or thread that makes the call. Two fields are written from elsewhere, by the heartbeat's
thread: ``lease_requested_at`` after a renewal, and ``renewal_refused``. Each is one assignment, and the run only reads
it.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from contextvars import ContextVar
from typing import Any, Final, Protocol

from msgspec import Struct
from msgspec.structs import force_setattr

from effectonce.contracts import Hook
from effectonce.core.codec import Codec
from effectonce.core.store_runtime import StoreRuntime
from effectonce.errors import ConfigurationError, MissingKey, show
from effectonce.record import Answer, Claim, Look, Renewal, SettledState, Settlement
from effectonce.values.provider_keys import provider_key

SEEN_SET_GENERATION: Final = -1  # mode S claims no generation, so this one is in the seal of its private results


NO_LEASE: Final = math.inf
"""`Run.lease_requested_at` of a run that holds no lease, so that none can end."""
NEVER_RENEWED: Final = 0.0
"""`Policy.max_run_s` of a guard whose leases are left to end."""


class Policy(Struct, frozen=True, kw_only=True):
    """The settings of one guard. Never written into a store: two guards on one store keep their own."""

    scope: str
    codec: Codec
    seen_set: bool = False  # mode S: no claim, only a record of each success
    lease_us: int = 30_000_000
    retention_us: int
    #: How long a record that is not finished is kept after its last change; 0: as long as a finished one.
    unfinished_retention_us: int = 0
    wait_s: float | None = None
    max_attempts: int = 0
    max_run_s: float = 3600.0  # how long its lease is renewed; then it is left to end
    doubt_on_error: bool = False
    doubt_on_lapse: bool = False
    run_on_store_error: bool = False
    permanent: tuple[type[BaseException], ...] = ()
    logs_failures: bool = False  # what runs the handler logs each attempt that fails: a worker, a saga

    def __post_init__(self) -> None:
        if not self.unfinished_retention_us:
            force_setattr(self, "unfinished_retention_us", self.retention_us)


class RunRuntime(Protocol):
    """What a `Run` uses of the process it runs in; a `StoreRuntime`, or the like without a store."""

    hooks: tuple[Hook, ...]
    #: The clock of its lease, in seconds.
    monotonic: Callable[[], float]

    def emit(self, kind: Any, scope: str, key: str, attempt: int, token: int, seconds: float, why: str, /) -> None: ...


class Run(Struct, eq=False, gc=False):
    """One guarded call while it lasts."""

    # The cycle collector does not track runs: no field leads back to its run. With all that a worker keeps of each
    # message tracked, collections took 12 % of its time (no-op handler, Redis Streams).

    runtime: RunRuntime
    policy: Policy
    key: str
    parent: Run | None
    stored_key: str = ""  # what the store sees: the key, or its keyed hash
    owner: bytes = b""  # 16 random bytes that identify its claim; b"" in mode S, which claims nothing
    fingerprints: bytes = b""
    #: When the lease was last asked for, on the monotonic clock. The lease counts from here, not from the reply: the
    #: store's clock starts it in between.
    lease_requested_at: float = NO_LEASE
    token: int = 0
    """The claim's fencing token: it grows from claim to claim, so outside systems can refuse an older one."""
    started_at: float = math.inf  # when its claim was granted
    answer: Answer = Answer("absent", attempts=1)  # the store's answer to its claim
    active: bool = True  # its handler has not ended yet
    protected: bool = True  # False: nothing is settled, since the store did not answer, or this is a forked child
    replayed: bool = False  # the handler does not run: it ran before, or the claim was refused
    redriven: bool = False
    renewal_refused: bool = False  # another delivery took over
    value: Any = None  # of a replay: what the first run returned
    bypassing: bool = False  # redriven, and to skip effects outside: see `bypass_external_effects`
    handler_seconds: float = 0.0  # how long its handler ran, once it has ended
    note: bytes | None = None  # stored with the claim if the record has no note; sealed already
    trace: bytes = b""  # of its handler; of a replay, the trace of the run whose result it gets
    calls: dict[str, bytes] | None = None  # requests of `http.client`: by key, the digest that a repetition must have

    @property
    def scope(self) -> str:
        """The scope of its guard."""
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
        """How often an operator or a redrive has let this operation start again."""
        return self.answer.generation

    @property
    def min_retention(self) -> int:
        """The shortest retention, in microseconds, of a record that is finished inside this run. 0 unless a run around
        it says otherwise, as a saga's does."""
        return 0 if self.parent is None else self.parent.min_retention

    @property
    def logs_failures(self) -> bool:
        """Whether an error that leaves the handler is logged by what runs it, or by a run around it. What fails inside
        is not logged on its own then: the same error would be logged twice."""
        return self.policy.logs_failures or (self.parent is not None and self.parent.logs_failures)

    @property
    def lapsed(self) -> bool:
        """Whether the attempt before this one never reported an outcome: its process died, or lost its lease."""
        return self.answer.lapsed

    @property
    def lease_lost(self) -> bool:
        """Whether another delivery may be running beside this one: stop before the next outside effect.

        True once a renewal was refused, and when the lease has run out without one getting through, even if no
        other delivery has taken over. So raise, `Retryable` for example: a handler that returns is recorded as done if
        none has, and its effect is lost.
        """
        return self.renewal_refused or self.lease_requested_at + self.policy.lease_us / 1e6 <= self.runtime.monotonic()

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

    # -- its life

    def enter(self) -> None:
        """Make this the run that `current()` returns."""
        current_run.set(self)

    def end_handler(self) -> None:
        """Note that the handler has ended: `current()` no longer returns this, and later events say how long it ran."""
        if self.active:
            self.handler_seconds = max(0.0, self.runtime.monotonic() - self.started_at)
            self.active = False

    def emit(self, kind: str, detail: str = "", seconds: float | None = None) -> None:
        """Emit an event about this run. ``seconds`` is how long that took; by default, how long the handler ran."""
        runtime = self.runtime
        if runtime.hooks:
            duration = self.handler_seconds if seconds is None else seconds
            runtime.emit(kind, self.scope, self.key, self.attempt, self.token, duration, detail)


class StoreRun(Run, eq=False, gc=False):
    """One guarded call that a store grants.

    `begin` claims it, the guard calls the handler, and `finish` or `abort` settles it. From the granted claim to `end`
    it is in ``runtime.leased_runs``, where the heartbeat, on its own thread, finds it and renews its lease.
    """

    runtime: StoreRuntime

    # -- what the store is asked

    def claim_request(self) -> Claim | Look:
        """Make the request that asks the store whether this may run: a claim, or a look in mode S."""
        policy = self.policy
        if policy.seen_set:
            return Look(policy.scope, self.stored_key, self.fingerprints)
        return Claim(
            scope=policy.scope,
            key=self.stored_key,
            owner=self.owner,
            lease_us=policy.lease_us,
            retention_us=policy.unfinished_retention_us,
            max_attempts=policy.max_attempts,
            doubt_on_lapse=policy.doubt_on_lapse,
            fingerprints=self.fingerprints,
            note=self.note,
        )

    def renewal(self) -> Renewal:
        policy = self.policy
        retention = policy.unfinished_retention_us
        return Renewal(policy.scope, self.stored_key, self.owner, self.token, policy.lease_us, retention)

    def settlement(self, state: SettledState, retention: int, result: bytes | None = None) -> Settlement:
        return Settlement(self.policy.scope, self.stored_key, self.owner, self.token, state, retention, result)

    def seal(self, plain: bytes | None) -> bytes | None:
        """Encrypt ``plain`` for the store, where the store is private."""
        privacy = self.runtime.privacy
        if privacy is None:
            return plain
        generation = SEEN_SET_GENERATION if self.policy.seen_set else self.generation
        return privacy.seal(plain, self.scope, self.stored_key, generation)

    def unseal(self, stored: bytes | None, generation: int) -> bytes | None:
        privacy = self.runtime.privacy
        if privacy is None:
            return stored
        return privacy.open(stored, self.scope, self.stored_key, (generation, SEEN_SET_GENERATION))

    # -- its lease

    def mark_lease_lost(self) -> None:
        """A renewal was refused. Called by the heartbeat, on its own thread."""
        self.runtime.leased_runs.discard(self)
        if self.active:  # else its own settlement has just ended the claim, so no lease was lost
            self.renewal_refused = True
            self.emit("lease_lost", seconds=0.0)  # on this thread it is not known how long the handler ran

    def end(self) -> None:
        """Stop the renewals of its lease, and let `current()` return the run around it again."""
        self.active = False
        self.runtime.leased_runs.discard(self)
        if current_run.get() is self:  # not so if a coroutine is closed in another context
            current_run.set(self.parent)
        self.parent = None


current_run: ContextVar[Run | None] = ContextVar("effectonce_running", default=None)


def current() -> Run:
    """Return the guarded call that this code runs in: key, scope, attempt, token, lease_lost, redriven, provider_key().

    Raises `ConfigurationError` outside of a guarded handler. A thread that you start yourself is outside, unless you
    carry the context over (``contextvars.copy_context().run``; ``asyncio.to_thread`` does).
    """
    run = current_run.get()
    if run is None or not run.active:
        raise ConfigurationError(
            "current() was called outside of a guarded handler; call it in a function under @once, in a block, or "
            "in a thread that carries the handler's context (asyncio.to_thread, copy_context().run)"
        )
    return run
