"""Whose a delivery is while its visibility timeout runs, and how a polled broker is consumed."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import pytest

from effectonce.backends.common import visibility_timeout as module
from effectonce.backends.common.visibility_timeout import (
    HeldDelivery,
    PollingConsumer,
    UnsettledDeliveries,
    give_back_unsettled,
)
from effectonce.contracts import Delivery, Packet
from effectonce.errors import BrokerUnavailable
from tests.harness.waiting import auntil


class Clock:
    """The machine's clock, which stands still until a test or a sleep advances it."""

    def __init__(self) -> None:
        self.now = 100.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


def unsettled_on(clock: Clock, prefetch: int = 2) -> UnsettledDeliveries[HeldDelivery]:
    return UnsettledDeliveries(prefetch, clock.monotonic)


def delivery_of(held: HeldDelivery, body: bytes = b"") -> Delivery:
    return Delivery(packet=Packet(body=body), queue="q", handle=held)


async def test_a_delivery_is_ours_until_its_timeout_ends(clock: Clock) -> None:
    unsettled, held = unsettled_on(clock), HeldDelivery("a", 110.0)
    assert not unsettled.owns(held)
    unsettled.add(held)
    clock.now = 109.9
    assert unsettled.owns(held)
    clock.now = 110.0
    assert (unsettled.owns(held), unsettled.holds(held)) == (False, True)


async def test_a_later_delivery_of_the_same_message_replaces_the_older_one(clock: Clock) -> None:
    unsettled, old, new = unsettled_on(clock), HeldDelivery("a", 110.0), HeldDelivery("a", 120.0)
    unsettled.add(old)
    unsettled.add(new)
    assert (unsettled.holds(old), unsettled.release(old), list(unsettled)) == (False, False, [new])
    assert (unsettled.release(new), unsettled.release(new), list(unsettled)) == (True, False, [])


async def test_room_is_what_the_prefetch_leaves_and_ended_timeouts_give_it_back(clock: Clock) -> None:
    unsettled = unsettled_on(clock)
    assert unsettled.room() == 2
    unsettled.add(HeldDelivery("a", 110.0))
    unsettled.add(HeldDelivery("b", 120.0))
    assert unsettled.room() == 0
    clock.now = 110.0
    assert unsettled.room() == 1
    assert unsettled.release_all()[0].key == "b"
    assert unsettled.room() == 2


@pytest.mark.parametrize("end", ["release", "release_all"])
async def test_who_waits_for_room_is_woken_by_a_settlement(clock: Clock, end: str) -> None:
    unsettled, held = unsettled_on(clock, 1), HeldDelivery("a", 1e9)
    unsettled.add(held)
    waiting = asyncio.create_task(unsettled.wait_for_room(60.0))
    await asyncio.sleep(0)
    unsettled.release(held) if end == "release" else unsettled.release_all()
    await asyncio.wait_for(waiting, 5)


async def test_who_waits_for_room_waits_until_the_next_timeout_or_its_own(clock: Clock) -> None:
    unsettled = unsettled_on(clock, 1)
    await asyncio.wait_for(unsettled.wait_for_room(0.01), 5)
    unsettled.add(HeldDelivery("a", clock.now + 60))
    unsettled.add(HeldDelivery("b", clock.now + 0.01))
    await asyncio.wait_for(unsettled.wait_for_room(60.0), 5)


def answering(*answers: bool) -> tuple[Callable[[list[HeldDelivery]], Awaitable[Sequence[bool]]], list[list[Any]]]:
    """A ``send`` with these answers, and the keys that it was called with."""
    sent: list[list[Any]] = []

    async def send(held: list[HeldDelivery]) -> Sequence[bool]:
        sent.append([delivery.key for delivery in held])
        return answers[: len(held)]

    return send, sent


async def test_only_what_is_held_is_settled_and_once(clock: Clock) -> None:
    unsettled = unsettled_on(clock)
    deliveries = [delivery_of(HeldDelivery(key, 110.0)) for key in "abc"]
    unsettled.add(deliveries[0].handle)
    unsettled.add(deliveries[2].handle)
    send, sent = answering(True, False)
    assert await unsettled.settle(deliveries, send) == [True, False, False]
    assert await unsettled.settle(deliveries, send) == [False] * 3
    assert sent == [["a", "c"]]


