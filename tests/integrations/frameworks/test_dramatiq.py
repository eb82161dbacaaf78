"""Dramatiq: the guard below ``@dramatiq.actor``, through the stub broker and real worker threads."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import dramatiq
import pytest
from dramatiq.brokers.stub import StubBroker
from dramatiq.middleware.asyncio import AsyncIO

import effectonce as eo


@pytest.fixture
def broker() -> Iterator[StubBroker]:
    broker = StubBroker(middleware=[AsyncIO()])
    broker.emit_after("process_boot")
    yield broker
    broker.flush_all()
    broker.close()


@pytest.fixture
def work(broker: StubBroker) -> Iterator[Callable[[dramatiq.Actor[..., Any]], None]]:
    """Runs a worker until everything that was sent to an actor is handled."""
    worker = dramatiq.Worker(broker, worker_timeout=50, worker_threads=2)
    worker.start()

    def work(actor: dramatiq.Actor[..., Any]) -> None:
        broker.join(actor.queue_name, fail_fast=True, timeout=20_000)
        worker.join()

    yield work
    worker.stop()


@pytest.fixture(params=["def", "async def"])
def charge(request: pytest.FixtureRequest, store: eo.Store, charges: list[str]) -> Callable[..., Any]:
    once = eo.once(store, scope="charge", key="payment_id", wait="10s")
    if request.param == "def":

        @once
        def charge(payment_id: str, amount: int = 1) -> int:
            """Charge a card."""
            charges.append(payment_id)
            return amount

        return charge

    @once
    async def charge_async(payment_id: str, amount: int = 1) -> int:
        """Charge a card."""
        charges.append(payment_id)
        return amount

    return charge_async


def test_a_message_delivered_twice_has_one_effect(
    broker: StubBroker, work: Callable[..., None], charge: Any, charges: list[str]
) -> None:
    actor = dramatiq.actor(broker=broker)(charge)
    message = actor.message("p1", amount=4200)
    for _ in range(2):
        broker.enqueue(message)
    work(actor)
    actor.send(payment_id="p1")
    actor.send("p2")
    work(actor)
    assert charges == ["p1", "p2"]


def test_the_actor_has_the_functions_name(broker: StubBroker, charge: Any) -> None:
    actor = dramatiq.actor(broker=broker)(charge)
    assert actor.actor_name == charge.__name__
    assert actor.logger.name == f"{__name__}.{charge.__name__}"


def test_calling_the_actor_itself_is_guarded_too(
    broker: StubBroker, work: Callable[..., None], charge: Any, charges: list[str]
) -> None:
    actor = dramatiq.actor(broker=broker)(charge)
    assert [actor("p1", 7), actor("p1", 7)] == [7, 7]
    assert charges == ["p1"]


def test_a_message_whose_handler_raised_runs_again(
    broker: StubBroker, work: Callable[..., None], store: eo.Store, charges: list[str]
) -> None:
    broker.add_middleware(dramatiq.middleware.Retries(min_backoff=1, max_backoff=1))

    @dramatiq.actor(broker=broker, max_retries=3)
    @eo.once(store, scope="charge", key="payment_id")
    def charge(payment_id: str) -> None:
        charges.append(f"{payment_id}, attempt {eo.current().attempt}")
        if len(charges) < 3:
            raise RuntimeError("card reader on fire")

    message = charge.message("p1")
    broker.enqueue(message)
    work(charge)
    broker.enqueue(message)
    work(charge)
    assert charges == ["p1, attempt 1", "p1, attempt 2", "p1, attempt 3"]
