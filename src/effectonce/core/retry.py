"""`Retry`: how often a message is tried, and how long it waits in between. Exponential backoff with full jitter.

It holds no state: the attempts are counted by the store, the inbox or the broker, and given to it.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Mapping
from typing import Final, Literal

from effectonce.errors import InvalidOption, PermanentFailure, Retryable
from effectonce.values.durations import Duration, micros, span_text

NoRetry = Literal["dead"]

_MAX_GROWTH_STEPS = 60  # a delay grows this many times at most
_FINAL_MARK: Final = "__effectonce_final__"


def mark_final(error: BaseException) -> None:
    """Mark ``error`` as recorded for good: every further attempt would raise it again."""
    vars(error)[_FINAL_MARK] = True


def is_final(error: BaseException) -> bool:
    """Whether ``error`` is a failure that is recorded for good: a `PermanentFailure`, or an error of the user's that a
    guard or an intent has stored as permanent."""
    return isinstance(error, PermanentFailure) or _FINAL_MARK in vars(error)


class Retry:
    """What to do with a message whose handler raised.

    The message waits, and is tried again; after ``max_attempts`` it becomes a dead letter (None: there is no limit). It
    waits a random time between 0 and a longest delay: ``first`` after the first attempt, multiplied by ``factor`` with
    each further one, and never more than ``cap`` (None: it grows without limit). With ``jitter=False`` it always waits
    the longest delay; then messages that failed together are also tried again together.

    ``on`` maps error classes to another `Retry`, or to ``"dead"``: no second attempt. The class nearest to the error's
    own decides. Where ``on`` has no class of it, there is no second attempt after a failure that is recorded for good,
    as a second one would only repeat it: `PermanentFailure`, or an error that a guard or an intent, called by the
    handler, has stored as permanent, like a card that was declined.

    ``max_crashes``: a message whose last attempt never reported an outcome (it may have taken its process down) runs
    alone, and becomes a dead letter after that many attempts, instead of ending another process. In transactions (mode
    T) the start of a first delivery is not counted, so such a message may end one process more.
    """

    __slots__ = ("cap_s", "factor", "first_s", "jitter", "max_attempts", "max_crashes", "on")

    def __init__(
        self,
        max_attempts: int | None = 5,
        *,
        first: Duration = "1s",
        cap: Duration | None = "5m",
        factor: float = 2.0,
        jitter: bool = True,
        max_crashes: int = 2,
        on: Mapping[type[BaseException], NoRetry | Retry] | None = None,
    ) -> None:
        self.max_attempts = _check_attempts("max_attempts", max_attempts) if max_attempts is not None else None
        self.max_crashes = _check_attempts("max_crashes", max_crashes)
        self.first_s = micros(first, "first") / 1e6 if first != 0 else 0.0
        self.cap_s = micros(cap, "cap") / 1e6 if cap is not None else math.inf
        self.factor = factor
        self.jitter = jitter
        if not 1 <= factor <= 100:
            raise InvalidOption(f"Retry(factor={factor!r}): give 1 (the same delay each time) to 100")
        self.on = dict(on or {})
        if self.cap_s < self.first_s:
            raise InvalidOption(f"Retry(first={first!r}, cap={cap!r}): the first delay is over the cap")
        for kind, rule in self.on.items():
            if not (isinstance(kind, type) and issubclass(kind, BaseException)):
                raise InvalidOption(f"Retry(on=…) maps exception classes, not {kind!r}")
            if rule != "dead" and not isinstance(rule, Retry):
                raise InvalidOption(f"Retry(on=…) maps {kind.__name__} to {rule!r}; give 'dead' or another Retry")

    def delay_after(
        self, error: BaseException, attempt: int, uniform: Callable[[float, float], float] = random.uniform
    ) -> float | None:
        """The seconds to wait after attempt number ``attempt`` raised ``error``; None: there is no further attempt."""
        policy = self._policy_for(error)
        if policy is None or (policy.max_attempts is not None and attempt >= policy.max_attempts):
            return None
        longest = policy.max_delay(attempt)
        delay = uniform(0.0, longest) if policy.jitter else longest
        return max(delay, error.retry_after) if isinstance(error, Retryable) else delay

    def max_delay(self, attempt: int) -> float:
        """The longest time to wait after attempt number ``attempt``, in seconds."""
        return min(self.cap_s, self.first_s * self.factor ** min(attempt - 1, _MAX_GROWTH_STEPS))

    def refuses(self, error: BaseException) -> bool:
        """Whether there is never another attempt after ``error``."""
        return self._policy_for(error) is None

    def _policy_for(self, error: BaseException) -> Retry | None:
        for kind in type(error).__mro__:
            if kind in self.on:
                rule = self.on[kind]
                return None if rule == "dead" else rule
        return None if is_final(error) else self

    @property
    def horizon_s(self) -> float:
        """The longest time, in seconds, from the first attempt to the last; infinite without a limit."""
        return max([self._own_horizon_s(), *(rule.horizon_s for rule in self._rules)])

    @property
    def keep_records_s(self) -> float:
        """For how many seconds a record must be kept so that no retry outlives it: until the last attempt. Without a
        limit of attempts the longest pause between two counts, since each attempt renews the record's retention;
        infinite where pauses grow without a cap."""
        own = self.cap_s if self.max_attempts is None else self._own_horizon_s()
        return max([own, *(rule.keep_records_s for rule in self._rules)])

    @property
    def _rules(self) -> list[Retry]:
        return [rule for rule in self.on.values() if isinstance(rule, Retry)]

    def _own_horizon_s(self) -> float:
        """`horizon_s` of the errors that no rule of ``on`` is about."""
        if self.max_attempts is None:
            return math.inf
        growing = min(self.max_attempts - 1, _MAX_GROWTH_STEPS)
        return sum(self.max_delay(attempt) for attempt in range(1, growing + 1)) + (
            self.max_attempts - 1 - growing
        ) * self.max_delay(self.max_attempts)

    def __repr__(self) -> str:
        first = span_text(round(self.first_s * 1e6))
        cap = span_text(round(self.cap_s * 1e6)) if self.cap_s < math.inf else None
        return f"Retry({self.max_attempts}, first={first!r}, cap={cap!r})"


def _check_attempts(name: str, value: int) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise InvalidOption(f"{name}={value!r} is not a number of attempts; give 1 or more")
    return value
