"""Connecting to what is not, or not yet, a RabbitMQ server."""

from __future__ import annotations

import asyncio

import pytest

from effectonce.backends.rabbitmq.connection import RabbitMQConnection
from effectonce.backends.rabbitmq.endpoint import RabbitMQEndpoint
from effectonce.errors import BrokerUnavailable
from effectonce.values.urls import Address


async def test_f36_a_server_that_accepts_and_says_nothing_is_unavailable() -> None:
    silent = await asyncio.start_server(lambda reader, writer: None, "127.0.0.1", 0)
    host, port = silent.sockets[0].getsockname()
    endpoint = RabbitMQEndpoint(Address(f"amqp://{host}:{port}?timeout=200ms"))
    async with silent:
        with pytest.raises(BrokerUnavailable, match=r"did not answer within 0\.2 s"):
            await RabbitMQConnection.open(endpoint, "effectonce")
