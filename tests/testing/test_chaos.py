"""Stores and brokers that fail at random: nothing is lost, whichever call fails."""

from __future__ import annotations

import contextlib
import random

import pytest

import effectonce as eo
from effectonce.backends.memory.store import MemoryStoreBackend
from effectonce.testing import ChaosBroker, ChaosStore, ManualClock


def test_a_hundred_attempts_through_failing_store_and_gateway_charge_once() -> None:
    """The article's chaos test: 30 % of the store's calls and 20 % of the gateway's fail, over 100 attempts."""
    clock = ManualClock()
    store = ChaosStore(MemoryStoreBackend(clock=clock), failure_rate=0.3, seed=1)
    dice = random.Random(2)
    gateway: dict[str, int] = {}  # a provider: one charge for each idempotency key

    @eo.once(store, scope="chaos", key="payment_id")
    def charge(payment_id: str) -> int:
        if dice.random() < 0.2:
            raise ConnectionError("the gateway is down")
        return gateway.setdefault(eo.current().provider_key("gateway"), 4200)

    returned = 0
    for _ in range(100):
        with contextlib.suppress(ConnectionError, eo.Retryable, eo.LeaseLost):
            returned += charge("pay_1") == 4200
        clock.advance("31s")  # a claim whose reply was lost is held until its lease ends

    assert len(gateway) == 1
    assert returned > 20
    assert store.dice.failed > 10


def test_the_same_seed_fails_in_the_same_way() -> None:
    def run(seed: int) -> list[str]:
        store = ChaosStore(failure_rate=0.4, seed=seed)

        @eo.once(store, scope="seeded", key="number")
        def handler(number: int) -> int:
            return number

        outcomes = []
        for number in range(30):
            try:
                outcomes.append(str(handler(number)))
            except eo.Retryable as error:
                outcomes.append(error.code)
        return outcomes

    assert run(7) == run(7)
    assert run(7) != run(8)


async def test_an_async_handler_meets_the_same_chaos() -> None:
    clock = ManualClock()
    store = ChaosStore(MemoryStoreBackend(clock=clock), failure_rate=0.3, seed=3)
    effects = []

    @eo.once(store, scope="async-chaos", key="number")
    async def handler(number: int) -> None:
        effects.append(number)

    for number in range(20):
        for _ in range(20):
            with contextlib.suppress(eo.Retryable, eo.LeaseLost):
                await handler(number)
            clock.advance("31s")
    assert set(effects) == set(range(20))


def test_a_failure_rate_of_1_is_refused() -> None:
    with pytest.raises(eo.InvalidOption, match="below 1"):
        ChaosStore(failure_rate=1.0)


async def test_nothing_is_lost_on_a_chaotic_broker_when_unconfirmed_messages_are_sent_again() -> None:
    async with ChaosBroker("memory://?ack_window=0.05", failure_rate=0.3, seed=5) as broker:
        await broker.backend.declare("orders", group="g")
        sent = [eo.Message(data=number) for number in range(30)]
        for message in sent:
            while True:
                try:
                    await broker.apublish("orders", message)
                    break
                except eo.BrokerUnavailable:
                    continue
        consumer = broker.backend.consumer("orders", group="g", prefetch=50)
        seen: list[str] = []
        lost_acks = broker.dice.failed
        while len(set(seen)) < len(sent) or len(seen) < 45:
            with contextlib.suppress(eo.BrokerUnavailable):
                deliveries = await consumer.receive(10, 0.2)
                seen += [delivery.packet.id for delivery in deliveries]
                await consumer.ack(deliveries)
        assert set(seen) == {message.id for message in sent}
        assert len(seen) > len(sent), "acks were lost, so some were redelivered"
        assert broker.dice.failed > lost_acks
