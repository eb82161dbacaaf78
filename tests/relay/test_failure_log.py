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
    relay = database.relay(broker, retry=Retry(2, first="1us", cap="1us"))
    while database.states().get("parked", 0) < 1:
        await relay.drain()
    first, last = failures(caplog)
    assert (first.levelname, last.levelname) == ("WARNING", "ERROR")
    assert raised(first) is raised(last) is error
    assert {name: facts(last)[name] for name in ("message", "attempt", "next")} == {
        "message": "m2",
        "attempt": 2,
        "next": "is parked: find out, then unpark it",
    }
