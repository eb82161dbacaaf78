"""Relays that share a process: they start, end and fail together."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator

import pytest

import effectonce as eo
from effectonce.relay.relay import Relay
from tests.harness.waiting import auntil
from tests.relay.harness import Database, FakeBroker, message

from .conftest import open_database


@pytest.fixture
def other(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Database]:
    yield from open_database("sqlite", request, tmp_path_factory.mktemp("other"), "other")


@pytest.fixture
def relay(sqlite: Database, other: Database, broker: FakeBroker) -> Relay:
    """The relay of one database, with that of another as its companion. Each has a message to send."""
    sqlite.send(message(1))
    other.send(message(2))
    relay = sqlite.relay(broker)
    relay.add(other.relay(broker))
    return relay


async def test_a_companion_runs_as_long_as_its_relay(relay: Relay, broker: FakeBroker) -> None:
    (companion,) = relay._companions
    serving = asyncio.create_task(relay.serve())
    await auntil(lambda: len(broker.sent) == 2)
    assert (relay.phase, companion.phase) == ("running", "running")
    relay.stop()
    await asyncio.wait_for(serving, 10)
    assert (relay.phase, companion.phase) == ("stopped", "stopped")


async def test_a_companion_that_cannot_run_ends_the_relay_with_its_error(relay: Relay) -> None:
    (companion,) = relay._companions
    own_run = asyncio.create_task(companion.serve())
    await auntil(lambda: companion.phase == "running")
    with pytest.raises(eo.ConfigurationError, match="already serving"):
        await asyncio.wait_for(relay.serve(), 10)
    assert (relay.phase, companion.phase) == ("stopped", "running")
    companion.stop()
    await own_run


def test_run_serves_both_until_another_thread_stops_it(relay: Relay, broker: FakeBroker) -> None:
    def stop_when_sent() -> None:
        while len(broker.sent) < 2 and not gave_up.wait(0.005):
            pass
        relay.stop()

    gave_up = threading.Event()
    stopper = threading.Thread(target=stop_when_sent)
    stopper.start()
    try:
        relay.run()
    finally:
        gave_up.set()
        stopper.join()
    assert len(broker.sent) == 2
    assert not relay.interrupted
