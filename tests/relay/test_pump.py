"""One round of a pump: which queue goes first while one of them does not answer."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

import pytest

from effectonce.contracts import Packet
from effectonce.errors import BrokerUnavailable
from effectonce.relay.pump import RelayPump
from effectonce.relay.settings import RelayState
from tests.relay.harness import Database, FakeBroker, FakePublisher, message

pytestmark = pytest.mark.quick_on("sqlite")


class Round:
    """A pump to which the queue "stuck" did not answer the last time. ``published`` are the queues, in their order."""

    def __init__(self, database: Database, broker: FakeBroker, **options: object) -> None:
        self.published: list[str] = []
        self.away: set[str] = {"stuck"}
        self.on_publish: Callable[[str], None] = lambda queue: None
        self.state = RelayState()
        self.state.unresponsive.add("stuck")
        self._relay = database.relay(broker, **options)
        self._broker = broker
        self._port = database.port()

    async def run(self) -> bool:
        round = self

        class Publisher(FakePublisher):
            async def publish(self, queue: str, packets: Sequence[Packet]) -> Sequence[Exception | None]:
                round.published.append(queue)
                round.on_publish(queue)
                if queue in round.away:
                    raise BrokerUnavailable("it does not answer")
                return await super().publish(queue, packets)

        pump = RelayPump(self._relay._settings, self.state, self._port, Publisher(self._broker))
        try:
            async with asyncio.timeout(5):
                return await pump.run_round()
        finally:
            await self._port.close()


async def test_rows_to_a_queue_that_does_not_answer_wait_for_all_others(database: Database, broker: FakeBroker) -> None:
    database.send(message(1), to="stuck")
    database.send_numbers(range(10, 15))
    round = Round(database, broker, batch=2)
    assert await round.run()
    assert round.published == ["orders"] * 3 + ["stuck"]


async def test_a_flow_of_rows_to_others_does_not_keep_a_queue_from_its_turn(
    database: Database, broker: FakeBroker
) -> None:
    database.send(message(1), to="stuck")
    database.send(message(2))
    round = Round(database, broker, lease="200ms", batch=2)
    round.away.clear()
    round.on_publish = lambda queue: database.send(message(len(round.published) + 10))
    await round.run()
    assert "stuck" in round.published


async def test_a_broker_that_is_away_is_not_asked_for_each_of_its_queues(
    database: Database, broker: FakeBroker
) -> None:
    """One is known not to answer. One more fails, and then two: that is the broker, which is left alone."""
    database.send(message(0), to="stuck")
    for number in range(1, 9):
        database.send(message(number), to=f"queue-{number}")
    round = Round(database, broker, batch=1)
    round.away |= {f"queue-{number}" for number in range(1, 9)}
    await round.run()
    assert round.state.outage is not None
    assert len(round.published) <= 4


async def test_a_relay_that_stops_leases_nothing_more_for_the_other_queues(
    database: Database, broker: FakeBroker
) -> None:
    database.send(message(1), to="stuck")
    database.send_numbers(range(10, 15))
    round = Round(database, broker, batch=1)

    def stop(queue: str) -> None:
        round.state.stopping = True

    round.on_publish = stop
    assert not await round.run()
    assert round.published == ["orders"]
