"""`AdaptiveBatchSize`: how many rows the relay leases at once. Few at first, then as many as it can publish in time."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from effectonce.contracts.outbox import OutboxRow

_INITIAL_ROWS: Final = 64
_MAX_LEASE_BYTES: Final = 8 * 1024 * 1024  # of payload


class AdaptiveBatchSize:
    """``rows`` is the size of the next lease, at most ``max_rows``.

    A batch that takes longer to publish than its lease of ``window_s`` seconds holds would be sent again and again,
    and a batch of large messages would fill the memory. Each pump has its own.
    """

    def __init__(self, max_rows: int, window_s: float) -> None:
        self.rows = min(_INITIAL_ROWS, max_rows)
        self._max_rows = max_rows
        self._window_s = window_s

    def record_published(self, rows: Sequence[OutboxRow], seconds: float) -> None:
        """Adapt to a batch that was published in ``seconds``: double after a full one, within bytes and time."""
        count = len(rows)
        payload_bytes = sum(len(row.payload) for row in rows)
        size = 2 * self.rows if count >= self.rows else self.rows
        if payload_bytes > 0:
            size = min(size, _MAX_LEASE_BYTES * count // payload_bytes)
        if seconds > 0:
            # Half of the lease: the next batch may take twice as long as this one.
            size = min(size, int(count * self._window_s / 2 / seconds))
        self.rows = max(1, min(size, self._max_rows))

    def record_timeout(self, count: int) -> None:
        """Halve the batch: ``count`` rows were not confirmed before their lease ended."""
        self.rows = max(1, min(self.rows, count // 2))
