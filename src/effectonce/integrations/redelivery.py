"""Logging why a message was put off or rejected, for frameworks that do not."""

from __future__ import annotations

import logging

from effectonce.errors import InProgress, show

log = logging.getLogger("effectonce")


def log_redelivery(scope: str, what_happened: str, error: Exception) -> None:
    """Log that a message was put off or rejected. A duplicate that waits for its first delivery is expected, and not
    logged."""
    if not isinstance(error, InProgress):
        log.error("scope %s: a message was %s: %s", show(scope), what_happened, error)
