"""What a trial delivers to: functions and Celery tasks here, handlers of workers and HTTP routes in their own modules.

A `Subject` says how a message reaches it, and what its mode allows. An `Operation` is one message, which a trial
delivers as often as it wants.
"""

from __future__ import annotations

import asyncio
import gc
import inspect
import logging
from collections.abc import AsyncIterator, Callable, Collection, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from traceback import clear_frames
from typing import Any, Final, Literal, Protocol, runtime_checkable

from msgspec import Struct
from msgspec.structs import replace

from effectonce.errors import ConfigurationError, EffectOnceError, InDoubt, PermanentFailure, Retryable
from effectonce.guard.introspection import is_async, name_of
from effectonce.guard.once import Guarded, find_guarded
from effectonce.message import Message, message_id
from effectonce.store import Store, all_stores

from .fault_points import FaultInjectingBackend, FaultInjector, Killed
from .lockstep import call_in_lockstep

CONCURRENT_DELIVERIES: Final = 5
HOUR_US: Final = 3_600_000_000
PARKING_ERRORS: Final = (InDoubt, PermanentFailure)
"""After these a message is not redelivered, and an operator finds it."""
HANDLER_ERRORS: Final = (Exception, SystemExit)
"""What a handler may end with. After a ``sys.exit()`` its worker is gone, and the message is redelivered."""

LOST_REMEDY: Final = (
    "The delivery was taken for done without its effect: record it after the effect, or in one transaction with it "
    "(eo.Inbox), and let what failed be delivered again."
)
UNGUARDED_REMEDY: Final = (
    "The second delivery cannot know that there was a first: guard the handler with @eo.once(store, key=...), or "
    "with an eo.Inbox where the effect is a row of yours."
)
EARLY_ACK_REMEDY: Final = (
    "Celery acks this task before it runs, so a worker that dies loses it: set acks_late=True and "
    "reject_on_worker_lost=True, as base=OnceTask and guard_tasks(app, store) do."
)

DeliveryStatus = Literal["done", "redeliver", "parked", "refused"]
"""What happens to a message: it is done, is delivered again, waits for an operator, or is given up by its queue."""


class DeliveryResult(Struct, frozen=True):
    """How one delivery ended, or several at once."""

    outcome: str  # for the timeline
    status: DeliveryStatus
    value: Any = None  # what the sender gets for it
    has_value: bool = False
    error: BaseException | None = None


class Operation(Protocol):
    """One message that is new in its trial."""

    async def deliver(self, injector: FaultInjector) -> DeliveryResult:
        """Deliver it once, with the steps of ``injector``."""

    async def deliver_concurrently(self) -> DeliveryResult:
        """Deliver it `CONCURRENT_DELIVERIES` times at once."""


class Subject(Protocol):
    """What is tried."""

    name: str
    is_async: bool
    #: They are replaced by one in memory in each trial.
    stores: Collection[Store]
    #: How far the clock is advanced before a redelivery.
    redelivery_pause_us: int
    #: Its mode lets concurrent duplicates run side by side.
    may_overlap: bool
    #: What to say where the effect was lost, and where a second delivery had it again.
    lost_remedy: str
    unguarded_remedy: str

    def may_rerun(self, clean: FaultInjector) -> bool:
        """Whether its mode allows a second effect after a delivery that recorded nothing. ``clean``: one without a
        fault."""

    def make_backend(self) -> FaultInjectingBackend:
        """Make the store of one trial."""

    def begin(self, backend: FaultInjectingBackend) -> Operation:
        """Make the message of one trial."""

    def running(self) -> Any:
        """Return an async context manager around all trials."""


class FunctionSubject:
    """A function, guarded or not, that is called with its arguments."""

    lost_remedy = LOST_REMEDY
    unguarded_remedy = UNGUARDED_REMEDY

    def __init__(
        self, function: Callable[..., Any], args: Sequence[Any], kwargs: dict[str, Any], store: Store | None
    ) -> None:
        guarded = function if isinstance(function, Guarded) else None
        self._function = function
        self._args, self._kwargs = args, kwargs
        self.name = name_of(function)
        self.is_async = is_async(function)
        self.stores: Collection[Store] = set() if store is None else {store}
        if guarded is not None:
            self.stores = {*self.stores, guarded.store}
        self.redelivery_pause_us = HOUR_US if self.stores else 0  # without a store of ours there is no clock
        if guarded is not None:
            self.redelivery_pause_us = guarded.policy.lease_us * 2
        self.may_overlap = guarded is not None and guarded.policy.seen_set

    def may_rerun(self, clean: FaultInjector) -> bool:
        return bool(self.stores)

    def make_backend(self) -> FaultInjectingBackend:
        return FaultInjectingBackend()

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        yield

    def begin(self, backend: FaultInjectingBackend) -> Operation:
        return FunctionCall(self._function, [renew_message(argument) for argument in self._args], self._kwargs)


