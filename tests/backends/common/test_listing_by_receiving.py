"""Listing dead letters by receiving them, on a broker that takes a receipt only while its message is hidden."""

from collections.abc import Sequence

import pytest

from effectonce.backends.common import listing_by_receiving as module
from effectonce.backends.common.listing_by_receiving import ListedDeadLetter, ReceivedDeadLetters
from effectonce.contracts import DeadLetter, Packet


class Clock:
    now = 1000.0

    def monotonic(self) -> float:
        return self.now


class Letters(ReceivedDeadLetters):
    """Each receive makes new receipts, as Pub/Sub does."""

    def __init__(self, clock: Clock, *ids: str) -> None:
        super().__init__(10, receipts_last=False)
        self.clock = clock
        self.stored = dict.fromkeys(ids, ("", 0.0))  # its receipt, and until when it is hidden
        self.receives = 0

    async def _receive_batch(self) -> Sequence[ListedDeadLetter]:
        self.receives += 1
        hidden_until = self.clock.now + module.LISTING_TIMEOUT_S
        received = []
        for id, (_, hidden) in self.stored.items():
            if hidden <= self.clock.now:
                self.stored[id] = (f"{id}:{self.receives}", hidden_until)
                letter = DeadLetter(id=id, packet=Packet(body=id.encode()), queue="q")
                received.append(ListedDeadLetter(letter, self.stored[id][0], 0.0, hidden_until))
        return received

    async def _delete_received(self, received: Sequence[ListedDeadLetter]) -> Sequence[bool]:
        for listed in received:
            if self.stored[listed.dead_letter.id] == (
                listed.receipt,
                listed.hidden_until > self.clock.now and listed.hidden_until,
            ):
                del self.stored[listed.dead_letter.id]
        return [True] * len(received)  # it never tells

    async def _show_again(self, received: Sequence[ListedDeadLetter]) -> None:
        for listed in received:
            self.stored[listed.dead_letter.id] = ("", 0.0)

    async def count(self) -> int:
        return len(self.stored)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(module, "time", clock)
    return clock


async def test_what_was_listed_too_long_ago_is_received_again_before_it_is_removed(clock: Clock) -> None:
    """Its receipt is void by then, and the broker would confirm it and remove nothing."""
    letters = Letters(clock, "a", "b", "c")
    page, cursor = await letters.browse(1)
    assert cursor is not None
    clock.now += module.LISTING_TIMEOUT_S + 1
    assert await letters.remove([page[0].id]) == 1
    assert await letters.count() == 2


async def test_what_is_still_hidden_is_removed_without_receiving_more(clock: Clock) -> None:
    letters = Letters(clock, "a", "b", "c")
    page, _ = await letters.browse(1)
    receives = letters.receives
    assert await letters.remove([page[0].id]) == 1
    assert (await letters.count(), letters.receives) == (2, receives)