async def test_what_could_not_be_settled_is_held_again(clock: Clock) -> None:
    unsettled, delivery = unsettled_on(clock), delivery_of(HeldDelivery("a", 110.0))
    unsettled.add(delivery.handle)

    async def fail(held: list[HeldDelivery]) -> Sequence[bool]:
        assert not unsettled.holds(delivery.handle)
        raise BrokerUnavailable("gone")

    with pytest.raises(BrokerUnavailable):
        await unsettled.settle([delivery], fail)
    assert unsettled.owns(delivery.handle)


async def test_extending_releases_nothing(clock: Clock) -> None:
    unsettled = unsettled_on(clock)
    deliveries = [delivery_of(HeldDelivery(key, 110.0)) for key in "abc"]
    for delivery in deliveries[:2]:
        unsettled.add(delivery.handle)
    send, sent = answering(False, True)
    assert await unsettled.extend(deliveries, send) == [False, True, False]
    assert all(unsettled.holds(delivery.handle) for delivery in deliveries[:2])
    assert await unsettled.extend(deliveries[2:], send) == [False]
    assert sent == [["a", "b"]]


@pytest.mark.parametrize(("failures", "calls"), [(0, 1), (1, 2), (2, 2)])
async def test_a_closing_consumer_tries_twice_to_give_back(failures: int, calls: int) -> None:
    made = []

    async def give_back() -> None:
        made.append(1)
        if len(made) <= failures:
            raise BrokerUnavailable("gone")

    await give_back_unsettled(give_back)
    assert len(made) == calls


# -- polling


class Consumer(PollingConsumer[HeldDelivery]):
    """Polls pages that a test puts there."""

    def __init__(self, prefetch: int = 10, window: float = 60.0, longest_poll: float = 5.0) -> None:
        super().__init__(prefetch, window, longest_poll)
        self.pages: list[Any] = []
        self.polls: list[tuple[int, float]] = []
        self.extended: list[bytes] = []
        self.may_return = asyncio.Event()
        self.may_return.set()

    async def _poll_once(self, limit: int, wait: float) -> Sequence[Delivery]:
        self.polls.append((limit, wait))
        await self.may_return.wait()
        page = self.pages.pop(0) if self.pages else []
        if isinstance(page, Exception):
            raise page
        deliveries: list[Delivery] = page
        return deliveries

    async def extend(self, deliveries: Sequence[Delivery], seconds: float) -> Sequence[bool]:
        self.extended += [delivery.packet.body for delivery in deliveries]
        return [delivery.packet.body != b"lost" for delivery in deliveries]

    async def ack(self, deliveries: Sequence[Delivery]) -> Sequence[bool]:
        return [self._unsettled.release(delivery.handle) for delivery in deliveries]

    async def nack(self, deliveries: Sequence[Delivery], delay: float = 0.0) -> Sequence[bool]:
        raise NotImplementedError

    async def dead_letter(self, delivery: Delivery, headers: Any) -> bool:
        raise NotImplementedError

    async def close(self) -> None:
        self.given_back = await self._stop_polling()


def page_of(*bodies: bytes, ends_at: float = 1e9) -> list[Delivery]:
    return [delivery_of(HeldDelivery(body, ends_at), body) for body in bodies]


def bodies(deliveries: Sequence[Delivery]) -> list[bytes]:
    return [delivery.packet.body for delivery in deliveries]


async def test_a_poll_asks_for_what_there_is_room_for() -> None:
    consumer = Consumer(prefetch=3)
    consumer.pages = [page_of(b"a", b"b"), page_of(b"c")]
    assert bodies(await consumer.receive(2, 1.0)) == [b"a", b"b"]
    assert bodies(await consumer.receive(5, 1.0)) == [b"c"]
    assert await consumer.receive(5, 0.0) == []
    assert [limit for limit, _ in consumer.polls] == [2, 1]


async def test_a_poll_waits_for_no_longer_than_is_asked_for_or_the_window_allows() -> None:
    for window, wait, longest in ((60.0, 3.0, 3.0), (60.0, 9.0, 5.0), (8.0, 9.0, 2.0)):
        consumer = Consumer(window=window)
        consumer.pages = [page_of(b"a")]
        await consumer.receive(1, wait)
        assert consumer.polls[0][1] == pytest.approx(longest, abs=0.5)