class FunctionCall:
    """Calls a function with the same arguments each time."""

    def __init__(self, function: Callable[..., Any], args: Sequence[Any], kwargs: dict[str, Any]) -> None:
        self._function, self._args, self._kwargs = function, args, kwargs

    def call(self) -> Any:
        return self._function(*self._args, **self._kwargs)

    async def deliver(self, injector: FaultInjector) -> DeliveryResult:
        try:
            with injector.trace_steps():
                value = self.call()
                if is_async(self._function):
                    value = await value
        except Killed as killed:
            drop_frames(killed)
            return DeliveryResult(killed_before(injector), "redeliver", error=killed)
        except HANDLER_ERRORS as error:
            drop_frames(error)
            return DeliveryResult(f"it raised {type(error).__name__}: {error}", _status_after(error), error=error)
        if inspect.isawaitable(value):
            if inspect.iscoroutine(value):
                value.close()
            raise ConfigurationError(
                f"{name_of(self._function)} returned something that must be awaited, so nothing happened: give the "
                "function itself, which is below the decorator of its framework"
            )
        return DeliveryResult("it returned", "done", value, has_value=True)

    async def deliver_concurrently(self) -> DeliveryResult:
        outcomes: Sequence[Any]
        if is_async(self._function):
            calls = [self._call_async() for _ in range(CONCURRENT_DELIVERIES)]
            outcomes = await asyncio.gather(*calls, return_exceptions=True)
        else:
            outcomes = call_in_lockstep(self.call, CONCURRENT_DELIVERIES, FaultInjector.is_step)
        return summarize([outcome for outcome in outcomes if isinstance(outcome, BaseException)])

    async def _call_async(self) -> Any:
        """Call the function, and return what it returns or raises: an event loop would end at a SystemExit."""
        try:
            return await self.call()
        except HANDLER_ERRORS as error:
            return error


def summarize(errors: Sequence[BaseException]) -> DeliveryResult:
    """Make the end of concurrent deliveries, of which those with ``errors`` did not return."""
    names = ", ".join(sorted({type(error).__name__ for error in errors}))
    others = f"the others raised {names}" if names else "none raised"
    returned = CONCURRENT_DELIVERIES - len(errors)
    outcome = f"{CONCURRENT_DELIVERIES} deliveries at once: {returned} returned, {others}"
    if not errors:
        return DeliveryResult(outcome, "done")
    return DeliveryResult(outcome, "redeliver", error=errors[0])


def drop_frames(error: BaseException | None) -> None:
    """Let go of the frames that ``error`` came through. A connection that their local variables hold would stay open,
    with its locks: the process is to be gone."""
    while error is not None:
        clear_frames(error.__traceback__)
        error.__traceback__ = None
        error = error.__context__
    gc.collect()  # sqlite3's connections refer to themselves


@contextmanager
def collecting_only_new_objects() -> Iterator[None]:
    """Let `drop_frames` look only at objects that are made inside the ``with``. It collects garbage after every kill,
    and in the heap of a large test session each collection took half a second."""
    was_frozen = gc.get_freeze_count() > 0
    gc.collect()
    gc.freeze()
    try:
        yield
    finally:
        if not was_frozen:  # otherwise the program has frozen objects of its own, which stay so
            gc.unfreeze()


@contextmanager
def muted_log() -> Iterator[None]:
    """Keep the logger ``effectonce`` silent: it would report each injected fault as a failure."""
    log = logging.getLogger("effectonce")
    before, log.disabled = log.disabled, True
    try:
        yield
    finally:
        log.disabled = before


def killed_before(injector: FaultInjector) -> str:
    """Say where a delivery was killed."""
    return f"its process was killed before {injector.steps[-1].description}"


def _status_after(error: BaseException) -> DeliveryStatus:
    if isinstance(error, PARKING_ERRORS):
        return "parked"
    if isinstance(error, EffectOnceError) and not isinstance(error, Retryable):
        return "refused"
    return "redeliver"


def renew_message(argument: Any) -> Any:
    """Return a `Message` with another id and key; any other argument as it is."""
    if not isinstance(argument, Message):
        return argument
    fresh_id = message_id()
    return replace(argument, id=fresh_id, key=fresh_id)


# -- Celery


@runtime_checkable
class CeleryTask(Protocol):
    """How a Celery task is recognised, without importing Celery."""

    name: str
    acks_late: bool
    run: Callable[..., Any]

    def apply(self, args: Any = None, kwargs: Any = None, **options: Any) -> Any: ...

    def apply_async(self, args: Any = None, kwargs: Any = None, **options: Any) -> Any: ...


class CelerySubject(FunctionSubject):
    """A Celery task, run by Celery's own tracer, without a broker. A killed worker's task is redelivered only if it is
    acked late."""

    def __init__(self, task: CeleryTask, args: Sequence[Any], kwargs: dict[str, Any], store: Store | None) -> None:
        function = getattr(task, "_orig_run", task.run)  # Celery wraps it for ``autoretry_for``
        super().__init__(find_guarded(function) or function, args, kwargs, store)
        self._task = task
        self.name = task.name
        self.stores = all_stores()
        self.redelivery_pause_us = self.redelivery_pause_us or HOUR_US
        self.lost_remedy = LOST_REMEDY if task.acks_late else EARLY_ACK_REMEDY

    def may_rerun(self, clean: FaultInjector) -> bool:
        return clean.used_store

    def begin(self, backend: FaultInjectingBackend) -> Operation:
        return _CeleryDelivery(self._task, self._args, self._kwargs)


class _CeleryDelivery(FunctionCall):
    """Every delivery of one message has the same task id."""

    def __init__(self, task: CeleryTask, args: Sequence[Any], kwargs: dict[str, Any]) -> None:
        super().__init__(task.run, args, kwargs)
        self._task = task
        self._id = message_id()

    def call(self) -> Any:
        return self._task.apply(self._args, self._kwargs, task_id=self._id, throw=True).result

    async def deliver(self, injector: FaultInjector) -> DeliveryResult:
        delivered = await super().deliver(injector)
        if injector.killed and not self._task.acks_late:
            return DeliveryResult(f"{delivered.outcome}, after it was acked", "done", error=delivered.error)
        return delivered
