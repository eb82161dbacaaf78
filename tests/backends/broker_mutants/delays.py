"""Delayed messages that come too early, twice, never, or in the way of others."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec.structs import replace

from effectonce.backends.memory.broker import MemoryPublisher
from effectonce.contracts import Packet

from .base import caught_by


@caught_by("a_delayed_message_is_delivered_when_it_is_due", "delayed_and_other_messages_may_be_one_batch")
class IgnoresTheDelay(MemoryPublisher):
    async def publish(self, queue: str, packets: Sequence[Packet]) -> Sequence[Exception | None]:
        return await super().publish(queue, [replace(packet, delay_s=0.0) for packet in packets])


@caught_by("delayed_and_other_messages_may_be_one_batch")
class DelaysTheWholeBatch(MemoryPublisher):
    async def publish(self, queue: str, packets: Sequence[Packet]) -> Sequence[Exception | None]:
        longest = max((packet.delay_s for packet in packets), default=0.0)
        return await super().publish(queue, [replace(packet, delay_s=longest) for packet in packets])


@caught_by("a_delayed_message_does_not_hold_up_those_behind_it")
class HoldsUpThoseBehind(MemoryPublisher):
    """As a log does."""

    last = 0.0

    async def publish(self, queue: str, packets: Sequence[Packet]) -> Sequence[Exception | None]:
        self.last = max(self.last, *(packet.delay_s for packet in packets))
        return await super().publish(queue, [replace(packet, delay_s=self.last) for packet in packets])


@caught_by("a_delayed_message_is_delivered_once_and_unchanged")
class DeliversDelayedTwice(MemoryPublisher):
    async def publish(self, queue: str, packets: Sequence[Packet]) -> Sequence[Exception | None]:
        await super().publish(queue, [packet for packet in packets if packet.delay_s])
        return await super().publish(queue, packets)


@caught_by("a_delayed_message_is_delivered_once_and_unchanged")
class ForgetsTheIdOnItsWay(MemoryPublisher):
    """As a scheduler of NATS does with the header that has the id."""

    async def publish(self, queue: str, packets: Sequence[Packet]) -> Sequence[Exception | None]:
        return await super().publish(queue, [replace(p, id="") if p.delay_s else p for p in packets])


@caught_by("two_delayed_messages_with_the_same_bytes_are_two")
class MergesTheSameBytes(MemoryPublisher):
    """As the members of a sorted set."""

    async def publish(self, queue: str, packets: Sequence[Packet]) -> Sequence[Exception | None]:
        different = {(packet.body, packet.id, packet.delay_s): packet for packet in packets}
        await super().publish(queue, list(different.values()))
        return [None] * len(packets)


@caught_by("a_delayed_message_needs_neither_publisher_nor_consumer")
class KeepsDelayedOnesItself(MemoryPublisher):
    async def close(self) -> None:
        for queue in self._backend.queues.by_name.values():
            for group in queue.groups.values():
                group.messages.clear()


@caught_by("a_delayed_message_reaches_every_group")
class DelaysForOneGroup(MemoryPublisher):
    async def publish(self, queue: str, packets: Sequence[Packet]) -> Sequence[Exception | None]:
        answers = await super().publish(queue, packets)
        if any(packet.delay_s for packet in packets):
            for group in list(self._backend.queues.queue(queue).groups.values())[1:]:
                group.messages.clear()
        return answers
