"""A connection to NATS that breaks."""

from __future__ import annotations

import asyncio
import gc
from typing import Any

import pytest

from effectonce.backends.nats.connection import NatsConnection
from effectonce.errors import BrokerUnavailable


async def test_a_broken_connection_fails_what_waits_and_says_nothing_of_what_nobody_waits_for(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """The caller of the second was cancelled. asyncio would log that its error was never retrieved."""
    connection = NatsConnection.__new__(NatsConnection)
    loop = asyncio.get_running_loop()
    awaited: asyncio.Future[Any] = loop.create_future()
    lost: list[str] = []
    connection.lost, connection.on_lost = None, lambda: lost.append("lost")
    connection._replies = {"1": awaited, "2": loop.create_future()}  # type: ignore[assignment]
    error = connection._fail(BrokerUnavailable("it broke"))
    assert connection._fail(BrokerUnavailable("it broke again")) is error
    with pytest.raises(BrokerUnavailable) as raised:
        await awaited
    assert raised.value is error
    connection._replies = {}
    gc.collect()
    assert (lost, caplog.text) == (["lost"], "")
