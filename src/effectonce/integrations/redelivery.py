"""What a task comes back for, in whatever framework: it has not run, or nobody knows yet how it ended."""

from __future__ import annotations

import logging

from effectonce.errors import InProgress, LeaseLost, MissingDriver, Retryable, SchemaMissing, UnsafeStore, show

log = logging.getLogger("effectonce")

#: Of a lost lease the next delivery finds out how it ended. A store that nobody has set up yet is one that does not
#: answer: what was sent meanwhile must not be lost.
COMES_BACK = (Retryable, LeaseLost, SchemaMissing, UnsafeStore, MissingDriver)


def pause(error: Exception) -> float:
    """After how many seconds."""
    return max(error.retry_after, 0.1) if isinstance(error, Retryable) else 1.0


def explain(scope: str, became: str, error: Exception) -> None:
    """Log why a message was put off or rejected, where the framework does not. One that waits for another of its key is
    as it should be."""
    if not isinstance(error, InProgress):
        log.error("scope %s: a message is %s: %s", show(scope), became, error)
