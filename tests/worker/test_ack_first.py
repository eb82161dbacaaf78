"""``ack="first"``: claimed, acked, and then run. A crash may lose a message; none runs twice."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

import effectonce as eo
from effectonce.contracts import Delivery
from effectonce.core.guarded_call import begin
from effectonce.errors import BrokerUnavailable, ConfigurationError

from .bench import Bench, paid, serving, until
from .kills import Show

SCOPE = "orders/*/billing"


@pytest.fixture
def bench() -> Bench:
    return Bench()


def state_of(bench: Bench, message: eo.Message[Any]) -> str | None:
    record = bench.store.get(SCOPE, message.key)
    return None if record is None else record.state


# -- the order


async def test_a_message_is_claimed_then_acked_and_then_run(bench: Bench) -> None:
    worker, steps, message = bench.worker(), list[str](), paid()
    bench.on_ack = lambda delivery: steps.append(f"acked, {state_of(bench, message)}")

    @worker.handler("orders", ack="first")
    async def charge(message: eo.Message[Any]) -> None:
        steps.append(f"run, {bench.left('orders')} left")

    async with serving(worker):
        await bench.send("orders", message)
        await until(lambda: state_of(bench, message) == "done")
    assert steps == ["acked, claimed", "run, 0 left"]


async def test_a_duplicate_is_acked_and_does_not_run(bench: Bench) -> None:
    worker, runs, message = bench.worker(), list[str](), paid()

    @worker.handler("orders", ack="first")
    def charge(message: eo.Message[Any]) -> None:
        runs.append(message.id)

    async with serving(worker):
        await bench.send("orders", message)
        await until(lambda: state_of(bench, message) == "done")
        await bench.send("orders", message, message)
        await until(lambda: bench.count("ack") == 3)
    assert runs == [message.id]
    assert bench.left("orders") == 0


async def test_messages_are_acked_together(bench: Bench) -> None:
    worker, runs = bench.worker(), list[str]()

    @worker.handler("orders", ack="first")
    async def charge(message: eo.Message[Any]) -> None:
        runs.append(message.id)

    await bench.send("orders", *(paid(n) for n in range(50)))
    async with serving(worker):
        await until(lambda: len(runs) == 50)
    assert len(set(runs)) == 50


# -- what may be lost


async def test_a_handler_that_raises_has_failed_for_good(bench: Bench, caplog: pytest.LogCaptureFixture) -> None:
    worker, runs, message = bench.worker(), list[str](), paid()

    @worker.handler("orders", ack="first")
    def charge(message: eo.Message[Any]) -> None:
        runs.append(message.id)
        raise ConnectionError("the gateway is down")

    async with serving(worker):
        await bench.send("orders", message)
        await until(lambda: state_of(bench, message) == "failed")
    assert runs == [message.id]
    assert bench.left("orders") == 0
    assert bench.count("dead") == 0, "there is no delivery to move"
    assert "is lost: it was acked before it ran" in caplog.text


async def test_with_on_error_doubt_it_waits_for_an_operator(bench: Bench) -> None:
    worker, message = bench.worker(), paid()

    @worker.handler("orders", ack="first", on_error="doubt")
    def charge(message: eo.Message[Any]) -> None:
        raise ConnectionError("the gateway is down")

    async with serving(worker):
        await bench.send("orders", message)
        await until(lambda: state_of(bench, message) == "in_doubt")


async def test_with_on_error_doubt_a_permanent_error_has_failed_for_good(bench: Bench) -> None:
    worker, message = bench.worker(), paid()

    @worker.handler("orders", ack="first", on_error="doubt", permanent=(ValueError,))
    def charge(message: eo.Message[Any]) -> None:
        raise ValueError("nothing was sent")

    async with serving(worker):
        await bench.send("orders", message)
        await until(lambda: state_of(bench, message) == "failed")


async def test_one_that_is_cut_off_by_the_end_of_the_drain_is_in_doubt_and_not_given_back(bench: Bench) -> None:
    worker, message, started = bench.worker(drain="10ms"), paid(), asyncio.Event()

    @worker.handler("orders", ack="first")
    async def charge(message: eo.Message[Any]) -> None:
        started.set()
        await asyncio.sleep(60)

    async with serving(worker):
        await bench.send("orders", message)
        await started.wait()
    assert state_of(bench, message) == "in_doubt"
    assert (bench.left("orders"), bench.count("nack")) == (0, 0)


async def test_one_whose_ack_outlasts_the_drain_is_in_doubt_when_its_lease_ends(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    worker, runs, message, acking = bench.worker(drain="10ms"), list[str](), paid(), asyncio.Event()

    @worker.handler("orders", ack="first")
    async def charge(message: eo.Message[Any]) -> None:
        runs.append(message.id)

    async with serving(worker):
        await until(lambda: worker.consumers)
        consumer = worker.consumers[0].settler._consumer
        ack = consumer.ack

        async def ack_slowly(deliveries: Sequence[Delivery]) -> Sequence[bool]:
            acking.set()
            await asyncio.sleep(0.2)
            return await ack(deliveries)

        monkeypatch.setattr(consumer, "ack", ack_slowly)
        await bench.send("orders", message)
        await acking.wait()
    assert (runs, bench.left("orders"), state_of(bench, message)) == ([], 0, "claimed")
    assert not bench.store.runtime.leased_runs, "nothing renews its lease"


async def test_a_drain_runs_what_is_acked(bench: Bench) -> None:
    """There is no other delivery of it."""
    worker, runs, release = bench.worker(), list[str](), asyncio.Event()

    @worker.handler("orders", ack="first", concurrency=1)
    async def charge(message: eo.Message[Any]) -> None:
        runs.append(message.id)
        await release.wait()

    await bench.send("orders", *(paid(n) for n in range(5)))
    async with serving(worker):
        await until(lambda: runs)
        worker.stop()
        release.set()
    assert len(runs) == bench.count("ack")
    assert bench.left("orders") == 5 - len(runs)


# -- what is never run twice


async def test_what_a_crash_left_claimed_is_in_doubt_for_its_redelivery(bench: Bench) -> None:
    """The worker died between the claim and the ack, or after an ack that did not arrive."""
    worker, runs, message = bench.worker(), list[str](), paid()

    @worker.handler("orders", ack="first", lease="20ms")
    def charge(message: eo.Message[Any]) -> None:
        runs.append(message.id)

    policy = worker.routes[0].policy
    claim = begin.prepare_run(bench.store.runtime, policy, message.key, b"").claim_request()
    await bench.store.runtime.async_client().claim(claim)
    await asyncio.sleep(0.05)  # its lease is over
    async with serving(worker):
        await bench.send("orders", message)
        await until(lambda: bench.count("dead") == 1)
    assert (runs, state_of(bench, message)) == ([], "in_doubt")


async def test_a_delivery_that_another_consumer_has_by_now_does_not_start(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    worker, runs, message, refused = bench.worker(), list[str](), paid(), list[str]()

    @worker.handler("orders", ack="first")
    def charge(message: eo.Message[Any]) -> None:
        runs.append(message.id)

    async with serving(worker):
        await until(lambda: worker.consumers)
        consumer = worker.consumers[0].settler._consumer
        ack = consumer.ack

        async def ack_too_late(deliveries: Sequence[Delivery]) -> Sequence[bool]:
            refused.extend(delivery.packet.id for delivery in deliveries)
            monkeypatch.setattr(consumer, "ack", ack)
            return [False] * len(deliveries)

        monkeypatch.setattr(consumer, "ack", ack_too_late)
        await bench.send("orders", message)
        await until(lambda: refused and (record := bench.store.get(SCOPE, message.key)) and record.state == "free")
    assert (runs, refused) == ([], [message.id])


async def test_an_ack_without_an_answer_starts_nothing_until_the_message_comes_again(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    worker, runs, failures, message = bench.worker(), list[str](), list[str](), paid()

    @worker.handler("orders", ack="first")
    def charge(message: eo.Message[Any]) -> None:
        runs.append(message.id)

    async with serving(worker):
        await until(lambda: worker.consumers)
        consumer = worker.consumers[0].settler._consumer
        ack = consumer.ack

        async def ack_in_an_outage(deliveries: Sequence[Delivery]) -> Sequence[bool]:
            failures.append("ack")
            monkeypatch.setattr(consumer, "ack", ack)
            raise BrokerUnavailable("the connection broke")

        monkeypatch.setattr(consumer, "ack", ack_in_an_outage)
        await bench.send("orders", message)
        await until(lambda: state_of(bench, message) == "done")
    assert (failures, runs) == (["ack"], [message.id])


async def test_an_ack_that_is_refused_stops_the_worker_and_puts_nothing_in_doubt(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    worker, runs, message = bench.worker(), list[str](), paid()

    @worker.handler("orders", ack="first")
    def charge(message: eo.Message[Any]) -> None:
        runs.append(message.id)

    async def refuse(deliveries: Sequence[Delivery]) -> Sequence[bool]:
        raise ConfigurationError("the queue was deleted")

    serving_task = asyncio.create_task(worker.serve())
    await until(lambda: worker.consumers)
    monkeypatch.setattr(worker.consumers[0].settler._consumer, "ack", refuse)
    await bench.send("orders", message)
    with pytest.raises(ConfigurationError, match="the queue was deleted"):
        await serving_task
    assert state_of(bench, message) == "free"
    assert (runs, bench.left("orders")) == ([], 1)


# -- what it is refused with


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"mode": "seen"}, "a redelivery could run beside it"),
        ({"to": "shipments"}, "a crash would lose that"),
        ({"retry": eo.Retry(3)}, "retry= has no meaning"),
    ],
)
def test_what_promises_another_attempt_is_refused(bench: Bench, options: dict[str, Any], reason: str) -> None:
    with pytest.raises(ConfigurationError, match=f"ack='first' of .*{reason}"):

        @bench.worker().handler("orders", ack="first", **options)
        def charge(message: eo.Message[Any]) -> None: ...


def test_in_a_transaction_it_is_refused(bench: Bench) -> None:
    worker = eo.Worker(bench.broker, inbox=eo.Inbox(scope="billing"), connect=lambda: sqlite3.connect(":memory:"))
    with pytest.raises(ConfigurationError, match="one commit"):

        @worker.handler("orders", ack="first")
        def charge(connection: Any, message: eo.Message[Any]) -> None: ...


def test_another_word_is_refused(bench: Bench) -> None:
    with pytest.raises(ConfigurationError, match="ack='early' is neither 'last' nor 'first'"):

        @bench.worker().handler("orders", ack="early")  # type: ignore[arg-type]
        def charge(message: eo.Message[Any]) -> None: ...


# -- kills


@pytest.mark.chaos
@pytest.mark.quick_on("redis")
@pytest.mark.parametrize("kind", ["sqlite", "redis", "rabbitmq"])
def test_workers_are_killed_and_nothing_is_doubled(
    kind: str, tmp_path: Path, unique_name: str, request: pytest.FixtureRequest
) -> None:
    """At most once: 0 doubled. What was lost is in doubt in the store, or a dead letter."""
    store = f"sqlite:///{tmp_path}/store.db" if kind == "sqlite" else request.getfixturevalue("redis_url")
    broker = {
        "sqlite": lambda: f"sqlite:///{tmp_path}/queue.db?ack_window=2s",
        "redis": lambda: f"{store}?ack_window=2s",
        "rabbitmq": lambda: request.getfixturevalue("rabbitmq_url"),
    }[kind]()
    count = Show("first", broker, store, tmp_path, seed=7, queue=unique_name).run(400, kills=3)
    print(f"{kind} first: {count}")
    assert count.kills > 0
    assert count.doubled == 0
    assert count.lost == count.in_doubt, "each one that is lost is in doubt"
