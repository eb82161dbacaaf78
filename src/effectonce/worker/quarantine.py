"""F20: a message whose last attempt ended without a word may be what ended its process. It runs alone.

One at a time for the whole worker, with nothing beside it that would be taken down with it. Nothing new is started
while one waits; should what runs take long, it is not waited for without end, and neither is the one that runs alone.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Protocol

from .jobs import Job

#: Seconds that a suspect waits for others to end, and that others wait for a suspect.
PATIENCE = 30.0


class Member(Protocol):
    """A discipline that claims."""

    @property
    def busy(self) -> int: ...

    def start(self) -> None: ...

    def start_alone(self, job: Job) -> None: ...


class Isolation:
    """The suspects of one worker, on all of its lines."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._members: list[Member] = []
        self._suspects: deque[tuple[Member, Job]] = deque()
        self._alone: Job | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._impatient = False

    @property
    def closed(self) -> bool:
        """Whether nothing else may be started now."""
        if self._alone is not None:
            return not self._impatient
        return bool(self._suspects)

    def join(self, member: Member) -> None:
        self._members.append(member)

    def leave(self, member: Member) -> None:
        """It stops: its suspects are given back with all that it has in hand."""
        self._members.remove(member)
        self._suspects = deque(each for each in self._suspects if each[0] is not member)
        self.step()

    def add(self, member: Member, job: Job) -> None:
        """``job``, which nobody holds a claim on, is to run alone."""
        self._suspects.append((member, job))
        self.step()

    def left(self, job: Job) -> None:
        """``job`` has come to its end, whatever that was."""
        if job is self._alone:
            self._alone = None
            self._calm()
            self.step()

    def step(self) -> None:
        """Start the next one where it would be alone; where there is none, let the others go on."""
        if self._alone is not None:
            return
        if not self._suspects:
            for member in self._members:
                member.start()
        elif self._impatient or not any(member.busy for member in self._members):
            member, self._alone = self._suspects.popleft()
            self._calm()
            self._wait()
            member.start_alone(self._alone)
        elif self._timer is None:
            self._wait()

    def _wait(self) -> None:
        self._timer = self._loop.call_later(PATIENCE, self._hurry)

    def _hurry(self) -> None:
        self._timer = None
        self._impatient = True
        if self._alone is None:
            self.step()
        else:
            for member in self._members:
                member.start()

    def _calm(self) -> None:
        self._impatient = False
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
