"""When a relay looks for rows again: less and less often while there are none, and not before a pause is over.

On SQLite a relay has one pump, so that one sleep is seen after the other.
"""

from __future__ import annotations

import asyncio

import pytest

from effectonce.core import backoff
from effectonce.errors import BrokerUnavailable, StoreUnavailable
from effectonce.relay.relay_run import RelayRun
from tests.harness.waiting import auntil
from tests.relay.harness import Database, FakeBroker
from tests.relay.test_unsteady import fail

pytestmark = pytest.mark.quick_on("sqlite")


class Sleeps:
    """Stands in for the sleep of a relay: keeps how long each was to be, and stops the relay after the last."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, count: int, woken_at: int = -1) -> None:
        self.seconds: list[float] = []
        sleeps = self

        async def sleep(self: RelayRun, seconds: float) -> bool:
            sleeps.seconds.append(seconds)
            if len(sleeps.seconds) == count:
                self.stop()
            await asyncio.sleep(0)
            return len(sleeps.seconds) == woken_at

        monkeypatch.setattr(RelayRun, "_sleep", sleep)


async def test_an_idle_relay_looks_for_rows_less_and_less_often(
    sqlite: Database, broker: FakeBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    sleeps = Sleeps(monkeypatch, count=8)
    await asyncio.wait_for(sqlite.relay(broker, poll="30ms").serve(), 30)
    assert sleeps.seconds == pytest.approx([0.005, 0.0075, 0.01125, 0.016875, 0.0253125, 0.03, 0.03, 0.03])


async def test_a_relay_that_is_woken_looks_often_again(
    sqlite: Database, broker: FakeBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    sleeps = Sleeps(monkeypatch, count=6, woken_at=4)
    await asyncio.wait_for(sqlite.relay(broker, poll="1h").serve(), 30)
    assert sleeps.seconds == pytest.approx([0.005, 0.0075, 0.01125, 0.016875, 0.005, 0.0075])


async def test_new_rows_do_not_end_the_pause_for_a_broker_that_is_away(
    database: Database, broker: FakeBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(backoff, "FIRST_PAUSE_S", 15.0)
    broker.raises = lambda packets: BrokerUnavailable("it is away")
    relay = database.relay(broker)
    database.send_numbers([1])
    serving = asyncio.create_task(relay.serve())
    await auntil(lambda: relay.outage is not None)
    for number in range(2, 7):
        database.send_numbers([number])
        await asyncio.sleep(0.02)
    assert len(broker.calls) == 1
    relay.stop()
    await asyncio.wait_for(serving, 10)


async def test_new_rows_do_not_end_the_pause_for_a_database_that_is_away(
    sqlite: Database, broker: FakeBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(backoff, "FIRST_PAUSE_S", 15.0)
    left = fail(monkeypatch, sqlite.port(), "lease", *[StoreUnavailable("gone")] * 10)
    relay = sqlite.relay(broker)
    serving = asyncio.create_task(relay.serve())
    await auntil(lambda: len(left) < 10)
    for number in range(5):
        sqlite.send_numbers([number])
        await asyncio.sleep(0.02)
    assert len(left) == 9
    relay.stop()
    await asyncio.wait_for(serving, 10)
