"""Orders that are not kept."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from msgspec.structs import replace

from effectonce.backends.memory.broker import MemoryConsumer, MemoryPublisher
from effectonce.contracts import Delivery, Packet

from .base import caught_by


@caught_by("a_queue_is_delivered_as_it_was_published", "each_key_keeps_its_order")
class LastInFirstOut(MemoryPublisher):
    async def publish(self, queue: str, packets: Sequence[Packet]) -> Sequence[Exception | None]:
        return await super().publish(queue, packets[::-1])


class Unkeyed(MemoryPublisher):
    """Carries the ordering keys as headers, and does not keep their order."""

    async def publish(self, queue: str, packets: Sequence[Packet]) -> Sequence[Exception | None]:
        bare = [replace(p, ordering_key=None, headers={**p.headers, "key": p.ordering_key or ""}) for p in packets]
        return await super().publish(queue, bare)


@caught_by(
    "no_consumer_gets_the_next_of_a_key_while_one_is_unsettled",
    "a_nacked_delivery_is_redelivered_before_those_behind_it",
    "a_delayed_key_does_not_hold_up_another",
)
class IgnoresKeys(Unkeyed):
    pass


@caught_by("a_delayed_key_does_not_hold_up_another")
class OneOrderForAllKeys(MemoryPublisher):
    async def publish(self, queue: str, packets: Sequence[Packet]) -> Sequence[Exception | None]:
        return await super().publish(queue, [replace(p, ordering_key=p.ordering_key and "all") for p in packets])


@caught_by("a_dead_letter_lets_the_next_of_its_key_pass")
class GivesUpTheWholeKey(MemoryConsumer):
    async def dead_letter(self, delivery: Delivery, headers: Mapping[str, str]) -> bool:
        group = self._queues.group(self._queue, self._group)
        numbers = list(group.numbers_by_key.get(delivery.packet.ordering_key or "", ()))
        answer = await super().dead_letter(delivery, headers)
        for number in numbers[1:]:
            group.make_visible_at(number, 1 << 62)
        return answer
