"""Acks, nacks and extensions that do too much or too little."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any

from msgspec.structs import replace

from effectonce.backends.memory.broker import MemoryConsumer
from effectonce.contracts import Delivery

from .base import Defect, caught_by


@caught_by("an_acked_delivery_is_not_redelivered")
class ForgetsAcks(MemoryConsumer):
    async def ack(self, deliveries: Sequence[Delivery]) -> Sequence[bool]:
        return [True] * len(deliveries)


class Buffering(MemoryConsumer):
    """Sends acks with the next receive, as a fast one does."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.waiting: list[Delivery] = []

    async def ack(self, deliveries: Sequence[Delivery]) -> Sequence[bool]:
        self.waiting += deliveries
        return [True] * len(deliveries)

    async def receive(self, limit: int, wait: float) -> Sequence[Delivery]:
        await super().ack(self.waiting)
        return await super().receive(limit, wait)


@caught_by("closing_sends_the_acks_that_wait", "closing_returns_unsettled_deliveries")
class ClosesOnUnsentAcks(Buffering):
    pass


@caught_by("each_delivery_is_settled_alone")
class AcksAllBefore(MemoryConsumer):
    """F56: ``multiple=true``."""

    async def ack(self, deliveries: Sequence[Delivery]) -> Sequence[bool]:
        last = max((delivery.handle.key for delivery in deliveries), default=0)
        group = self._queues.group(self._queue, self._group)
        held = [message.delivery for number, message in group.messages.items() if number <= last]
        await super().ack([replace(deliveries[0], handle=handle) for handle in held])
        return [True] * len(deliveries)


@caught_by("settling_twice_changes_nothing")
class RaisesOnTheSecond(MemoryConsumer):
    """RabbitMQ closes the channel for a tag that it does not know."""

    async def ack(self, deliveries: Sequence[Delivery]) -> Sequence[bool]:
        answers = await super().ack(deliveries)
        if not all(answers):
            raise Defect
        return answers


@caught_by("settling_twice_changes_nothing", "a_stale_nack_does_not_deliver_it_twice")
class NacksByPublishing(MemoryConsumer):
    async def nack(self, deliveries: Sequence[Delivery], delay: float = 0.0) -> Sequence[bool]:
        await self._backend.publisher().publish(self._queue, [delivery.packet for delivery in deliveries])
        await self.ack(deliveries)
        return [True] * len(deliveries)


@caught_by("settling_nothing_is_fine")
class NeedsSomethingToSettle(MemoryConsumer):
    async def extend(self, deliveries: Sequence[Delivery], seconds: float) -> Sequence[bool]:
        answers = await super().extend(deliveries, seconds)
        return [answers[0]]


@caught_by("a_nacked_delivery_is_redelivered_unchanged", "attempts_are_counted")
class LosesNacks(MemoryConsumer):
    async def nack(self, deliveries: Sequence[Delivery], delay: float = 0.0) -> Sequence[bool]:
        return await self.ack(deliveries)


@caught_by("a_nacked_delivery_is_redelivered_unchanged")
class RewritesNacks(MemoryConsumer):
    async def nack(self, deliveries: Sequence[Delivery], delay: float = 0.0) -> Sequence[bool]:
        answers = await self.ack(deliveries)
        again = [replace(delivery.packet, headers={"x-retries": "1"}) for delivery in deliveries]
        await self._backend.publisher().publish(self._queue, again)
        return answers


@caught_by("a_delay_keeps_a_delivery_back_that_long")
class IgnoresDelays(MemoryConsumer):
    async def nack(self, deliveries: Sequence[Delivery], delay: float = 0.0) -> Sequence[bool]:
        return await super().nack(deliveries, 0.0)


@caught_by("a_delay_does_not_hold_up_the_others")
class DelaysTheQueue(MemoryConsumer):
    until = 0

    async def nack(self, deliveries: Sequence[Delivery], delay: float = 0.0) -> Sequence[bool]:
        self.until = self._clock.now() + round(delay * 1e6)
        return await super().nack(deliveries, delay)

    async def receive(self, limit: int, wait: float) -> Sequence[Delivery]:
        if self._clock.now() < self.until:
            await asyncio.sleep(min(wait, 0.05))
            return []
        return await super().receive(limit, wait)


