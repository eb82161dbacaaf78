"""A delivery as a process that can be ended at any of its steps, inside this one.

A step is a line of the user's own code, or a store operation before or after it is executed. A process that is killed
has no last words: whatever its ``finally`` blocks still ask of the store is not done.
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
from typing import Any, Literal

from effectonce.contracts import Capabilities
from effectonce.errors import StoreUnavailable, show
from effectonce.record import Batchable, Reply
from effectonce.store import open_backend

from .clock import ManualClock
from .operations import operation_name

End = Literal["killed", "raises", "loses its store"]


class Killed(BaseException):
    """The process of this delivery died here. No `Exception`, so that no handler survives it."""


class Injected(RuntimeError):
    """What a handler raises because a test made it."""


class Life:
    """One delivery: it notes its steps, and comes to its ``end`` at the step with the number ``at``, if any."""

    def __init__(self, end: End = "killed", at: int | None = None) -> None:
        self.end = end
        self.at = at
        self.steps: list[str] = []
        self.places: list[bool] = []  # of each step, whether it was at the store
        self._dead = False

    def step(self, what: str, at_store: bool) -> None:
        if self._dead:
            raise Killed
        self.steps.append(what)
        self.places.append(at_store)
        if len(self.steps) - 1 != self.at:
            return
        if self.end == "killed":
            self._dead = True
            raise Killed
        if self.end == "raises":
            raise Injected(f"made to fail before {what}")
        raise StoreUnavailable(f"made to fail at {what}", 0.0)

    def points(self, at_store: bool | None = None, most: int = 60) -> Sequence[int]:
        """Which steps of this life to end another one at: all that fit, or ``most`` of them, evenly spread."""
        found = [at for at, place in enumerate(self.places) if at_store is None or place is at_store]
        return found if len(found) <= most else [found[at * len(found) // most] for at in range(most)]

    @contextmanager
    def lived(self) -> Iterator[None]:
        """Every line of the user's own code that this thread runs inside the ``with`` is a step."""
        before = sys.gettrace()
        sys.settrace(self._enter)
        try:
            yield
        finally:
            sys.settrace(before)

    @staticmethod
    def is_step(frame: FrameType) -> bool:
        """Whether lines of ``frame`` are steps: the user's own are."""
        return _is_users(frame.f_code.co_filename)

    def _enter(self, frame: FrameType, event: str, argument: Any) -> Any:
        return self._line if self.is_step(frame) else None

    def _line(self, frame: FrameType, event: str, argument: Any) -> Any:
        if event == "line":
            path, line = frame.f_code.co_filename, frame.f_lineno
            self.step(f"{Path(path).name}:{line}  {show(linecache.getline(path, line).strip(), 80)}", False)
        return self._line


@cache
def _is_users(path: str) -> bool:
    """Whether a file is neither the interpreter's, nor an installed package's, nor ours."""
    if path.startswith("<"):
        return False
    paths = sysconfig.get_paths()
    own = [paths["stdlib"], paths["platstdlib"], paths["purelib"], paths["platlib"], *site.getsitepackages()]
    own.append(str(Path(__file__).parents[1]))
    return not any(Path(path).is_relative_to(folder) for folder in own)


class MortalBackend:
    """A store in memory whose operations are steps of whichever life is lived now; its clock is moved by hand."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.life = Life()
        self._inner: Any = type(open_backend("memory://"))(clock=self.clock)  # type: ignore[call-arg]
        self.capabilities: Capabilities = self._inner.capabilities

    def sync_port(self) -> Any:
        return _MortalPort(self, self._inner.sync_port())

    async_port = sync_port

    def schema_sql(self) -> str:
        return ""

    def __repr__(self) -> str:
        return "memory:// (under test)"


class _MortalPort:
    def __init__(self, backend: MortalBackend, port: Any) -> None:
        self._backend = backend
        self._port = port

    def __getattr__(self, name: str) -> Any:
        return getattr(self._port, name)  # what people ask of a store is no step

    async def run(self, batch: Sequence[Batchable]) -> Sequence[Reply]:
        return [await self._run_one(op) for op in batch]

    async def _run_one(self, op: Batchable) -> Reply:
        life = self._backend.life
        life.step(f"{operation_name(op)}: sent to the store", True)
        reply: Reply
        (reply,) = await self._port.run([op])
        life.step(f"{operation_name(op)}: done, and the reply is on its way", True)
        return reply
