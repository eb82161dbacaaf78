"""`TestBroker`: one delivery at a time to a real worker, and what became of it."""

from __future__ import annotations

import asyncio

import pytest

import effectonce as eo
from effectonce.testing import ManualClock, TestBroker


class Shop:
    """A worker with one handler, which can be told to fail."""

    def __init__(self, store: eo.Store, broker: TestBroker, name: str = "shop") -> None:
        self.charged: list[str] = []
        self.failing = 0
        self.worker = eo.Worker(broker, store=store, name=name)

        @self.worker.handler("orders", retry=eo.Retry(max_attempts=3, first="10s", cap="10s"))
        def charge(message: eo.Message[str]) -> None:
            if self.failing:
                self.failing -= 1
                raise ConnectionError("the gateway is down")
            self.charged.append(message.data)


@pytest.fixture
def broker(memory_broker: TestBroker) -> TestBroker:
    return memory_broker


@pytest.fixture
def shop(memory_store: eo.Store, broker: TestBroker) -> Shop:
    return Shop(memory_store, broker)


def message(data: str = "4200") -> eo.Message[str]:
    return eo.Message(data=data)


def test_what_is_delivered_is_handled_and_acked(shop: Shop, broker: TestBroker) -> None:
    one, two = message("1"), message("2")
    settled = broker.deliver(shop.worker, "orders", one, two)
    assert [(each.how, each.attempt) for each in settled] == [("acked", 1), ("acked", 1)]
    assert {each.id for each in settled} == {one.id, two.id}
    assert sorted(shop.charged) == ["1", "2"]


def test_what_is_delivered_again_is_acked_and_does_nothing(shop: Shop, broker: TestBroker) -> None:
    """F04."""
    first, other = message(), message("other")
    broker.deliver(shop.worker, "orders", first, other)
    assert [each.id for each in broker.redeliver(shop.worker, first)] == [first.id]
    assert len(broker.redeliver(shop.worker)) == 2
    assert sorted(shop.charged) == ["4200", "other"]
    assert [each.how for each in broker.settled("orders")] == ["acked"] * 5


def test_a_failure_comes_again_when_its_time_has_come(shop: Shop, broker: TestBroker) -> None:
    shop.failing = 1
    (settled,) = broker.deliver(shop.worker, "orders", message())
    assert settled.how == "again"
    assert 0 < settled.after <= 10
    assert broker.advance(shop.worker, settled.after / 2) == []
    assert shop.charged == []
    (settled,) = broker.advance(shop.worker, "10s")
    assert (settled.how, settled.attempt) == ("acked", 2)
    assert shop.charged == ["4200"]


def test_what_fails_for_good_is_a_dead_letter_that_says_why(shop: Shop, broker: TestBroker) -> None:
    shop.failing = 3
    hows = [broker.deliver(shop.worker, "orders", message())[0].how]
    last = None
    while hows[-1] == "again":
        (last,) = broker.advance(shop.worker, "1m")
        hows.append(last.how)
    assert hows == ["again", "again", "dead"]
    assert last is not None
    assert any("the gateway is down" in value for value in last.headers.values())
    assert shop.charged == []


def test_two_workers_each_get_their_own(memory_store: eo.Store, broker: TestBroker) -> None:
    """F24: and what one has settled is not counted for the other."""
    one, other = Shop(memory_store, broker, "one"), Shop(memory_store, broker, "other")
    sent = message()
    broker.deliver(one.worker, "orders", sent)
    assert one.charged == ["4200"]
    assert other.charged == []
    broker.deliver(other.worker, "orders", sent)
    assert (one.charged, other.charged) == (["4200"], ["4200"])


async def test_inside_a_loop_the_async_names_are_used(shop: Shop, broker: TestBroker) -> None:
    with pytest.raises(eo.SyncAsyncMismatch, match="adeliver"):
        broker.deliver(shop.worker, "orders", message())
    sent = message()
    assert [each.how for each in await broker.adeliver(shop.worker, "orders", sent)] == ["acked"]
    assert [each.how for each in await broker.aredeliver(shop.worker, sent)] == ["acked"]
    assert await broker.aadvance(shop.worker, "1h") == []
    assert shop.charged == ["4200"]


def test_a_queue_without_a_handler_and_a_message_that_never_was_are_mistakes_of_the_test(
    shop: Shop, broker: TestBroker
) -> None:
    with pytest.raises(eo.ConfigurationError, match="no handler for queue 'other'"):
        broker.deliver(shop.worker, "other", message())
    with pytest.raises(eo.ConfigurationError, match="never delivered"):
        broker.redeliver(shop.worker, message())


def test_a_handler_that_never_ends_is_named(memory_store: eo.Store, manual_clock: ManualClock) -> None:
    broker = TestBroker(clock=manual_clock, timeout="200ms")
    worker = eo.Worker(broker, store=memory_store, drain="10ms")

    @worker.handler("orders")
    async def hang(message: eo.Message[str]) -> None:
        await asyncio.Event().wait()

    sent = message()
    with pytest.raises(TimeoutError, match=sent.id):
        broker.deliver(worker, "orders", sent)


def test_pytest_does_not_take_it_for_a_test() -> None:
    assert TestBroker.__test__ is False
