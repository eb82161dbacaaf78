"""Fault points: injecting a fault into one delivery, at any of its steps, inside this process.

A step is a line of the user's own code, or an operation of the store, the broker or the database, before or after it is
executed. A killed delivery reaches no store, broker or database any more. Its ``finally`` blocks do run, since Python
unsets a trace function that has raised: an effect that a handler has in one is counted.
"""

from __future__ import annotations

import linecache
import site
import sys
import sysconfig
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from functools import cache
from pathlib import Path
from types import CodeType, FrameType
from typing import Any, Final, Literal, NamedTuple

from effectonce.backends.memory.store import MemoryStoreBackend
from effectonce.contracts import Capabilities, Dialect
from effectonce.errors import ConfigurationError, StoreUnavailable, show
from effectonce.record import Batchable, Claim, Look, Note, Operation, Remember, Renewal, Reply, Settlement

from .clock import ManualClock
from .wrapper import Wrapper

Fault = Literal["killed", "raises", "loses its store"]
StepKind = Literal["line", "store", "broker", "database"]

MAX_STEPS_OF_LINE: Final = 50
"""How often a line is a step in one delivery. A loop over 20,000 rows would take a minute otherwise."""

_SETTLEMENT_NAMES = {"done": "complete", "free": "release", "failed": "fail", "in_doubt": "doubt"}
_OPERATION_NAMES = {Claim: "claim", Look: "look", Note: "note", Remember: "remember", Renewal: "renew"}


def operation_name(op: Batchable) -> str:
    """Return the name of ``op`` in timelines: ``"claim"``, ``"complete"``, ``"release"``, ``"refund"`` and so on."""
    if isinstance(op, Settlement):
        return "refund" if op.refund else _SETTLEMENT_NAMES[op.state]
    return _OPERATION_NAMES[type(op)]


class Killed(BaseException):
    """The process of this delivery died here. It is not an `Exception`, so that no handler can catch it."""


class InjectedError(RuntimeError):
    """The error that a handler raises because a test injects it."""


class FaultPoint(NamedTuple):
    description: str
    kind: StepKind


