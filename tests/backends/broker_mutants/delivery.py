"""Publishes and receives that lose, double or change messages."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Sequence
from typing import Any

from msgspec.structs import replace

from effectonce.backends.memory.broker import MemoryConsumer, MemoryPublisher
from effectonce.contracts import Delivery, Packet

from .base import Defect, Mutant, caught_by


class Changing(MemoryPublisher):
    def change(self, packet: Packet) -> Packet:
        return packet

    async def publish(self, queue: str, packets: Sequence[Packet]) -> Sequence[Exception | None]:
        return await super().publish(queue, [self.change(packet) for packet in packets])


@caught_by("what_is_confirmed_is_delivered", "a_full_batch_is_confirmed_and_delivered_once")
class ConfirmsWhatItLoses(MemoryPublisher):
    """F45."""

    async def publish(self, queue: str, packets: Sequence[Packet]) -> Sequence[Exception | None]:
        await super().publish(queue, packets[:-1])
        return [None] * len(packets)


@caught_by("what_is_confirmed_is_delivered")
class SendsTwice(MemoryPublisher):
    async def publish(self, queue: str, packets: Sequence[Packet]) -> Sequence[Exception | None]:
        await super().publish(queue, packets)
        return await super().publish(queue, packets)


@caught_by("publishing_nothing_is_fine")
class NeedsSomethingToPublish(MemoryPublisher):
    async def publish(self, queue: str, packets: Sequence[Packet]) -> Sequence[Exception | None]:
        if not packets:
            raise Defect
        return await super().publish(queue, packets)


@caught_by("bodies_are_delivered_byte_for_byte")
class TakesBodiesForText(Changing):
    def change(self, packet: Packet) -> Packet:
        return replace(packet, body=packet.body.decode("utf-8", "replace").encode())


@caught_by("bodies_are_delivered_byte_for_byte")
class EndsAtTheFirstZero(Changing):
    def change(self, packet: Packet) -> Packet:
        return replace(packet, body=packet.body.partition(b"\0")[0])


@caught_by("headers_are_delivered_unchanged")
class LowersHeaderNames(Changing):
    def change(self, packet: Packet) -> Packet:
        return replace(packet, headers={name.lower(): value for name, value in packet.headers.items()})


@caught_by("headers_are_delivered_unchanged")
class DropsEmptyHeaders(Changing):
    """As BabelQueue's transports do."""

    def change(self, packet: Packet) -> Packet:
        return replace(packet, headers={name: value for name, value in packet.headers.items() if value})


@caught_by("id_and_ordering_key_travel_with_the_packet")
class ForgetsTheId(Changing):
    def change(self, packet: Packet) -> Packet:
        return replace(packet, id="")


@caught_by("queues_are_separate")
class OneQueueForAll(Mutant):
    class publisher_type(MemoryPublisher):
        async def publish(self, queue: str, packets: Sequence[Packet]) -> Sequence[Exception | None]:
            return await super().publish("one", packets)

    def consumer(self, queue: str, *, group: str, prefetch: int) -> Any:
        return super().consumer("one", group=group, prefetch=prefetch)

    async def declare(self, queue: str, *, group: str) -> None:
        await super().declare("one", group=group)


@caught_by("a_message_to_an_undeclared_queue_is_kept_or_refused")
class DropsWhatNobodyReadsYet(MemoryPublisher):
    async def publish(self, queue: str, packets: Sequence[Packet]) -> Sequence[Exception | None]:
        answers = await super().publish(queue, packets)
        self._backend.queues.queue(queue).early.clear()
        return answers


@caught_by("receive_returns_nothing_after_its_wait")
class WaitsForEver(MemoryConsumer):
    async def receive(self, limit: int, wait: float) -> Sequence[Delivery]:
        return await super().receive(limit, wait) or (await asyncio.sleep(2), ())[1]


@caught_by("receive_returns_when_a_message_arrives")
class LooksOnlyAtTheEnd(MemoryConsumer):
    async def receive(self, limit: int, wait: float) -> Sequence[Delivery]:
        await asyncio.sleep(wait)
        return await super().receive(limit, 0.0)


@caught_by("receive_gives_at_most_its_limit")
class IgnoresTheLimit(MemoryConsumer):
    async def receive(self, limit: int, wait: float) -> Sequence[Delivery]:
        return await super().receive(limit + 5, wait)


@caught_by("prefetch_bounds_the_unsettled_deliveries")
class IgnoresThePrefetch(MemoryConsumer):
    def __init__(self, *args: Any) -> None:
        super().__init__(*args[:-1], 1000)


@caught_by("prefetch_bounds_the_unsettled_deliveries")
class NeverHasRoomAgain(MemoryConsumer):
    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self._unsettled.release = lambda held: False  # type: ignore[method-assign]


@caught_by("several_consumers_share_the_messages", "a_dead_consumers_deliveries_are_redelivered_to_another")
class GivesTheSameToAll(Mutant):
    def consumer(self, queue: str, *, group: str, prefetch: int) -> Any:
        name = f"{group}-{os.urandom(4).hex()}"
        self.queues.group(queue, name)
        return super().consumer(queue, group=name, prefetch=prefetch)


@caught_by("a_cancelled_receive_loses_nothing")
class LosesWhatACancelledReceiveTook(MemoryConsumer):
    async def receive(self, limit: int, wait: float) -> Sequence[Delivery]:
        deliveries = await super().receive(limit, wait)
        try:
            await asyncio.sleep(0)
        except asyncio.CancelledError:
            await self.ack(deliveries)
            raise
        return deliveries


@caught_by("another_group_gets_every_message_too", "a_nack_of_one_group_does_not_deliver_to_another")
class OneGroup(Mutant):
    def consumer(self, queue: str, *, group: str, prefetch: int) -> Any:
        return super().consumer(queue, group="one", prefetch=prefetch)

    async def declare(self, queue: str, *, group: str) -> None:
        await super().declare(queue, group="one")


@caught_by("a_nack_of_one_group_does_not_deliver_to_another")
class NacksForAllGroups(MemoryConsumer):
    async def nack(self, deliveries: Sequence[Delivery], delay: float = 0.0) -> Sequence[bool]:
        answers = await self.ack(deliveries)
        await self._backend.publisher().publish(self._queue, [delivery.packet for delivery in deliveries])
        return answers


@caught_by("declare_may_run_twice_and_at_once")
class DeclaringEmpties(Mutant):
    async def declare(self, queue: str, *, group: str) -> None:
        self.queues.by_name.pop(queue, None)
        await super().declare(queue, group=group)


@caught_by("a_declared_queue_passes_its_check")
class NeverPassesItsCheck(Mutant):
    async def check(self, queue: str, *, group: str) -> None:
        raise Defect


@caught_by("a_backend_says_where_it_is")
class HidesItsAddress(Mutant):
    def __repr__(self) -> str:
        return object.__repr__(self)


@caught_by("a_closed_backend_leaves_nothing_open")
class LeavesFilesOpen(MemoryPublisher):
    def __init__(self, backend: Any) -> None:
        super().__init__(backend)
        self.leak = backend.__dict__.setdefault("leaks", [])
        self.leak.append(open(os.devnull))  # noqa: SIM115
