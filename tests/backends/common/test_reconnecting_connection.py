"""A connection that is opened when it is needed, and again after it was lost."""

from __future__ import annotations

import asyncio

import pytest

from effectonce.backends.common.reconnecting_connection import (
    FIRST_BACKOFF_S,
    MAX_BACKOFF_S,
    ReconnectingConnection,
    closing,
)
from effectonce.errors import BrokerUnavailable


class Connection:
    def __init__(self) -> None:
        self.lost: Exception | None = None
        self.closed = 0

    async def close(self) -> None:
        self.closed += 1


class Server:
    """Opens connections, or refuses to."""

    def __init__(self) -> None:
        self.opened: list[Connection] = []
        self.error: Exception | None = None
        self.connection = ReconnectingConnection(self._open)

    async def _open(self) -> Connection:
        await asyncio.sleep(0)
        if self.error is not None:
            raise self.error
        self.opened.append(Connection())
        return self.opened[-1]

    async def backoff(self) -> float:
        self.error = BrokerUnavailable("down")
        with pytest.raises(BrokerUnavailable) as caught:
            await self.connection.get()
        self.error = None
        assert caught.value.retry_after is not None
        return caught.value.retry_after


async def test_a_connection_is_opened_once_also_for_several_tasks() -> None:
    server = Server()
    connections = await asyncio.gather(*(server.connection.get() for _ in range(3)))
    assert [connection is server.opened[0] for connection in connections] == [True] * 3
    assert len(server.opened) == 1


async def test_a_lost_connection_is_closed_and_another_one_opened() -> None:
    server = Server()
    first = await server.connection.get()
    first.lost = BrokerUnavailable("gone")
    assert await server.connection.get() is server.opened[1]
    assert first.closed == 1


async def test_each_failure_asks_for_more_patience_until_one_connection_is_open() -> None:
    server = Server()
    waits = [await server.backoff() for _ in range(12)]
    for number, wait in enumerate(waits):
        longest = min(MAX_BACKOFF_S, FIRST_BACKOFF_S * 2**number)
        assert longest / 2 <= wait <= longest
    (await server.connection.get()).lost = BrokerUnavailable("gone")
    assert await server.backoff() <= FIRST_BACKOFF_S


async def test_a_failure_that_will_not_pass_is_raised_as_it_is() -> None:
    server = Server()
    server.error = ValueError("wrong")
    with pytest.raises(ValueError, match="wrong"):
        await server.connection.get()


async def test_a_closed_connection_is_opened_again_when_it_is_needed() -> None:
    server = Server()
    await server.connection.close()
    first = await server.connection.get()
    await server.connection.close()
    await server.connection.close()
    assert first.closed == 1
    assert await server.connection.get() is server.opened[1]


async def test_a_connection_for_one_block_is_closed_at_its_end() -> None:
    connection = Connection()

    async def use() -> None:
        async with closing(connection) as same:
            assert same is connection
            raise ValueError("x")

    with pytest.raises(ValueError, match="x"):
        await use()
    assert connection.closed == 1
