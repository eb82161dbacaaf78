"""Dead letters that are changed, lost or shown wrongly."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from msgspec.structs import replace

from effectonce.backends.memory.broker import MemoryConsumer, MemoryDeadLetters
from effectonce.contracts import DeadLetter, Delivery, Packet

from .base import caught_by


class ChangingDeadLetters(MemoryConsumer):
    """Stores dead letters that are not what they were."""

    def change(self, packet: Packet) -> Packet:
        return packet

    async def dead_letter(self, delivery: Delivery, headers: Mapping[str, str]) -> bool:
        answer = await super().dead_letter(delivery, headers)
        dead = self._queues.group(self._queue, self._group).dead_letters
        dead.update((number, self.change(packet)) for number, packet in dead.items())
        return answer


@caught_by("a_dead_letter_keeps_its_bytes_and_the_reason")
class TakesDeadLettersForText(ChangingDeadLetters):
    def change(self, packet: Packet) -> Packet:
        return replace(packet, body=packet.body.decode("utf-8", "replace").encode())


@caught_by("a_dead_letter_keeps_its_bytes_and_the_reason", "a_dead_letter_can_be_sent_again")
class DropsTheReason(ChangingDeadLetters):
    def change(self, packet: Packet) -> Packet:
        return replace(packet, headers={n: v for n, v in packet.headers.items() if not n.startswith("eo-dead")})


@caught_by("a_dead_letter_is_not_delivered_again")
class MovesAndKeeps(MemoryConsumer):
    async def dead_letter(self, delivery: Delivery, headers: Mapping[str, str]) -> bool:
        answer = await super().dead_letter(delivery, headers)
        await self._backend.publisher().publish(self._queue, [delivery.packet])
        return answer


@caught_by("dead_letters_are_paged_oldest_first", "removing_removes_only_the_named_ones")
class NewestFirst(MemoryDeadLetters):
    async def browse(self, limit: int, cursor: str | None = None) -> tuple[Sequence[DeadLetter], str | None]:
        page, after = await super().browse(limit, cursor)
        return page[::-1], after


@caught_by("dead_letters_are_paged_oldest_first")
class OnePageOnly(MemoryDeadLetters):
    async def browse(self, limit: int, cursor: str | None = None) -> tuple[Sequence[DeadLetter], str | None]:
        return (await super().browse(limit, cursor))[0], None


@caught_by("removing_removes_only_the_named_ones")
class RemovesAll(MemoryDeadLetters):
    async def remove(self, ids: Sequence[str]) -> int:
        return len(self._dead_letters()) if ids and (self._dead_letters().clear() or True) else 0


@caught_by("listing_takes_no_dead_letter_away", "dead_letters_are_paged_oldest_first")
class TakesWhatItShows(MemoryDeadLetters):
    """As a queue that can only be consumed."""

    async def browse(self, limit: int, cursor: str | None = None) -> tuple[Sequence[DeadLetter], str | None]:
        page, after = await super().browse(limit, cursor)
        await self.remove([dead_letter.id for dead_letter in page])
        return page, after
