"""A suspect is a message whose last attempt never reported an outcome: it may have taken its process down (F20).
It runs alone.

`Quarantine` is for handlers under leases. One suspect runs at a time in the whole worker, and nothing runs beside it
that a crash would take down, too. While a suspect waits, nothing new starts. Both waits are bounded (`LONGEST_WAIT_S`):
a suspect's for the others, and the others' for a suspect.

`SuspectTurns` is for handlers in transactions, which undo what they have not committed: there it is enough that two
suspects never run at the same time, since one would be counted for what the other did to their process.

Both belong to one run of a worker, on its event loop, and all of its executors share them. Other processes have their
own, which is enough: a suspect takes down only what runs in its process.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from typing import Final, Protocol

from .jobs import Job

LONGEST_WAIT_S: Final = 30.0
"""How long a suspect waits for others to end, and others for a suspect."""


class QuarantineMember(Protocol):
    """An executor of the worker, as the quarantine sees it."""

    @property
    def claimed_count(self) -> int:
        """How many jobs it has claimed and not settled."""

    def start(self) -> None: ...

    def start_alone(self, job: Job) -> bool:
        """Start a suspect. Returns False where it is not to run here any more."""


class _BoundedWait:
    """A wait of at most `LONGEST_WAIT_S`. When they are over it is ``expired``, and ``on_expiry`` is called."""

    def __init__(self, loop: asyncio.AbstractEventLoop, on_expiry: Callable[[], None]) -> None:
        self.expired = False
        self._loop = loop
        self._on_expiry = on_expiry
        self._timer: asyncio.TimerHandle | None = None

    def begin(self) -> None:
        """Begin to wait. Does nothing while it waits already, and after it has expired, until `end` is called."""
        if self._timer is None:
            self._timer = self._loop.call_later(LONGEST_WAIT_S, self._expire)

    def end(self) -> None:
        """End the wait, or forget that it has expired."""
        self.expired = False
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _expire(self) -> None:
        self.expired = True
        self._on_expiry()


class Quarantine:
    """The suspects of one worker, of all its queues.

    a suspect is      for up to LONGEST_WAIT_S           after that
    waiting           the others end, none starts        it starts, although others run
    running           none of the others starts          the others start, although it runs
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._members: list[QuarantineMember] = []
        self._suspects: deque[tuple[QuarantineMember, Job]] = deque()
        self._running_suspect: Job | None = None
        self._suspect_wait = _BoundedWait(loop, self.start_next_suspect)  # of the next suspect, until the others end
        self._others_wait = _BoundedWait(loop, self._start_members)  # of the others, until the running suspect ends

    @property
    def blocks_new_work(self) -> bool:
        """Whether nothing else may be started now."""
        if self._running_suspect is not None:
            return not self._others_wait.expired
        return bool(self._suspects)

    def register(self, member: QuarantineMember) -> None:
        self._members.append(member)

    def unregister(self, member: QuarantineMember) -> None:
        """``member`` stops: its suspects are given back with all that it has in flight."""
        self._members.remove(member)
        self._suspects = deque(entry for entry in self._suspects if entry[0] is not member)
        self.start_next_suspect()

    def add(self, member: QuarantineMember, job: Job) -> None:
        """Let ``job``, whose claim was released, run alone when its turn comes."""
        self._suspects.append((member, job))
        self.start_next_suspect()

    def release(self, job: Job) -> None:
        """Let the next suspect run, if ``job`` was the running one: it has left the worker, whatever became of it."""
        if job is self._running_suspect:
            self._end_running_suspect()
            self.start_next_suspect()

    def _end_running_suspect(self) -> None:
        self._running_suspect = None
        self._others_wait.end()

    def start_next_suspect(self) -> None:
        """Start the next suspect where it would be alone. Where there is none, start the other executors."""
        while self._running_suspect is None and self._suspects:
            if not self._suspect_wait.expired and any(member.claimed_count for member in self._members):
                self._suspect_wait.begin()
                return
            self._suspect_wait.end()
            member, job = self._suspects.popleft()
            self._running_suspect = job
            self._others_wait.begin()
            # One that does not start may have been released at once, and the next one have taken its place.
            if not member.start_alone(job) and self._running_suspect is job:
                self._end_running_suspect()
        if self._running_suspect is None:
            self._suspect_wait.end()
            self._start_members()

    def _start_members(self) -> None:
        for member in self._members:
            member.start()


class SuspectTurns:
    """Which suspect of a worker may run in its transaction, of all its queues: one at a time."""

    def __init__(self) -> None:
        self._running: Job | None = None
        self._waiting: deque[tuple[Callable[[Job], None], Job]] = deque()

    @property
    def is_taken(self) -> bool:
        return self._running is not None

    def take(self, job: Job) -> None:
        self._running = job

    def wait(self, job: Job, resume: Callable[[Job], None]) -> None:
        """Call ``resume`` with ``job`` when its turn has come."""
        self._waiting.append((resume, job))

    def release(self, jobs: Sequence[Job]) -> None:
        """``jobs`` have ended. The next suspect may run."""
        if self._running in jobs:
            self._running = None
            while self._running is None and self._waiting:  # one that is resumed may be given up without a turn
                resume, job = self._waiting.popleft()
                resume(job)
