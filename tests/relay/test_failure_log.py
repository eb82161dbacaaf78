"""A message that could not be published is one log line with its traceback."""

from __future__ import annotations

import pytest

from effectonce.core.retry import Retry
from tests.harness.failure_lines import facts, failures, raised
from tests.relay.harness import Database, FakeBroker, Refused

pytestmark = pytest.mark.quick_on("postgres")


async def test_each_refusal_is_logged_once(
    database: Database, broker: FakeBroker, caplog: pytest.LogCaptureFixture
) -> None:
    error = Refused("too ugly")
    broker.refuse = lambda packet: error if packet.id == "m2" else None
    database.send_numbers(range(4))
    relay = database.relay(broker, retry=Retry(2, first="5ms", cap="5ms", jitter=False))
    while database.states().get("parked", 0) < 1:
        await relay.drain()
    first, last = failures(caplog)
    assert (first.levelname, last.levelname) == ("WARNING", "ERROR")
    assert raised(first) is raised(last) is error
    assert facts(first)["next"] == "is retried in 5ms"
    assert {name: facts(last)[name] for name in ("message", "attempt", "next")} == {
        "message": "m2",
        "attempt": 2,
        "next": "is parked: find out why, then unpark it",
    }


async def test_a_message_that_takes_relays_down_is_logged_once_when_it_is_parked(
    database: Database, broker: FakeBroker, caplog: pytest.LogCaptureFixture
) -> None:
    database.send_numbers([0])
    database.execute("UPDATE {outbox} SET attempts = 2")
    await database.relay(broker, retry=Retry(1)).drain()
    (line,) = failures(caplog)
    assert (line.levelname, database.states()) == ("ERROR", {"parked": 1})
    assert "it was being sent 2 times when its relay died" in str(raised(line))
    assert {"relay": "orders", "message": "m0", "attempt": 3}.items() <= facts(line).items()
    assert facts(line)["next"] == "is parked: find out why, then unpark it"