async def test_polls_are_repeated_until_a_message_arrives() -> None:
    consumer = Consumer()
    consumer.pages = [[], [], page_of(b"a")]
    assert bodies(await consumer.receive(1, 60.0)) == [b"a"]
    assert len(consumer.polls) == 3


async def test_a_receive_without_a_message_ends_with_its_wait() -> None:
    consumer = Consumer()
    assert await asyncio.wait_for(consumer.receive(1, 0.01), 5) == []


async def test_an_error_of_a_poll_is_raised_once() -> None:
    consumer = Consumer()
    consumer.pages = [BrokerUnavailable("gone"), page_of(b"a")]
    with pytest.raises(BrokerUnavailable):
        await consumer.receive(1, 1.0)
    assert bodies(await consumer.receive(1, 1.0)) == [b"a"]


async def test_what_a_cancelled_receive_has_polled_is_there_for_the_next() -> None:
    consumer = Consumer()
    consumer.pages = [page_of(b"a", b"b", b"c")]
    consumer.may_return.clear()
    receiving = asyncio.create_task(consumer.receive(3, 60.0))
    await auntil(lambda: bool(consumer.polls))
    receiving.cancel()
    await asyncio.gather(receiving, return_exceptions=True)
    assert await consumer.receive(1, 0.01) == []  # the poll is still under way
    consumer.may_return.set()
    assert bodies(await consumer.receive(2, 60.0)) == [b"a", b"b"]
    assert bodies(await consumer.receive(2, 60.0)) == [b"c"]
    assert len(consumer.polls) == 1


async def test_what_has_waited_for_half_of_its_window_is_extended_before_it_is_returned() -> None:
    consumer = Consumer(window=60.0)
    now = module.time.monotonic()
    consumer.pages = [page_of(b"a", ends_at=now + 45), page_of(b"b", b"lost", ends_at=now + 15)]
    assert bodies(await consumer.receive(5, 1.0)) == [b"a"]
    assert bodies(await consumer.receive(5, 1.0)) == [b"b"]
    assert consumer.extended == [b"b", b"lost"]


async def test_a_receive_waits_for_room() -> None:
    consumer = Consumer(prefetch=1)
    consumer.pages = [page_of(b"a"), page_of(b"b")]
    first = await consumer.receive(1, 1.0)
    receiving = asyncio.create_task(consumer.receive(1, 60.0))
    await asyncio.sleep(0)
    await consumer.ack(first)
    assert bodies(await asyncio.wait_for(receiving, 5)) == [b"b"]


async def test_a_closing_consumer_gives_back_what_is_still_its_own() -> None:
    consumer = Consumer()
    consumer.pages = [page_of(b"a"), page_of(b"b", ends_at=module.time.monotonic() + 31), []]
    first, _ = [(await consumer.receive(1, 1.0))[0] for _ in range(2)]
    await consumer.ack([first])
    consumer.may_return.clear()
    receiving = asyncio.create_task(consumer.receive(1, 60.0))
    await auntil(lambda: len(consumer.polls) == 3)
    await consumer.close()
    assert [held.key for held in consumer.given_back] == [b"b"]
    receiving.cancel()
    await asyncio.gather(receiving, return_exceptions=True)


async def test_what_timed_out_is_not_given_back_and_what_is_forgotten_is_not_either() -> None:
    consumer = Consumer()
    consumer._unsettled.add(HeldDelivery("late", module.time.monotonic() - 1))
    await consumer.close()
    assert consumer.given_back == []
    consumer.pages = [page_of(b"a")]
    await consumer.receive(1, 1.0)
    consumer._forget_deliveries()
    await consumer.close()
    assert consumer.given_back == []


async def test_a_closed_consumer_hands_out_nothing_that_it_gave_back() -> None:
    consumer = Consumer()
    consumer.pages = [page_of(b"a", b"b")]
    consumer.may_return.clear()
    receiving = asyncio.create_task(consumer.receive(2, 60.0))
    await auntil(lambda: bool(consumer.polls))
    receiving.cancel()
    await asyncio.gather(receiving, return_exceptions=True)
    consumer.may_return.set()
    await auntil(lambda: bool(consumer._arrived))
    await consumer.close()
    assert sorted(held.key for held in consumer.given_back) == [b"a", b"b"]
    assert await consumer.receive(2, 0.0) == []
