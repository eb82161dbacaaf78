"""The dead letters of a queue on SQS, which have a queue of their own."""

from __future__ import annotations

import time
from collections.abc import Sequence

from effectonce.backends.common.listing_by_receiving import LISTING_TIMEOUT_S, ListedDeadLetter, ReceivedDeadLetters
from effectonce.contracts import DeadLetter

from .client import MAX_BATCH_ENTRIES, SQSClient
from .messages import read_packet


class SQSDeadLetters(ReceivedDeadLetters):
    """See `ReceivedDeadLetters`. Pages are oldest first only as far as SQS keeps an order, and the count is an estimate
    of SQS."""

    def __init__(self, client: SQSClient, queue: str, name: str) -> None:
        super().__init__(MAX_BATCH_ENTRIES, receipts_last=True)
        self._client = client
        self._queue = queue
        self._name = name

    async def count(self) -> int:
        names = [f"ApproximateNumberOfMessages{suffix}" for suffix in ("", "NotVisible", "Delayed")]
        reply = await self._client.call("get_queue_attributes", self._name, AttributeNames=names)
        return sum(int(reply["Attributes"].get(name, 0)) for name in names)

    async def _receive_batch(self) -> Sequence[ListedDeadLetter]:
        started_at = time.monotonic()
        messages = await self._client.receive(
            self._name,
            MAX_BATCH_ENTRIES,
            wait=1,  # a poll that does not wait asks only some of SQS's servers
            visibility_timeout=LISTING_TIMEOUT_S,
        )
        return [
            ListedDeadLetter(
                dead_letter=DeadLetter(id=message["MessageId"], packet=read_packet(message), queue=self._queue),
                receipt=message["ReceiptHandle"],
                sent_at=int(message.get("Attributes", {}).get("SentTimestamp", 0)) / 1000,
                hidden_until=started_at + LISTING_TIMEOUT_S,
            )
            for message in messages
        ]

    async def _delete_received(self, received: Sequence[ListedDeadLetter]) -> Sequence[bool]:
        entries = [{"ReceiptHandle": listed.receipt} for listed in received]
        outcomes = await self._client.send_entries("delete_message_batch", self._name, entries)
        return [error is None for error in outcomes]

    async def _show_again(self, received: Sequence[ListedDeadLetter]) -> None:
        entries = [{"ReceiptHandle": listed.receipt, "VisibilityTimeout": 0} for listed in received]
        await self._client.send_entries("change_message_visibility_batch", self._name, entries)
