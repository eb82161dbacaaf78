"""The dead letters of a queue on Azure Service Bus: the queue's own sub-queue."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from typing import Any, Final

from effectonce.contracts import DeadLetter

from .client import ServiceBusLink, ServiceBusNamespace, lock_lost_errors
from .messages import read_packet

#: The most dead letters that are peeked or received in one call.
MAX_BATCH: Final = 100
#: How long one receive waits for dead letters that must be there.
RECEIVE_TIMEOUT_S: Final = 0.5


class ServiceBusDeadLetters:
    """See `contracts.DeadLetters`. Browsing peeks, and hides none from other readers. Removing has to receive all dead
    letters before the chosen ones, and abandons them afterwards."""

    def __init__(self, namespace: ServiceBusNamespace, queue: str) -> None:
        self._queue = queue
        self._link = ServiceBusLink(namespace, queue, self._make_receiver)

    def _make_receiver(self, client: Any) -> Any:
        from azure.servicebus import ServiceBusSubQueue

        return client.get_queue_receiver(self._queue, sub_queue=ServiceBusSubQueue.DEAD_LETTER)

    async def browse(self, limit: int, cursor: str | None = None) -> tuple[Sequence[DeadLetter], str | None]:
        messages: list[Any] = []
        after = int(cursor or 0)
        while len(messages) <= limit and (
            more := await self._peek(min(limit + 1 - len(messages), MAX_BATCH), after + 1)
        ):
            messages += more
            after = more[-1].sequence_number
        page = [
            DeadLetter(id=str(message.sequence_number), packet=read_packet(message).packet, queue=self._queue)
            for message in messages[:limit]
        ]
        return page, page[-1].id if len(messages) > limit else None

    async def _peek(self, limit: int, start: int) -> list[Any]:
        return await self._link.use(
            lambda receiver: receiver.peek_messages(max_message_count=limit, sequence_number=start)
        )

    async def remove(self, ids: Sequence[str]) -> int:
        wanted = set(ids)

        async def remove_wanted(receiver: Any) -> int:
            removed = 0
            others: list[Any] = []
            while removed < len(wanted) and (
                batch := await receiver.receive_messages(MAX_BATCH, max_wait_time=RECEIVE_TIMEOUT_S)
            ):
                for message in batch:
                    if str(message.sequence_number) in wanted:
                        await receiver.complete_message(message)
                        removed += 1
                    else:
                        others.append(message)
            for message in others:
                with suppress(*lock_lost_errors()):
                    await receiver.abandon_message(message)
            return removed

        return await self._link.use(remove_wanted) if wanted else 0

    async def count(self) -> int:
        total, after = 0, 0
        while more := await self._peek(MAX_BATCH, after + 1):
            total += len(more)
            after = more[-1].sequence_number
        return total

    async def close(self) -> None:
        await self._link.close()
