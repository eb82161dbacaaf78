"""How often a message is tried, and how long it waits in between: exponential backoff with full jitter. Pure."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Mapping
from typing import Literal

from effectonce.errors import InvalidOption, Retryable
from effectonce.values.durations import Duration, micros, readable

Verdict = Literal["dead"]

_MAX_GROWTH_STEPS = 60  # a delay grows this many times at most


class Retry:
    """What to do with a message whose handler raised.

    It waits a random time between 0 and ``first``, doubled with each attempt and at most ``cap`` (None: without end),
    and is tried again; after ``max_attempts`` (None: never) it goes to the dead letters. ``on`` maps error classes to
    another `Retry` or to ``"dead"``, no second attempt; the class nearest to the error's own decides.

    ``factor``: what the time grows by, instead of 2. ``jitter=False``: it waits all of that time; then those who failed
    together come back together.

    ``max_crashes``: a message whose last attempt never reported an outcome (it may have taken its process down) runs
    alone; it goes to the dead letters after that many attempts, instead of ending another process.
    """

    __slots__ = ("cap", "factor", "first", "jitter", "max_attempts", "max_crashes", "on")

    def __init__(
        self,
        max_attempts: int | None = 5,
        *,
        first: Duration = "1s",
        cap: Duration | None = "5m",
        factor: float = 2.0,
        jitter: bool = True,
        max_crashes: int = 2,
        on: Mapping[type[BaseException], Verdict | Retry] | None = None,
    ) -> None:
        self.max_attempts = _count("max_attempts", max_attempts) if max_attempts is not None else None
        self.max_crashes = _count("max_crashes", max_crashes)
        self.first = micros(first, "first") / 1e6 if first != 0 else 0.0
        self.cap = micros(cap, "cap") / 1e6 if cap is not None else math.inf
        self.factor = factor
        self.jitter = jitter
        if not 1 <= factor <= 100:
            raise InvalidOption(f"Retry(factor={factor!r}): give 1 (the same delay each time) to 100")
        self.on = dict(on or {})
        if self.cap < self.first:
            raise InvalidOption(f"Retry(first={first!r}, cap={cap!r}): the first delay is over the cap")
        for kind, then in self.on.items():
            if not (isinstance(kind, type) and issubclass(kind, BaseException)):
                raise InvalidOption(f"Retry(on=…) maps exception classes, not {kind!r}")
            if then != "dead" and not isinstance(then, Retry):
                raise InvalidOption(f"Retry(on=…) maps {kind.__name__} to {then!r}; give 'dead' or another Retry")

    def after(
        self, error: BaseException, attempt: int, uniform: Callable[[float, float], float] = random.uniform
    ) -> float | None:
        """Seconds until the next attempt, when attempt number ``attempt`` raised ``error``; None: there is none."""
        policy = self._for(error)
        if policy is None or (policy.max_attempts is not None and attempt >= policy.max_attempts):
            return None
        longest = policy.longest(attempt)
        delay = uniform(0.0, longest) if policy.jitter else longest
        return max(delay, error.retry_after) if isinstance(error, Retryable) else delay

    def longest(self, attempt: int) -> float:
        """The longest time to wait after attempt number ``attempt``, in seconds."""
        return min(self.cap, self.first * self.factor ** min(attempt - 1, _MAX_GROWTH_STEPS))

    def refuses(self, error: BaseException) -> bool:
        """Whether ``error`` is one that is never tried again."""
        return self._for(error) is None

    def _for(self, error: BaseException) -> Retry | None:
        for kind in type(error).__mro__:
            if kind in self.on:
                then = self.on[kind]
                return None if then == "dead" else then
        return self

    @property
    def horizon(self) -> float:
        """The longest time, in seconds, from the first attempt to the last; infinite without a limit."""
        inner = [then.horizon for then in self.on.values() if isinstance(then, Retry)]
        if self.max_attempts is None:
            return float("inf")
        growing = min(self.max_attempts - 1, _MAX_GROWTH_STEPS)
        own = sum(self.longest(attempt) for attempt in range(1, growing + 1))
        own += (self.max_attempts - 1 - growing) * self.longest(self.max_attempts)
        return max([own, *inner])

    def __repr__(self) -> str:
        first = readable(round(self.first * 1e6))
        cap = readable(round(self.cap * 1e6)) if self.cap < math.inf else None
        return f"Retry({self.max_attempts}, first={first!r}, cap={cap!r})"


def _count(name: str, value: int) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise InvalidOption(f"{name}={value!r} is not a number of attempts; give 1 or more")
    return value
