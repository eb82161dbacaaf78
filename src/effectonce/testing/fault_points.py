"""Fault points: injecting a fault into one delivery, at any of its steps, inside this process.

A step is a line of the user's own code, or a store operation before or after it is executed. A killed delivery runs no
more store operations, not even those in its ``finally`` blocks: the process is gone.
"""

from __future__ import annotations

import linecache
import site
import sys
import sysconfig
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from types import FrameType
from typing import Any, Literal, NamedTuple

from effectonce.backends.memory.store import MemoryStoreBackend
from effectonce.contracts import Capabilities
from effectonce.errors import StoreUnavailable, show
from effectonce.record import Batchable, Claim, Look, Note, Remember, Renewal, Reply, Settlement

from .clock import ManualClock
from .wrapper import Wrapper

Fault = Literal["killed", "raises", "loses its store"]

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
    at_store: bool  # a store operation, not a line of code


class FaultInjector:
    """Records the steps of one delivery, and injects ``fault`` at the step with index ``at``, if any."""

    def __init__(self, fault: Fault = "killed", at: int | None = None) -> None:
        self.fault = fault
        self.at = at
        self.steps: list[FaultPoint] = []
        self.killed = False

    def reach_step(self, description: str, at_store: bool) -> None:
        """Record a step, and raise if a fault is to be injected there."""
        if self.killed:
            raise Killed
        self.steps.append(FaultPoint(description, at_store))
        if len(self.steps) - 1 != self.at:
            return
        if self.fault == "killed":
            self.killed = True
            raise Killed
        if self.fault == "raises":
            raise InjectedError(f"made to fail before {description}")
        raise StoreUnavailable(f"made to fail at {description}", 0.0)

    def fault_points(self, at_store: bool | None = None, limit: int = 60) -> Sequence[int]:
        """Return indexes of steps at which to inject a fault into another delivery: all, or ``limit`` evenly spread
        ones."""
        points = [index for index, step in enumerate(self.steps) if at_store in (None, step.at_store)]
        if len(points) <= limit:
            return points
        return [points[index * len(points) // limit] for index in range(limit)]

    @contextmanager
    def trace_steps(self) -> Iterator[None]:
        """Make every line of the user's own code that this thread runs inside the ``with`` a step."""
        before = sys.gettrace()
        sys.settrace(self._enter)
        try:
            yield
        finally:
            sys.settrace(before)

    @staticmethod
    def is_step(frame: FrameType) -> bool:
        """Tell whether the lines of ``frame`` are steps: those of the user's own code are."""
        return _is_user_code(frame.f_code.co_filename)

    def _enter(self, frame: FrameType, event: str, argument: Any) -> Any:
        return self._line if self.is_step(frame) else None

    def _line(self, frame: FrameType, event: str, argument: Any) -> Any:
        if event == "line":
            path, line = frame.f_code.co_filename, frame.f_lineno
            self.reach_step(f"{Path(path).name}:{line}  {show(linecache.getline(path, line).strip(), 80)}", False)
        return self._line


@cache
def _is_user_code(path: str) -> bool:
    """Tell whether a file belongs neither to the interpreter, nor to an installed package, nor to effectonce."""
    if path.startswith("<"):
        return False
    paths = sysconfig.get_paths()
    own = [paths["stdlib"], paths["platstdlib"], paths["purelib"], paths["platlib"], *site.getsitepackages()]
    own.append(str(Path(__file__).parents[1]))
    return not any(Path(path).is_relative_to(folder) for folder in own)


class FaultInjectingBackend(Wrapper):
    """A store in memory whose operations are steps of the current injector. Its clock is moved by hand."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.injector = FaultInjector()
        super().__init__(MemoryStoreBackend(clock=self.clock))
        self.capabilities: Capabilities = self._inner.capabilities

    def sync_port(self) -> Any:
        return _FaultInjectingPort(self, self._inner.sync_port())

    async_port = sync_port

    def __repr__(self) -> str:
        return "memory:// (under test)"


class _FaultInjectingPort(Wrapper):
    """Only what a claim or a settlement needs is a step; the operations of operators are not."""

    def __init__(self, backend: FaultInjectingBackend, port: Any) -> None:
        super().__init__(port)
        self._backend = backend

    async def run(self, batch: Sequence[Batchable]) -> Sequence[Reply]:
        return [await self._run_one(op) for op in batch]

    async def _run_one(self, op: Batchable) -> Reply:
        injector = self._backend.injector
        injector.reach_step(f"{operation_name(op)}: sent to the store", True)
        reply: Reply
        (reply,) = await self._inner.run([op])
        injector.reach_step(f"{operation_name(op)}: done, and the reply is on its way", True)
        return reply
