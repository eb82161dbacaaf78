"""Waiting for a server that is away: longer each time, at random, so that a fleet does not come back as one."""

from __future__ import annotations

import logging
import random

log = logging.getLogger("effectonce")

FIRST = 0.1
LAST = 15.0


class Backoff:
    """The next pause while something fails, and the words about it: once when it begins, once when it is over."""

    def __init__(self, what: str) -> None:
        self._what = what
        self.failures = 0  # since it last worked

    def failed(self, error: BaseException) -> float:
        """Seconds to wait before the next try."""
        longest = min(LAST, FIRST * 2.0 ** min(self.failures, 20))
        self.failures += 1
        if self.failures == 1 or longest == LAST:
            log.warning("%s: %s; nothing is acked, trying again (pauses grow to %g s)", self._what, error, LAST)
        return longest * random.uniform(0.5, 1.0)

    def worked(self) -> None:
        if self.failures:
            log.warning("%s: it answers again, after %d tries", self._what, self.failures)
            self.failures = 0
