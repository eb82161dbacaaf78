"""Leases in a Lambda invocation: they last until Lambda ends it, and nobody renews them."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

import effectonce as eo
from effectonce.backends.memory.store import MemoryStoreBackend
from effectonce.core.guarded_call.process_deadline import LEASE_MARGIN_S
from effectonce.integrations.aws_lambda import lease_until_timeout, sqs_batch
from effectonce.testing import ManualClock


class Invocation:
    """What Lambda passes as ``context``, with the time of a clock."""

    def __init__(self, clock: ManualClock, timeout_s: float) -> None:
        self._clock = clock
        self._ends_at = clock.monotonic() + timeout_s

    def get_remaining_time_in_millis(self) -> int:
        return round((self._ends_at - self._clock.monotonic()) * 1000)


class DurableContext:
    def __init__(self, invocation: Invocation) -> None:
        self.lambda_context = invocation


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def store(clock: ManualClock) -> eo.Store:
    return eo.Store(MemoryStoreBackend(clock=clock), sweep_every=None)


def lease_left(store: eo.Store, key: str) -> float:
    record = store.get("charge", key)
    assert record is not None
    assert record.lease_until is not None
    return (record.lease_until - store.runtime.now()) / 1e6


@pytest.mark.parametrize("timeout_s", [0.5, 3, 900])
@pytest.mark.parametrize("is_async", [False, True])
def test_a_batch_leases_each_record_until_the_invocation_ends(
    store: eo.Store, clock: ManualClock, timeout_s: float, is_async: bool
) -> None:
    leases: list[float] = []

    def charge(payment: str) -> None:
        leases.append(lease_left(store, payment))
        clock.advance(timeout_s / 4)
        assert not eo.current().lease_lost

    async def charge_async(payment: str) -> None:
        charge(payment)

    guard = eo.once(store, scope="charge", key="payment", lease="30s")
    handle = sqs_batch(guard(charge_async if is_async else charge))  # type: ignore[arg-type]
    records = [{"messageId": id, "body": f'"{id}"', "attributes": {}} for id in ("a", "b")]
    assert handle({"Records": records}, Invocation(clock, timeout_s)) == {"batchItemFailures": []}
    assert leases == pytest.approx([timeout_s + LEASE_MARGIN_S, timeout_s * 3 / 4 + LEASE_MARGIN_S], abs=0.01)


@pytest.mark.parametrize("durable", [False, True])
def test_a_claim_of_an_ended_invocation_is_free_a_second_later(
    store: eo.Store, clock: ManualClock, durable: bool
) -> None:
    """F02: with the guard's lease of an hour it would have been kept for an hour; with a heartbeat, until Lambda thaws
    the process."""
    runs: list[int] = []

    @eo.once(store, scope="charge", key="payment", lease="1h")
    def charge(payment: str) -> str:
        runs.append(eo.current().attempt)
        if len(runs) == 1:
            clock.advance(2.9)
            store.runtime.heartbeat.beat()
            raise GeneratorExit  # as a kill: nothing is told to the store
        return "charged"

    @lease_until_timeout
    def handler(event: str, context: Any) -> str:
        return charge(event)

    invocation = Invocation(clock, 3)
    with pytest.raises(GeneratorExit):
        handler("p1", DurableContext(invocation) if durable else invocation)
    clock.advance(1.05)
    with pytest.raises(eo.InProgress):
        handler("p1", Invocation(clock, 3))
    clock.advance(0.1)
    assert handler("p1", Invocation(clock, 3)) == "charged"
    assert runs == [1, 2]


def test_a_claim_after_a_wait_lasts_only_until_the_end(store: eo.Store, clock: ManualClock) -> None:
    leases: list[float] = []

    @eo.once(store, scope="charge", key="payment", wait="10s")
    async def charge(payment: str) -> None:
        leases.append(lease_left(store, payment))

    @lease_until_timeout
    def handler(event: str, context: Any) -> asyncio.Task[None]:
        return asyncio.ensure_future(charge(event))

    async def die_with_a_claim() -> None:
        async with eo.block(store, scope="charge", key="p1", lease="2s") as first:
            assert first.first
            raise GeneratorExit  # as a kill: nothing is told to the store

    async def wait_for_the_first() -> None:
        with pytest.raises(GeneratorExit):
            await die_with_a_claim()
        waiting = handler("p1", Invocation(clock, 10))
        await asyncio.sleep(0.05)
        clock.advance(2.5)
        await waiting

    asyncio.run(wait_for_the_first())
    assert leases == pytest.approx([7.5 + LEASE_MARGIN_S], abs=0.01)


def test_without_a_context_the_guard_says_how_long(store: eo.Store) -> None:
    leases: list[float] = []

    @eo.once(store, scope="charge", key="payment", lease="30s")
    def charge(payment: str) -> None:
        leases.append(lease_left(store, payment))

    lease_until_timeout(lambda event, context: charge(event))("p1", None)
    assert leases == pytest.approx([30], abs=0.01)
