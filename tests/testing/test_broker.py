"""`TestBroker`: one delivery at a time to a real worker, and how the worker settles it."""

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


def test_a_delivery_is_handled_and_acked(shop: Shop, broker: TestBroker) -> None:
    one, two = message("1"), message("2")
    settled = broker.deliver(shop.worker, "orders", one, two)
    assert [(delivery.how, delivery.attempt) for delivery in settled] == [("acked", 1), ("acked", 1)]
    assert {delivery.id for delivery in settled} == {one.id, two.id}
    assert sorted(shop.charged) == ["1", "2"]


def test_a_redelivery_is_acked_without_an_effect(shop: Shop, broker: TestBroker) -> None:
    """F04."""
    first, other = message(), message("other")
    broker.deliver(shop.worker, "orders", first, other)
    assert [delivery.id for delivery in broker.redeliver(shop.worker, first)] == [first.id]
    assert len(broker.redeliver(shop.worker)) == 2
    assert sorted(shop.charged) == ["4200", "other"]
    assert [delivery.how for delivery in broker.settled_deliveries("orders")] == ["acked"] * 5


def test_a_failed_delivery_comes_again_after_its_delay(shop: Shop, broker: TestBroker) -> None:
    shop.failing = 1
    (settled,) = broker.deliver(shop.worker, "orders", message())
    assert settled.how == "delayed"
    assert 0 < settled.after <= 10
    assert broker.advance(shop.worker, settled.after / 2) == []
    assert shop.charged == []
    (settled,) = broker.advance(shop.worker, "10s")
    assert (settled.how, settled.attempt) == ("acked", 2)
    assert shop.charged == ["4200"]


def test_a_message_whose_attempts_are_exhausted_is_a_dead_letter_with_the_reason(
    shop: Shop, broker: TestBroker
) -> None:
    shop.failing = 3
    outcomes = [broker.deliver(shop.worker, "orders", message())[0].how]
    last = None
    while outcomes[-1] == "delayed":
        (last,) = broker.advance(shop.worker, "1m")
        outcomes.append(last.how)
    assert outcomes == ["delayed", "delayed", "dead"]
    assert last is not None
    assert any("the gateway is down" in value for value in last.headers.values())
    assert shop.charged == []


def test_two_workers_each_get_the_message(memory_store: eo.Store, broker: TestBroker) -> None:
    """F24: and the settlements of one are not counted for the other."""
    one, other = Shop(memory_store, broker, "one"), Shop(memory_store, broker, "other")
    sent = message()
    broker.deliver(one.worker, "orders", sent)
    assert one.charged == ["4200"]
    assert other.charged == []
    broker.deliver(other.worker, "orders", sent)
    assert (one.charged, other.charged) == (["4200"], ["4200"])


async def test_inside_a_running_loop_the_sync_methods_are_refused(shop: Shop, broker: TestBroker) -> None:
    with pytest.raises(eo.SyncAsyncMismatch, match="adeliver"):
        broker.deliver(shop.worker, "orders", message())
    sent = message()
    assert [delivery.how for delivery in await broker.adeliver(shop.worker, "orders", sent)] == ["acked"]
    assert [delivery.how for delivery in await broker.aredeliver(shop.worker, sent)] == ["acked"]
    assert await broker.aadvance(shop.worker, "1h") == []
    assert shop.charged == ["4200"]


def test_a_queue_without_a_handler_and_an_unknown_message_are_configuration_errors(
    shop: Shop, broker: TestBroker
) -> None:
    with pytest.raises(eo.ConfigurationError, match="no handler for queue 'other'"):
        broker.deliver(shop.worker, "other", message())
    with pytest.raises(eo.ConfigurationError, match="never delivered"):
        broker.redeliver(shop.worker, message())


def test_a_message_whose_handler_never_ends_is_named(memory_store: eo.Store, manual_clock: ManualClock) -> None:
    broker = TestBroker(clock=manual_clock, timeout="200ms")
    worker = eo.Worker(broker, store=memory_store, drain="10ms")

    @worker.handler("orders")
    async def hang(message: eo.Message[str]) -> None:
        await asyncio.Event().wait()

    sent = message()
    with pytest.raises(TimeoutError, match=sent.id):
        broker.deliver(worker, "orders", sent)


def test_pytest_does_not_collect_it() -> None:
    assert TestBroker.__test__ is False


def test_a_message_published_with_a_delay_is_delivered_by_the_advance_that_reaches_it(
    shop: Shop, broker: TestBroker
) -> None:
    later = message("later")
    broker.publish("orders", later, delay="10m")
    assert broker.advance(shop.worker, "9m") == []
    (settled,) = broker.advance(shop.worker, "1m")
    assert (settled.id, settled.how, settled.attempt) == (later.id, "acked", 1)
    assert broker.advance(shop.worker, "1h") == []
    assert shop.charged == ["later"]
