"""The dead letters of a queue on Azure Service Bus: its own sub-queue."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from typing import Any, Final

from effectonce.contracts import DeadLetter

from .client import Link, Namespace
from .messages import packet_of

#: How many are looked at together.
PAGE: Final = 100
#: How long to wait for one that must be there, in seconds.
PATIENCE: Final = 0.5


class ServiceBusDeadLetters:
    """See `contracts.DeadLetters`. Looking is the service's peek; to remove some is to receive all before them."""

    def __init__(self, namespace: Namespace, queue: str) -> None:
        self._queue = queue
        self._link = Link(namespace, queue, self._receiver)

    def _receiver(self, client: Any) -> Any:
        from azure.servicebus import ServiceBusSubQueue

        return client.get_queue_receiver(self._queue, sub_queue=ServiceBusSubQueue.DEAD_LETTER)

    async def browse(self, limit: int, cursor: str | None = None) -> tuple[Sequence[DeadLetter], str | None]:
        found: list[Any] = []
        after = int(cursor or 0)
        while len(found) <= limit and (more := await self._peek(min(limit + 1 - len(found), PAGE), after + 1)):
            found += more
            after = more[-1].sequence_number
        page = [
            DeadLetter(id=str(message.sequence_number), packet=packet_of(message)[0], queue=self._queue)
            for message in found[:limit]
        ]
        return page, page[-1].id if len(found) > limit else None

    async def _peek(self, limit: int, start: int) -> list[Any]:
        async def peek(receiver: Any) -> Any:
            return await receiver.peek_messages(max_message_count=limit, sequence_number=start)

        found: list[Any] = await self._link.use(peek)
        return found

    async def remove(self, ids: Sequence[str]) -> int:
        wanted = set(ids)

        async def remove(receiver: Any) -> int:
            from azure.servicebus import exceptions as sdk

            gone = 0
            others: list[Any] = []
            while gone < len(wanted):
                found = await receiver.receive_messages(PAGE, max_wait_time=PATIENCE)
                if not found:
                    break
                for message in found:
                    if str(message.sequence_number) in wanted:
                        await receiver.complete_message(message)
                        gone += 1
                    else:
                        others.append(message)
            for message in others:
                with suppress(sdk.MessageLockLostError, sdk.MessageNotFoundError):
                    await receiver.abandon_message(message)
            return gone

        return await self._link.use(remove) if wanted else 0

    async def count(self) -> int:
        many, after = 0, 0
        while more := await self._peek(PAGE, after + 1):
            many += len(more)
            after = more[-1].sequence_number
        return many

    async def close(self) -> None:
        await self._link.close()
