"""The dead letters of a queue on SQS: a queue of their own.

SQS shows a message only to whoever receives it. So looking takes them out of others' sight: until the last page, or
`close`, or for a minute at most. Two who look at the same time see each a part.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from typing import Final

from msgspec import Struct

from effectonce.contracts import DeadLetter

from .client import CHUNK, Client
from .messages import SYSTEM, packet_of

#: How long one look keeps them from others, in seconds.
HOLD: Final = 60
MORE: Final = "more"


class _Seen(Struct, eq=False):
    letter: DeadLetter
    receipt: str
    sent: int
    until: float


class SQSDeadLetters:
    """See `contracts.DeadLetters`. Oldest first holds as far as SQS keeps an order, and the count is its estimate. One
    that another has received since it was seen may stay, though `remove` has counted it."""

    def __init__(self, client: Client, queue: str, name: str) -> None:
        self._client = client
        self._queue = queue
        self._name = name
        self._seen: dict[str, _Seen] = {}
        self._shown: set[str] = set()
        self._ahead: list[_Seen] = []  # received, and not shown yet

    async def browse(self, limit: int, cursor: str | None = None) -> tuple[Sequence[DeadLetter], str | None]:
        if cursor is None:
            await self._end_look()
        found = self._ahead
        while len(found) <= limit and (more := await self._receive(limit + 1 - len(found))):
            found += [seen for seen in more if seen.letter.id not in self._shown]
        found.sort(key=lambda seen: seen.sent)
        page, self._ahead = found[:limit], found[limit:]
        self._shown |= {seen.letter.id for seen in page}
        if self._ahead:
            return [seen.letter for seen in page], MORE
        await self._end_look()
        return [seen.letter for seen in page], None

    async def remove(self, ids: Sequence[str]) -> int:
        wanted = set(ids)
        gone = await self._delete(seen for id, seen in self._seen.items() if id in wanted)
        found: dict[str, _Seen] = {}
        while not wanted <= gone | found.keys() and (more := await self._receive(CHUNK)):
            found |= {seen.letter.id: seen for seen in more}
        gone |= await self._delete(seen for id, seen in found.items() if id in wanted)
        others = [seen for id, seen in found.items() if id not in gone]
        if self._ahead:  # the next page shows them
            self._ahead += others
        else:
            await self._release(others)
        return len(gone)

    async def count(self) -> int:
        names = ("", "NotVisible", "Delayed")
        asked = [f"ApproximateNumberOfMessages{name}" for name in names]
        reply = await self._client.call("get_queue_attributes", self._name, AttributeNames=asked)
        return sum(int(reply["Attributes"].get(name, 0)) for name in asked)

    async def close(self) -> None:
        await self._end_look()

    async def _receive(self, limit: int) -> list[_Seen]:
        """Some more, or [] where there are none."""
        began = time.monotonic()
        reply = await self._client.call(
            "receive_message",
            self._name,
            MaxNumberOfMessages=min(limit, CHUNK),
            WaitTimeSeconds=1,  # a poll that does not wait asks only some of SQS's machines
            VisibilityTimeout=HOLD,
            MessageAttributeNames=["All"],
            MessageSystemAttributeNames=SYSTEM,
        )
        found = []
        for message in reply.get("Messages") or ():
            letter = DeadLetter(id=message["MessageId"], packet=packet_of(message), queue=self._queue)
            sent = int(message.get("Attributes", {}).get("SentTimestamp", 0))
            found.append(_Seen(letter, message["ReceiptHandle"], sent, began + HOLD))
        self._seen |= {seen.letter.id: seen for seen in found}
        return found

    async def _delete(self, going: Iterable[_Seen]) -> set[str]:
        """Delete these, as far as we have received them last; the ids of those that were."""
        going = list(going)
        entries = [{"ReceiptHandle": seen.receipt} for seen in going]
        answers = await self._client.batch("delete_message_batch", self._name, entries)
        gone = {seen.letter.id for seen, error in zip(going, answers, strict=True) if error is None}
        for id in gone:
            del self._seen[id]
        return gone

    async def _release(self, seen: Iterable[_Seen]) -> None:
        now = time.monotonic()
        entries = [{"ReceiptHandle": each.receipt, "VisibilityTimeout": 0} for each in seen if each.until > now]
        await self._client.batch("change_message_visibility_batch", self._name, entries)

    async def _end_look(self) -> None:
        await self._release(self._seen.values())
        for seen in self._seen.values():
            seen.until = 0.0
        self._shown.clear()
        self._ahead = []
