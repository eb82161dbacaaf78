"""The dead letters of a queue on SQS, which have a queue of their own.

SQS shows a message only to the consumer that receives it. So a listing hides dead letters from other listings: until
its last page, or `close`, or for a minute at most. Of two listings at the same time, each sees a part.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from typing import Final

from msgspec import Struct

from effectonce.contracts import DeadLetter

from .client import MAX_BATCH_ENTRIES, SQSClient
from .messages import read_packet

#: How long a listing hides dead letters from others.
LISTING_TIMEOUT_S: Final = 60
#: The cursor of every page but the first. The object itself remembers what it has shown.
NEXT_PAGE: Final = "more"


class _ListedDeadLetter(Struct, eq=False):
    """A dead letter that this listing has received, and hides from others."""

    dead_letter: DeadLetter
    receipt: str
    sent_at_ms: int
    hidden_until: float  # on the monotonic clock


class SQSDeadLetters:
    """See `contracts.DeadLetters`.

    Pages are oldest first only as far as SQS keeps an order, and the count is an estimate of SQS. Where another listing
    has received a dead letter meanwhile, it may stay, although `remove` has counted it.
    """

    def __init__(self, client: SQSClient, queue: str, name: str) -> None:
        self._client = client
        self._queue = queue
        self._name = name
        self._received: dict[str, _ListedDeadLetter] = {}  # by id
        self._shown: set[str] = set()
        self._unshown: list[_ListedDeadLetter] = []  # received, and on no page yet

    async def browse(self, limit: int, cursor: str | None = None) -> tuple[Sequence[DeadLetter], str | None]:
        if cursor is None:
            await self._end_listing()
        unshown = self._unshown
        while len(unshown) <= limit and (more := await self._receive(limit + 1 - len(unshown))):
            unshown += [listed for listed in more if listed.dead_letter.id not in self._shown]
        unshown.sort(key=lambda listed: listed.sent_at_ms)
        page = [listed.dead_letter for listed in unshown[:limit]]
        self._unshown = unshown[limit:]
        self._shown |= {dead_letter.id for dead_letter in page}
        if self._unshown:
            return page, NEXT_PAGE
        await self._end_listing()
        return page, None

    async def remove(self, ids: Sequence[str]) -> int:
        wanted = set(ids)
        removed = await self._delete(listed for id, listed in self._received.items() if id in wanted)
        more: dict[str, _ListedDeadLetter] = {}
        while not wanted <= removed | more.keys() and (batch := await self._receive(MAX_BATCH_ENTRIES)):
            more |= {listed.dead_letter.id: listed for listed in batch}
        removed |= await self._delete(listed for id, listed in more.items() if id in wanted)
        others = [listed for id, listed in more.items() if id not in removed]
        if self._unshown:  # the next page shows them
            self._unshown += others
        else:
            await self._release(others)
        return len(removed)

    async def count(self) -> int:
        names = [f"ApproximateNumberOfMessages{suffix}" for suffix in ("", "NotVisible", "Delayed")]
        reply = await self._client.call("get_queue_attributes", self._name, AttributeNames=names)
        return sum(int(reply["Attributes"].get(name, 0)) for name in names)

    async def close(self) -> None:
        await self._end_listing()

    async def _receive(self, limit: int) -> list[_ListedDeadLetter]:
        """Receive more dead letters; [] where there are none."""
        started_at = time.monotonic()
        messages = await self._client.receive(
            self._name,
            limit,
            wait=1,  # a poll that does not wait asks only some of SQS's servers
            visibility_timeout=LISTING_TIMEOUT_S,
        )
        received = [
            _ListedDeadLetter(
                dead_letter=DeadLetter(id=message["MessageId"], packet=read_packet(message), queue=self._queue),
                receipt=message["ReceiptHandle"],
                sent_at_ms=int(message.get("Attributes", {}).get("SentTimestamp", 0)),
                hidden_until=started_at + LISTING_TIMEOUT_S,
            )
            for message in messages
        ]
        self._received |= {listed.dead_letter.id: listed for listed in received}
        return received

    async def _delete(self, chosen: Iterable[_ListedDeadLetter]) -> set[str]:
        """Delete ``chosen``, and return the ids of those whose receipts SQS accepted."""
        chosen = list(chosen)
        entries = [{"ReceiptHandle": listed.receipt} for listed in chosen]
        outcomes = await self._client.send_entries("delete_message_batch", self._name, entries)
        deleted = {listed.dead_letter.id for listed, error in zip(chosen, outcomes, strict=True) if error is None}
        for id in deleted:
            del self._received[id]
        return deleted

    async def _release(self, received: Iterable[_ListedDeadLetter]) -> None:
        """Show dead letters to other listings again."""
        now = time.monotonic()
        entries = [
            {"ReceiptHandle": listed.receipt, "VisibilityTimeout": 0}
            for listed in received
            if listed.hidden_until > now
        ]
        await self._client.send_entries("change_message_visibility_batch", self._name, entries)

    async def _end_listing(self) -> None:
        await self._release(self._received.values())
        for listed in self._received.values():
            listed.hidden_until = 0.0
        self._shown.clear()
        self._unshown = []
