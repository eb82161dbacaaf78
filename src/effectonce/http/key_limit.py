"""How many new keys each caller may use: so that no caller fills the store. One limit per process."""

from __future__ import annotations

import math
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import Final

MAX_CALLERS: Final = 10_000  # of which the bucket is remembered; a forgotten one is full again


class KeyLimit:
    """A bucket of ``burst`` keys for each caller, filled with ``keys_per_s``. Any thread may call it."""

    def __init__(self, keys_per_s: int, burst: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._keys_per_s = keys_per_s
        self._burst = burst
        self._clock = clock
        self._lock = threading.Lock()
        self._buckets: OrderedDict[Hashable, tuple[float, float]] = OrderedDict()  # keys left, and when that was

    def take(self, caller: Hashable) -> int:
        """Take one key from the caller's bucket. Returns 0; or after how many seconds there is one again."""
        with self._lock:
            keys = self._level(caller)
            missing = max(0.0, 1.0 - keys)
            self._put(caller, keys if missing else keys - 1.0)
        return math.ceil(missing / self._keys_per_s)

    def give_back(self, caller: Hashable) -> None:
        """Put a key back that turned out not to be new."""
        with self._lock:
            self._put(caller, min(self._level(caller) + 1.0, self._burst))

    def _level(self, caller: Hashable) -> float:
        keys, since = self._buckets.get(caller, (float(self._burst), 0.0))
        return min(keys + (self._clock() - since) * self._keys_per_s, self._burst)

    def _put(self, caller: Hashable, keys: float) -> None:
        self._buckets[caller] = keys, self._clock()
        self._buckets.move_to_end(caller)
        if len(self._buckets) > MAX_CALLERS:
            self._buckets.popitem(last=False)
