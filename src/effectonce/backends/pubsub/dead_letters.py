"""The dead letters of one group of consumers on Pub/Sub, which have a topic and a subscription of their own."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Final

from effectonce.backends.common.listing_by_receiving import LISTING_TIMEOUT_S, ListedDeadLetter, ReceivedDeadLetters
from effectonce.contracts import DeadLetter

from .client import PubSubClient
from .messages import read_message, sent_at

#: The most messages in one pull.
MAX_PULL: Final = 1000
#: How long a pull waits for dead letters before there are none. Pub/Sub may answer late, though there are some.
PULL_WAIT_S: Final = 2.0


class PubSubDeadLetters(ReceivedDeadLetters):
    """See `ReceivedDeadLetters`. Pub/Sub cannot count messages: `count` receives them all, and releases them again."""

    def __init__(self, client: PubSubClient, queue: str, subscription: str) -> None:
        super().__init__(MAX_PULL, receipts_last=False)
        self._client = client
        self._queue = queue
        self._subscription = subscription  # its ack deadline is `LISTING_TIMEOUT_S`

    async def count(self) -> int:
        shown_again: list[ListedDeadLetter] = []
        while batch := await self._receive():
            shown_again += batch
        now = time.monotonic()
        count = sum(listed.hidden_until > now for listed in self._received.values())
        await self._release(shown_again)
        return count

    async def _receive_batch(self) -> Sequence[ListedDeadLetter]:
        started_at = time.monotonic()
        messages = await self._client.pull(self._subscription, MAX_PULL, PULL_WAIT_S)
        return [
            ListedDeadLetter(
                dead_letter=DeadLetter(
                    id=received.message.message_id, packet=read_message(received.message), queue=self._queue
                ),
                receipt=received.ack_id,
                sent_at=sent_at(received.message),
                hidden_until=started_at + LISTING_TIMEOUT_S,
            )
            for received in messages
        ]

    async def _delete_received(self, received: Sequence[ListedDeadLetter]) -> Sequence[bool]:
        return await self._client.settle("acknowledge", self._subscription, [listed.receipt for listed in received])

    async def _show_again(self, received: Sequence[ListedDeadLetter]) -> None:
        receipts = [listed.receipt for listed in received]
        await self._client.settle("modify_ack_deadline", self._subscription, receipts, ack_deadline_seconds=0)
