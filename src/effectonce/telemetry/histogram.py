"""Counting events at a cost that a guard does not notice.

An observation is appended to a list, which needs no lock; every few hundred the list is folded into a count, a sum and
buckets, and so it is when somebody looks.
"""

from __future__ import annotations

import os
import threading
import weakref
from bisect import bisect_right
from collections.abc import Iterable, Sequence
from math import hypot
from operator import add
from typing import Final

from effectonce.contracts import Meter

FOLD_AT: Final = 512
#: Seconds. From what a store in this process takes to what a slow handler does.
BOUNDS: Final = (
    0.0005,
    0.001,
    0.0025,
    0.005,
    0.01,
    0.025,
    0.05,
    0.1,
    0.25,
    0.5,
    1.0,
    2.5,
    5.0,
    10.0,
    30.0,
    60.0,
    300.0,
)


class Tally:
    """Observations of one kind: how many, their sum, and how many up to each of ``BOUNDS``."""

    def __init__(self) -> None:
        self.pending: list[float] = []
        self.count = 0
        self.total = 0.0
        self.timed = 0  # those that took any time at all: the others were answered, not run
        self.up_to = [0] * len(BOUNDS)
        self.lock = threading.Lock()
        _tallies.add(self)

    def fold(self) -> None:
        with self.lock:
            # Others append meanwhile, behind those that are taken.
            size = len(self.pending)
            if not size:
                return
            taken = self.pending[:size]
            del self.pending[:size]
            self.count += size
            total = sum(taken)
            if not total:
                return
            zeros = 0 if all(taken) else taken.count(0.0)
            self.total += total
            self.timed += size - zeros
            # Handlers that do next to nothing would notice the time that sorting takes, and even that of `max`. None of
            # them took longer than the root of the sum of all squares.
            if hypot(*taken) <= BOUNDS[0]:
                below = [size - zeros] * len(BOUNDS)
            else:
                taken.sort()
                below = [bisect_right(taken, bound) - zeros for bound in BOUNDS]
            self.up_to = list(map(add, self.up_to, below))

    def buckets(self) -> Sequence[tuple[str, float]]:
        """As Prometheus has them: the bound, and how many were up to it."""
        return [*((str(bound), float(n)) for bound, n in zip(BOUNDS, self.up_to, strict=True)), ("+Inf", self.timed)]


class Tallies:
    """All that is counted of one scope, by kind of event; ``kinds`` also while there are none."""

    def __init__(self, kinds: Iterable[str] = ()) -> None:
        self._tallies = {kind: Tally() for kind in kinds}

    def meter(self, kind: str) -> Meter:
        tally = self._tallies.setdefault(kind, Tally())
        pending = tally.pending
        append = pending.append
        if kind == "claimed":
            return append  # each is followed by another event, which folds these, too

        def meter(seconds: float) -> None:
            append(seconds)
            if len(pending) >= FOLD_AT:
                self.fold()

        return meter

    def fold(self) -> dict[str, Tally]:
        """What there is, by kind."""
        for tally in tuple(self._tallies.values()):
            tally.fold()
        return self._tallies


_tallies: weakref.WeakSet[Tally] = weakref.WeakSet()


def _after_fork() -> None:
    """A thread that was folding is not in the child, and would hold its lock for ever."""
    for tally in list(_tallies):
        tally.lock = threading.Lock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
