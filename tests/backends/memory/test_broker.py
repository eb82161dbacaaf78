"""The memory broker keeps the contract, and the contract's suite has teeth: broken brokers fail it."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
import unittest

import pytest

import effectonce as eo
from effectonce.backends.memory.broker import MemoryBrokerBackend
from effectonce.contracts import Packet
from effectonce.testing import ManualClock
from effectonce.testing.suites import broker_cases, broker_suite
from effectonce.values.urls import Address
from tests.backends.broker_mutants import MUTANTS, Defect, Mutant

TestContract = broker_suite(lambda: MemoryBrokerBackend(clock=ManualClock()))

CASES = {str(case): case for case in broker_cases()}


@pytest.mark.quick_once
@pytest.mark.parametrize(
    "name",
    [
        "receive_returns_when_a_message_arrives",
        "a_delay_keeps_a_delivery_back_that_long",
        "a_dead_consumers_deliveries_are_redelivered_to_another",
        "extend_keeps_a_delivery_past_the_window",
        "a_cancelled_receive_loses_nothing",
    ],
)
def test_time_goes_by_on_the_system_clock_too(name: str) -> None:
    CASES[name].run(MemoryBrokerBackend(ack_window=0.4), quiet=0.05)


# -- the suite itself


@pytest.mark.quick_once
@pytest.mark.parametrize(("mutant", "case"), MUTANTS, ids=lambda value: getattr(value, "__name__", value))
def test_a_broken_broker_fails_the_case_about_it(mutant: type[Mutant], case: str) -> None:
    with pytest.raises((AssertionError, Defect, TimeoutError, IndexError)):
        CASES[case].run(mutant(), timeout=0.4)


def test_every_case_that_needs_no_server_has_a_mutant_that_fails_it() -> None:
    """A case that nothing can fail proves nothing."""
    applicable = set()
    for name, case in CASES.items():
        try:
            case.run(MemoryBrokerBackend(clock=ManualClock()), timeout=2.0)
        except unittest.SkipTest:
            continue
        applicable.add(name)
    assert applicable == {case for _, case in MUTANTS}


def test_a_skipped_case_must_exist() -> None:
    with pytest.raises(ValueError, match="no_such_case"):
        broker_suite(MemoryBrokerBackend, skip=("no_such_case",))


def test_every_case_of_the_suite_has_its_sentence_as_name() -> None:
    assert len(CASES) > 50
    assert all(name.isidentifier() and name.count("_") >= 2 for name in CASES)


def test_the_suite_imports_no_pytest() -> None:
    """It ships with the product, where pytest may not be installed."""
    code = "import sys, effectonce.testing.suites; sys.exit('pytest' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)


# -- its own


async def test_it_stands_on_its_clock_exactly() -> None:
    clock = ManualClock()
    backend = MemoryBrokerBackend(clock=clock, ack_window=30.0)
    publisher, consumer = backend.publisher(), backend.consumer("q", group="g", prefetch=10)
    await publisher.publish("q", [Packet(body=b"x")])
    assert [delivery.attempt for delivery in await consumer.receive(1, 0.0)] == [1]
    clock.advance_micros(29_999_999)
    assert not await consumer.receive(1, 0.0)
    clock.advance_micros(1)
    (delivery,) = await consumer.receive(1, 0.0)
    assert delivery.attempt == 2
    await consumer.nack([delivery], 5.0)
    clock.advance_micros(4_999_999)
    assert not await consumer.receive(1, 0.0)
    clock.advance_micros(1)
    assert len(await consumer.receive(1, 0.0)) == 1


async def test_a_clock_moved_by_hand_wakes_a_waiting_receive() -> None:
    clock = ManualClock()
    backend = MemoryBrokerBackend(clock=clock)
    publisher, consumer = backend.publisher(), backend.consumer("q", group="g", prefetch=10)
    await publisher.publish("q", [Packet(body=b"x")])
    await consumer.nack(await consumer.receive(1, 0.0), 60.0)
    waiting = asyncio.ensure_future(consumer.receive(1, 10.0))
    await asyncio.sleep(0)
    clock.advance("60s")
    assert len(await waiting) == 1


def test_another_thread_wakes_a_waiting_receive() -> None:
    with eo.connect_broker("memory://") as broker:
        waiting = threading.Event()

        async def consume() -> int:
            consumer = broker.backend.consumer("orders", group="g", prefetch=10)
            asyncio.get_running_loop().call_later(0.02, waiting.set)
            return len(await consumer.receive(1, 10.0))

        thread = threading.Thread(target=lambda: (waiting.wait(10), broker.publish("orders", eo.Message(data=1))))
        thread.start()
        assert asyncio.run(consume()) == 1
        thread.join(10)


async def test_settled_messages_leave_nothing_behind() -> None:
    """Memory stays flat: neither the queue nor its keys nor its heap of due times grow."""
    backend = MemoryBrokerBackend()
    publisher, consumer = backend.publisher(), backend.consumer("q", group="g", prefetch=100)
    for n in range(50):
        await publisher.publish(
            "q", [Packet(body=b"x", ordering_key=f"k{n}-{i}" if i % 2 else None) for i in range(20)]
        )
        while found := await consumer.receive(20, 0.0):
            await consumer.ack(found)
    group = backend.queues.queue("q").groups["g"]
    assert (len(group.messages), len(group.numbers_by_key)) == (0, 0)
    assert len(group.schedule) < 200


def test_an_address_is_a_name_and_options() -> None:
    backend = MemoryBrokerBackend(Address("memory://shop?ack_window=2s"))
    assert (repr(backend), backend.window_us, backend.capabilities.ack_window_s) == ("memory://shop", 2_000_000, 2.0)
    assert MemoryBrokerBackend(Address("memory://shop/")).queues is backend.queues
    assert MemoryBrokerBackend().queues is not MemoryBrokerBackend().queues
    assert MemoryBrokerBackend().window_us == 30_000_000
    for url in ("memory://shop/path", "memory://shop?option=1"):
        with pytest.raises(eo.InvalidOption):
            MemoryBrokerBackend(Address(url))


def test_it_says_what_it_is() -> None:
    capabilities = MemoryBrokerBackend().capabilities
    assert (capabilities.name, capabilities.ordering) == ("memory", "key")
    assert capabilities.ordered_publish
    assert capabilities.extends
    assert capabilities.counts_attempts
    assert capabilities.groups
    assert not capabilities.durable
    assert not capabilities.shared


def test_a_forked_child_does_not_wait_for_a_thread_of_its_parent() -> None:
    backend = MemoryBrokerBackend()
    assert backend.queues.lock.acquire()
    backend.queues.waiting.add(("a loop of the parent", None))  # type: ignore[arg-type]
    backend.after_fork()
    assert backend.queues.lock.acquire(timeout=1)
    assert not backend.queues.waiting


async def test_what_was_sent_before_the_first_group_is_that_groups() -> None:
    backend = MemoryBrokerBackend()
    publisher = backend.publisher()
    await publisher.publish("q", [Packet(body=b"0")])
    first = backend.consumer("q", group="first", prefetch=5)
    assert [delivery.packet.body for delivery in await first.receive(5, 0.0)] == [b"0"]
    second = backend.consumer("q", group="second", prefetch=5)
    assert list(await second.receive(5, 0.0)) == []
    await publisher.publish("q", [Packet(body=b"1")])
    assert [delivery.packet.body for delivery in await first.receive(5, 0.0)] == [b"1"]
    assert [delivery.packet.body for delivery in await second.receive(5, 0.0)] == [b"1"]


async def test_a_nack_without_a_delay_is_there_at_once() -> None:
    backend = MemoryBrokerBackend(clock=ManualClock())
    consumer = backend.consumer("q", group="g", prefetch=1)
    await backend.publisher().publish("q", [Packet(body=b"0"), Packet(body=b"1")])
    (delivery,) = await consumer.receive(5, 0.0)
    assert list(await consumer.receive(5, 0.0)) == [], "one is as many as it may hold"
    assert list(await consumer.nack([delivery])) == [True]
    assert list(await consumer.nack([delivery])) == [False]
    assert len(await consumer.receive(5, 0.0)) == 1


async def test_dead_letters_are_browsed_page_by_page() -> None:
    backend = MemoryBrokerBackend()
    consumer, dead_letters = backend.consumer("q", group="g", prefetch=9), backend.dead_letters("q", group="g")
    await backend.publisher().publish("q", [Packet(body=b"%d" % n) for n in range(3)])
    for delivery in await consumer.receive(9, 0.0):
        assert await consumer.dead_letter(delivery, {"why": "never"})
    page, cursor = await dead_letters.browse(2)
    assert [letter.packet.body for letter in page] == [b"0", b"1"]
    page, cursor = await dead_letters.browse(2, cursor)
    assert ([letter.packet.body for letter in page], cursor) == ([b"2"], None)
    assert page[0].packet.headers == {"why": "never"}
    assert await dead_letters.remove([page[0].id, page[0].id, "none"]) == 1
    assert await dead_letters.count() == 2


async def test_a_consumer_that_closes_wakes_those_who_wait_for_what_it_had() -> None:
    backend = MemoryBrokerBackend()
    leaves, waits = (backend.consumer("q", group="g", prefetch=1) for _ in range(2))
    await backend.publisher().publish("q", [Packet(body=b"x")])
    assert len(await leaves.receive(1, 0.0)) == 1
    waiting = asyncio.ensure_future(waits.receive(1, 300.0))
    await asyncio.sleep(0.01)
    await leaves.close()
    (delivery,) = await asyncio.wait_for(waiting, 60)
    assert delivery.attempt == 2


async def test_a_nacked_message_wakes_those_who_wait_for_one() -> None:
    backend = MemoryBrokerBackend()
    gives, waits = (backend.consumer("q", group="g", prefetch=1) for _ in range(2))
    await backend.publisher().publish("q", [Packet(body=b"x")])
    deliveries = await gives.receive(1, 0.0)
    waiting = asyncio.ensure_future(waits.receive(1, 300.0))
    await asyncio.sleep(0.01)
    await gives.nack(deliveries)
    assert len(await asyncio.wait_for(waiting, 60)) == 1


async def test_a_consumer_that_waited_in_vain_is_forgotten() -> None:
    """Else every empty receive would add to what a publisher has to wake."""
    backend = MemoryBrokerBackend()
    consumer = backend.consumer("orders", group="billing", prefetch=1)
    assert await consumer.receive(1, 0.01) == []
    assert not backend.queues.waiting
