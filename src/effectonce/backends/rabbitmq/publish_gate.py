"""Whether a server takes messages now.

It blocks publishers when it is short of memory or disk (Connection.Blocked), and may pause a channel (Channel.Flow).
"""

from __future__ import annotations

import asyncio

from effectonce.errors import BrokerUnavailable, show


class PublishGate:
    """Closed while the server takes no messages. Publishing waits for up to ``limit_s`` from the moment of closing, and
    fails at once from then on. Nothing is written meanwhile (F80).

    A gate is closed by one cause or several, each under its own name: the number of a paused channel, or 0 for the
    connection.
    """

    def __init__(self, shown: str, limit_s: float) -> None:
        self.is_open = True
        #: The time limit of the batch that is unconfirmed. It is extended to the gate's own: a server that goes on
        #: confirms what it has read, and what was sent again meanwhile would be there twice.
        self.unconfirmed: asyncio.Timeout | None = None
        self._shown = shown
        self._limit_s = limit_s
        self._reasons: dict[int, str] = {}
        self._deadline = 0.0
        self._opened = asyncio.Event()

    def close(self, cause: int, reason: str) -> None:
        self._reasons[cause] = reason
        if self.is_open:
            self.is_open = False
            self._opened.clear()
            self._deadline = asyncio.get_running_loop().time() + self._limit_s
            if self.unconfirmed is not None and not self.unconfirmed.expired():
                self.unconfirmed.reschedule(max(self.unconfirmed.when() or 0.0, self._deadline))

    def open(self, cause: int) -> None:
        self._reasons.pop(cause, None)
        if not self._reasons:
            self.is_open = True
            self._opened.set()

    def open_for_good(self) -> None:
        """Let the waiting calls go on: the connection is lost, and they are about to find that out."""
        self._reasons.clear()
        self.is_open = True
        self._opened.set()

    async def wait(self) -> None:
        """Wait until the gate is open. `BrokerUnavailable` where it has been closed for longer than its limit."""
        if not self.is_open:
            try:
                async with asyncio.timeout_at(self._deadline):
                    await self._opened.wait()
            except TimeoutError:
                raise self.error() from None

    def error(self) -> BrokerUnavailable:
        reasons = ", ".join(show(reason) for reason in self._reasons.values())
        return BrokerUnavailable(
            f"{self._shown} takes no messages now ({reasons}); free memory or disk space on the server, and publish "
            "again when it has recovered"
        )