class FaultInjector:
    """Records the steps of one delivery, and injects ``fault`` at the step with index ``at``, if any."""

    def __init__(self, fault: Fault = "killed", at: int | None = None) -> None:
        self.fault = fault
        self.at = at
        self.steps: list[FaultPoint] = []
        self.killed = False
        self.armed = True  # False: the delivery has not begun, and nothing is a step yet
        self._line_counts: dict[tuple[CodeType, int], int] = {}  # how often each line has run

    def reach_step(self, description: str, kind: StepKind) -> None:
        """Record a step, and raise if a fault is to be injected there."""
        if self.killed:
            raise Killed
        if not self.armed:
            return
        self.steps.append(FaultPoint(description, kind))
        if len(self.steps) - 1 != self.at:
            return
        if self.fault == "killed":
            self.killed = True
            raise Killed
        if self.fault == "raises":
            raise InjectedError(f"made to fail before {description}")
        raise StoreUnavailable(f"made to fail at {description}", 0.0)

    def fault_points(self, kind: StepKind | None = None, limit: int = 60) -> Sequence[int]:
        """Return indexes of steps at which to inject a fault into another delivery: all of that kind, or ``limit``
        evenly spread ones. None: of any kind."""
        points = [index for index, step in enumerate(self.steps) if kind in (None, step.kind)]
        if len(points) <= limit:
            return points
        return [points[index * len(points) // limit] for index in range(limit)]

    @property
    def used_store(self) -> bool:
        """Whether the delivery asked a store of ours."""
        return any(step.kind == "store" for step in self.steps)

    def trace_steps(self, *, new_threads: bool = False) -> AbstractContextManager[None]:
        """Make every line of the user's own code that this thread runs inside the ``with`` a step; with
        ``new_threads`` the lines of threads that are started there, too."""
        return trace_lines(self.trace_line, new_threads=new_threads)

    @staticmethod
    def is_step(frame: FrameType) -> bool:
        """Tell whether the lines of ``frame`` are steps: those of the user's own code are."""
        return _is_user_code(frame.f_code.co_filename)

    def trace_line(self, frame: FrameType, event: str, argument: Any) -> Any:
        if event == "line" and self._is_new_step(frame):
            path, line = frame.f_code.co_filename, frame.f_lineno
            self.reach_step(f"{Path(path).name}:{line}  {show(linecache.getline(path, line).strip(), 80)}", "line")
        return self.trace_line

    def _is_new_step(self, frame: FrameType) -> bool:
        """Tell whether the line that ``frame`` is about to run is a step: not after `MAX_STEPS_OF_LINE` times."""
        if self.killed or not self.armed:
            return self.killed
        line = frame.f_code, frame.f_lineno
        count = self._line_counts[line] = self._line_counts.get(line, 0) + 1
        return count <= MAX_STEPS_OF_LINE


TraceFunction = Callable[[FrameType, str, Any], Any]


@contextmanager
def trace_lines(trace: TraceFunction, *, new_threads: bool = False) -> Iterator[None]:
    """Call ``trace`` for every line of the user's own code that this thread runs inside the ``with``; with
    ``new_threads`` also for those of threads that are started there."""
    before, thread_trace, thread_profile = sys.gettrace(), threading.gettrace(), threading.getprofile()
    _tracer.trace = trace
    sys.settrace(_tracer.enter)
    if new_threads:
        threading.settrace(_tracer.enter)
        threading.setprofile(_tracer.keep_tracing)
    try:
        yield
    finally:
        threading.setprofile(thread_profile)
        threading.settrace(thread_trace)
        sys.settrace(before)
        _tracer.trace = None


class _Tracer:
    """The trace function of every thread. Those of a pool outlive the delivery that started them: they ask it who
    traces now."""

    def __init__(self) -> None:
        self.trace: TraceFunction | None = None

    def enter(self, frame: FrameType, event: str, argument: Any) -> Any:
        return self.trace if self.trace is not None and FaultInjector.is_step(frame) else None

    def keep_tracing(self, frame: FrameType, event: str, argument: Any) -> None:
        """Set the trace function of this thread again: Python unsets one that has raised, as a fault does."""
        if self.trace is not None and sys.gettrace() is None:
            sys.settrace(self.enter)


_tracer = _Tracer()


@cache
def _is_user_code(path: str) -> bool:
    """Tell whether a file belongs neither to the interpreter, nor to an installed package, nor to effectonce."""
    if path.startswith("<") or {"site-packages", "dist-packages"}.intersection(Path(path).parts):
        return False
    paths = sysconfig.get_paths()
    own = [paths["stdlib"], paths["platstdlib"], paths["purelib"], paths["platlib"], *site.getsitepackages()]
    own.append(str(Path(__file__).parents[1]))
    return not any(Path(path).is_relative_to(folder) for folder in own)


class FaultInjectingBackend(Wrapper):
    """A store in memory whose operations are steps of the current injector. Its clock is moved by hand.

    To a delivery that was killed it raises `Killed`; with ``survives_kills`` it is a store that does not answer, for a
    worker whose tasks must come to their end.
    """

    def __init__(self, *, survives_kills: bool = False) -> None:
        self.survives_kills = survives_kills
        self.clock = ManualClock()
        self.injector = FaultInjector()
        super().__init__(MemoryStoreBackend(clock=self.clock))
        self.capabilities: Capabilities = self._inner.capabilities

    def sync_port(self) -> Any:
        return FaultInjectingPort(self, self._inner.sync_port())

    async_port = sync_port

    def completion(self, op: Settlement) -> tuple[Dialect, Sequence[tuple[str, Sequence[Any]]]]:
        """Refuse to complete an intent in the caller's transaction: this store is not in its database."""
        raise ConfigurationError(
            "your transaction completes an intent, and its store is replaced by one in memory here: let it stay, with "
            "keep_stores=[store] or --keep-store MODULE:STORE"
        )

    def note_operation(self, op: Operation, reply: Reply) -> None:
        """A store in memory needs no notes: it is thrown away."""

    def __repr__(self) -> str:
        return "memory:// (under test)"


class FaultInjectingPort(Wrapper):
    """Only what a claim or a settlement needs is a step; the operations of operators are not."""

    def __init__(self, backend: Any, port: Any) -> None:
        super().__init__(port)
        self._backend = backend

    async def run(self, batch: Sequence[Batchable]) -> Sequence[Reply]:
        return [await self._run_one(op) for op in batch]

    async def _run_one(self, op: Batchable) -> Reply:
        reply: Reply
        try:
            injector = self._backend.injector
            injector.reach_step(f"{operation_name(op)}: sent to the store", "store")
            (reply,) = await self._inner.run([op])
            self._backend.note_operation(op, reply)
            injector.reach_step(f"{operation_name(op)}: done, and the reply is on its way", "store")
        except Killed:
            if not self._backend.survives_kills:
                raise
            raise StoreUnavailable("the process was killed", 0.0) from None
        return reply