@caught_by("a_delayed_delivery_outlives_its_consumer")
class DelaysInItsOwnMemory(MemoryConsumer):
    async def nack(self, deliveries: Sequence[Delivery], delay: float = 0.0) -> Sequence[bool]:
        return await (super().nack(deliveries) if not delay else self.ack(deliveries))


@caught_by("attempts_are_counted", "an_attempt_that_was_never_settled_counts")
class CountsNothing(MemoryConsumer):
    async def receive(self, limit: int, wait: float) -> Sequence[Delivery]:
        return [replace(delivery, attempt=1) for delivery in await super().receive(limit, wait)]


@caught_by("an_attempt_that_was_never_settled_counts")
class CountsNacksOnly(MemoryConsumer):
    """F20: a message that takes the process down is never recognised."""

    nacked: dict[Any, int] = {}  # noqa: RUF012

    async def nack(self, deliveries: Sequence[Delivery], delay: float = 0.0) -> Sequence[bool]:
        for delivery in deliveries:
            self.nacked[delivery.packet.id] = self.nacked.get(delivery.packet.id, 0) + 1
        return await super().nack(deliveries, delay)

    async def receive(self, limit: int, wait: float) -> Sequence[Delivery]:
        deliveries = await super().receive(limit, wait)
        return [replace(delivery, attempt=self.nacked.get(delivery.packet.id, 0) + 1) for delivery in deliveries]


@caught_by("a_dead_consumers_deliveries_are_redelivered_to_another")
class KeepsItsDeliveriesForEver(MemoryConsumer):
    """F07: the deliveries of a dead consumer never come to another."""

    async def receive(self, limit: int, wait: float) -> Sequence[Delivery]:
        deliveries = await super().receive(limit, wait)
        await self.extend(deliveries, 10**6)
        return deliveries


@caught_by("extend_keeps_a_delivery_past_the_window")
class ExtendsNothing(MemoryConsumer):
    async def extend(self, deliveries: Sequence[Delivery], seconds: float) -> Sequence[bool]:
        return [True] * len(deliveries)


class ByNumber(MemoryConsumer):
    """F54, F57: a delivery is settled by its number alone, however late."""

    def current(self, deliveries: Sequence[Delivery]) -> list[Delivery]:
        messages = self._queues.group(self._queue, self._group).messages
        return [
            replace(delivery, handle=messages[delivery.handle.key].delivery)
            for delivery in deliveries
            if delivery.handle.key in messages
        ]


@caught_by("a_stale_ack_is_refused_and_leaves_the_heirs_delivery_alone")
class TakesAnyonesAck(ByNumber):
    async def ack(self, deliveries: Sequence[Delivery]) -> Sequence[bool]:
        return await super().ack(self.current(deliveries))


@caught_by("a_stale_nack_does_not_deliver_it_twice")
class TakesAnyonesNack(ByNumber):
    async def nack(self, deliveries: Sequence[Delivery], delay: float = 0.0) -> Sequence[bool]:
        return await super().nack(self.current(deliveries), delay)


@caught_by("a_stale_dead_letter_is_refused")
class TakesAnyonesDeadLetter(ByNumber):
    async def dead_letter(self, delivery: Delivery, headers: Mapping[str, str]) -> bool:
        return await super().dead_letter(self.current([delivery])[0], headers)


@caught_by("a_stale_extension_is_refused")
class TakesAnyonesExtension(ByNumber):
    async def extend(self, deliveries: Sequence[Delivery], seconds: float) -> Sequence[bool]:
        return await super().extend(self.current(deliveries), seconds)


@caught_by("settling_does_not_wait_for_a_receive")
class OneCallAtATime(MemoryConsumer):
    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.turn = asyncio.Lock()

    async def receive(self, limit: int, wait: float) -> Sequence[Delivery]:
        async with self.turn:
            return await super().receive(limit, wait)

    async def ack(self, deliveries: Sequence[Delivery]) -> Sequence[bool]:
        async with self.turn:
            return await super().ack(deliveries)


@caught_by("closing_returns_unsettled_deliveries", "each_delivery_is_settled_alone")
class KeepsDeliveriesAtItsEnd(MemoryConsumer):
    async def close(self) -> None:
        return None


@caught_by("closing_unused_and_twice_is_fine")
class ClosesOnce(MemoryConsumer):
    closed = False

    async def close(self) -> None:
        if self.closed and self._queues.by_name:
            raise Defect
        self.closed = True
        await super().close()
