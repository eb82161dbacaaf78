"""`Backoff`: the pauses between attempts to reach a server that does not answer.

They are longer each time, and random, so that a fleet of workers does not return at the same moment.
"""

from __future__ import annotations

import logging
import random

log = logging.getLogger("effectonce")

FIRST_PAUSE_S = 0.1
MAX_PAUSE_S = 15.0


class Backoff:
    """The next pause while a server fails. It logs when the failure begins, when pauses reach their maximum, and when
    the server answers again. It belongs to one task or thread."""

    def __init__(self, what: str) -> None:
        self._what = what
        self.failures = 0  # since it last worked

    def record_failure(self, error: BaseException) -> float:
        """Count a failure. Returns the seconds to wait before the next attempt."""
        longest = min(MAX_PAUSE_S, FIRST_PAUSE_S * 2.0 ** min(self.failures, 20))
        self.failures += 1
        if self.failures == 1 or longest == MAX_PAUSE_S:
            log.warning("%s: %s; trying again (pauses grow to %g s)", self._what, error, MAX_PAUSE_S)
        return longest * random.uniform(0.5, 1.0)

    def record_success(self) -> None:
        """Start again from the shortest pause."""
        if self.failures:
            log.warning("%s: it answers again (attempts: %d)", self._what, self.failures)
            self.failures = 0
