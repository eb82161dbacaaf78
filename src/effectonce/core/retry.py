"""How often a message is tried, and how long it waits in between: exponential backoff with full jitter. Pure."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from typing import Literal

from effectonce.durations import Duration, micros, readable
from effectonce.errors import InvalidOption, Retryable

Verdict = Literal["dead"]


class Retry:
    """What becomes of a message whose handler raised.

    It waits a random time between 0 and ``first``, doubled with each attempt and at most ``cap``, and is tried again;
    after ``max_attempts`` (None: never) it goes to the dead letters. ``on`` maps error classes to another `Retry` or to
    ``"dead"``, no second attempt; the class nearest to the error's own decides.

    ``max_crashes``: a message whose last attempt ended without a word (it may have taken its process down) runs alone;
    it goes to the dead letters when it has been tried so often, instead of ending yet another process.
    """

    __slots__ = ("cap", "first", "max_attempts", "max_crashes", "on")

    def __init__(
        self,
        max_attempts: int | None = 5,
        *,
        first: Duration = "1s",
        cap: Duration = "5m",
        max_crashes: int = 2,
        on: Mapping[type[BaseException], Verdict | Retry] | None = None,
    ) -> None:
        self.max_attempts = _count("max_attempts", max_attempts) if max_attempts is not None else None
        self.max_crashes = _count("max_crashes", max_crashes)
        self.first = micros(first, "first") / 1e6
        self.cap = micros(cap, "cap") / 1e6
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
        longest = min(policy.cap, policy.first * 2.0 ** min(attempt - 1, 60))
        delay = uniform(0.0, longest)
        return max(delay, error.retry_after) if isinstance(error, Retryable) else delay

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
        doubling = 0.0
        for attempt in range(1, self.max_attempts):
            delay = self.first * 2.0 ** min(attempt - 1, 60)
            if delay >= self.cap:
                doubling += self.cap * (self.max_attempts - attempt)
                break
            doubling += delay
        return max([doubling, *inner])

    def __repr__(self) -> str:
        first, cap = readable(round(self.first * 1e6)), readable(round(self.cap * 1e6))
        return f"Retry({self.max_attempts}, first={first!r}, cap={cap!r})"


def _count(name: str, value: int) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise InvalidOption(f"{name}={value!r} is not a number of attempts; give 1 or more")
    return value
