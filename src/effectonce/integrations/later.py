"""What a task comes back for, in whatever framework: it has not run, or nobody knows yet how it ended."""

from __future__ import annotations

from effectonce.errors import LeaseLost, MissingDriver, Retryable, SchemaMissing, UnsafeStore

#: Of a lost lease the next delivery finds out how it ended. A store that nobody has set up yet is one that does not
#: answer: what was sent meanwhile must not be lost.
COMES_BACK = (Retryable, LeaseLost, SchemaMissing, UnsafeStore, MissingDriver)


def pause(error: Exception) -> float:
    """After how many seconds."""
    return max(error.retry_after, 0.1) if isinstance(error, Retryable) else 1.0
