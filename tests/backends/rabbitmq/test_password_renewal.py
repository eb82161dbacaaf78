"""A password that a function provides may be a token: an open connection tells its server each new one (RabbitMQ closes
it when the one that it knows has expired)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pamqp.commands as commands
import pamqp.frame
import pytest

from effectonce.backends.rabbitmq import connection as module
from effectonce.backends.rabbitmq.connection import RabbitMQConnection
from effectonce.backends.rabbitmq.endpoint import RabbitMQEndpoint
from effectonce.errors import BrokerUnavailable
from effectonce.values.urls import Address
from tests.harness.waiting import auntil

from .test_protocol import Transport


class Server:
    """It logs everybody in, and confirms new passwords as long as it ``answers``."""

    def __init__(self) -> None:
        self.passwords: list[str] = []
        self.answers = True

    async def accept(self, make_connection: Callable[[], Any], *address: object, **options: object) -> None:
        connection, server = make_connection(), self

        class Wire(Transport):
            def write(self, data: Any) -> None:
                super().write(data)
                if not data.startswith(b"AMQP"):
                    for _, frame in self.take_frames():
                        server.receive(connection, frame)

        connection.connection_made(Wire())
        serve(connection, commands.Connection.Start(mechanisms="PLAIN"))
        serve(connection, commands.Connection.Tune(channel_max=7, frame_max=4096, heartbeat=60))
        serve(connection, commands.Connection.OpenOk())

    def receive(self, connection: RabbitMQConnection, frame: Any) -> None:
        if frame.name == "Connection.StartOk":
            self.passwords.append(frame.response.rpartition("\0")[2])
        if frame.name == "Connection.UpdateSecret":
            self.passwords.append(frame.new_secret)
            if self.answers:
                serve(connection, commands.Connection.UpdateSecretOk())


def serve(connection: RabbitMQConnection, frame: Any) -> None:
    connection.data_received(pamqp.frame.marshal(frame, 0))


@pytest.fixture
async def server(monkeypatch: pytest.MonkeyPatch) -> Server:
    server = Server()
    monkeypatch.setattr(module, "PASSWORD_CHECK_INTERVAL_S", 0.001)
    monkeypatch.setattr(asyncio.get_running_loop(), "create_connection", server.accept)
    return server


async def connect(provide: Callable[[], str], options: str = "") -> RabbitMQConnection:
    address = Address(f"amqp://shop@h{options}")
    address.password_provider = provide
    return await RabbitMQConnection.open(RabbitMQEndpoint(address), "test")


async def test_each_new_password_is_sent_once(server: Server) -> None:
    provided = ["first", "first", "second", "second", "third"]
    connection = await connect(lambda: provided.pop(0) if len(provided) > 1 else provided[0])
    await auntil(lambda: len(server.passwords) == 3)
    assert server.passwords == ["first", "second", "third"]
    assert connection.lost is None
    connection.fail(BrokerUnavailable("the test has ended"))


async def test_if_there_is_no_new_password_the_connection_goes_on_with_the_last_one(server: Server) -> None:
    asked = 0

    def provide() -> str:
        nonlocal asked
        asked += 1
        if 1 < asked < 4:
            raise OSError("the vault is away")
        return "first" if asked == 1 else "second"

    connection = await connect(provide)
    await auntil(lambda: len(server.passwords) == 2)
    assert (server.passwords, connection.lost) == (["first", "second"], None)
    connection.fail(BrokerUnavailable("the test has ended"))


async def test_a_server_that_does_not_answer_a_new_password_is_lost(server: Server) -> None:
    server.answers = False
    provided = iter(["first", "second"])
    connection = await connect(lambda: next(provided, "second"), "?timeout=2s")
    await auntil(lambda: connection.lost is not None)
    assert isinstance(connection.lost, BrokerUnavailable)
    assert server.passwords == ["first", "second"]


async def test_a_connection_that_has_ended_asks_for_no_password_any_more(server: Server) -> None:
    asked: list[str] = []
    connection = await connect(lambda: asked.append("asked") or "first")
    await auntil(lambda: len(asked) > 2)
    connection.fail(BrokerUnavailable("it has ended"))
    ended = asyncio.all_tasks() - {asyncio.current_task()}
    await asyncio.gather(*ended, return_exceptions=True)
    assert all(task.done() for task in ended), "none goes on asking"
