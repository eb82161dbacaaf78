"""How many rows a lane takes at once: few at first, and then as many as it can send while their lease holds."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from effectonce.contracts.outbox import Outgoing

_FIRST: Final = 64
_BYTES: Final = 8 * 1024 * 1024  # of data, in one lease


class Pace:
    """``take`` is how many to take next, at most ``batch``. Without it, a batch that takes longer to send than its
    lease holds would be sent again and again, and one of large messages would fill the memory."""

    def __init__(self, batch: int, window: float) -> None:
        self.take = min(_FIRST, batch)
        self._batch = batch
        self._window = window

    def sent(self, rows: Sequence[Outgoing], seconds: float) -> None:
        """These took so long, of the ``window`` that they had."""
        count = len(rows)
        size = sum([len(row.payload) for row in rows])
        take = 2 * self.take if count >= self.take else self.take
        if size > 0:
            take = min(take, _BYTES * count // size)
        if seconds > 0:
            take = min(take, int(count * self._window / 2 / seconds))
        self.take = max(1, min(take, self._batch))

    def late(self, count: int) -> None:
        """So many were too many."""
        self.take = max(1, min(self.take, count // 2))
