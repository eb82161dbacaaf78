"""Stores and brokers that fail at random: nothing is lost, whichever call fails."""

from __future__ import annotations

import contextlib
import random

import pytest

import effectonce as eo
from effectonce.backends.memory.store import MemoryStoreBackend
from effectonce.core.store_clients import release_with_refund
from effectonce.record import Answer, Claim, Renewal
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


def test_a_store_shares_its_records_with_the_chaos_around_it(memory_store: eo.Store) -> None:
    chaos = ChaosStore(memory_store, failure_rate=0.0)
    assert eo.once(chaos, scope="shared", key="k")(lambda k: "receipt")("p1") == "receipt"
    record = memory_store.get("shared", "p1")
    assert record is not None
    assert record.state == "done"


async def test_what_a_store_does_on_its_own_thread_does_not_fail(memory_store: eo.Store) -> None:
    """It comes when it likes: with the dice thrown for it, the same seed would not fail in the same way."""
    store = ChaosStore(memory_store, failure_rate=0.99, seed=1)
    port = store.runtime.backend.sync_port()
    claim = Claim("chaos", "k", bytes(16), lease_us=30_000_000, retention_us=86_400_000_000)
    (grant,) = await memory_store.runtime.backend.sync_port().run([claim])
    assert isinstance(grant, Answer)
    renewal = Renewal("chaos", "k", bytes(16), grant.token, 30_000_000, 86_400_000_000)
    for _ in range(20):
        assert list(await port.run([renewal])) == [True]
    assert list(await port.run([release_with_refund(claim, grant)])) == [True]
    assert store.dice.thrown == 0
