"""Requests on a connection to NATS and their replies, with a stand-in for the driver's client."""

from __future__ import annotations

import asyncio
import json
from types import SimpleNamespace
from typing import Any

import nats.errors
import pytest

from effectonce.backends.nats import connection as module
from effectonce.backends.nats.connection import JetStreamRefusal, NatsConnection, NatsEndpoint
from effectonce.errors import BrokerUnavailable, ConfigurationError
from effectonce.values.urls import Address
from tests.harness.waiting import auntil


class Client:
    """The driver's client. ``error`` is raised by its next calls; ``refused`` names the nodes that do not answer."""

    def __init__(self) -> None:
        clients.append(self)
        self.published: list[tuple[str, str]] = []
        self.error: Exception | None = None
        self.closed = 0

    def new_inbox(self) -> str:
        return "_INBOX.x"

    async def connect(self, url: str, **options: Any) -> None:
        tried.append(url)
        if url in refusals:
            raise refusals[url]

    async def subscribe(self, subject: str, cb: Any) -> None:
        if subject in refusals:
            raise refusals[subject]
        self._fail()

    async def publish(self, subject: str, payload: bytes, reply: str, headers: Any) -> None:
        self._fail()
        self.published.append((subject, reply))

    async def flush(self, timeout: float) -> None:
        self._fail()

    async def close(self) -> None:
        self.closed += 1
        self._fail()

    def _fail(self) -> None:
        if self.error is not None:
            raise self.error


tried: list[str] = []
clients: list[Client] = []
refusals: dict[str, Exception] = {}  # by the URL of a server, or by a subject


@pytest.fixture(autouse=True)
def driver(monkeypatch: pytest.MonkeyPatch) -> None:
    tried.clear()
    clients.clear()
    refusals.clear()
    aio = SimpleNamespace(client=SimpleNamespace(Client=Client))
    monkeypatch.setattr(module, "load_driver", lambda: SimpleNamespace(aio=aio, errors=nats.errors))


async def connect(url: str = "nats://h") -> NatsConnection:
    return await NatsConnection.open(NatsEndpoint(Address(url)), "test")


async def answer(connection: NatsConnection, data: bytes, headers: dict[str, str] | None = None) -> None:
    """Answer the last request."""
    await auntil(lambda: bool(connection.client.published))
    _, reply_to = connection.client.published[-1]
    await connection._handle_reply(SimpleNamespace(subject=reply_to, data=data, headers=headers))


async def test_the_nodes_are_tried_until_one_answers() -> None:
    refusals["nats://h:4222"] = OSError("refused")
    connection = await connect("nats://h,i")
    assert tried[-1] == "nats://i:4222"
    assert connection.lost is None


@pytest.mark.parametrize(
    ("error", "kind", "said"),
    [
        (OSError("refused"), BrokerUnavailable, "refused"),
        (TimeoutError(), BrokerUnavailable, "TimeoutError"),
        (nats.errors.Error("Authorization Violation"), ConfigurationError, "correct them"),
        (nats.errors.Error("user authentication expired"), ConfigurationError, "correct them"),
    ],
)
async def test_a_server_that_does_not_let_us_in_says_why(error: Exception, kind: type[Exception], said: str) -> None:
    refusals["nats://h:4222"] = error
    with pytest.raises(kind, match=said):
        await connect()


@pytest.mark.parametrize("error", [nats.errors.ConnectionClosedError(), asyncio.CancelledError()])
async def test_a_connection_that_could_not_be_opened_wholly_is_closed(error: BaseException) -> None:
    """Or the server would keep it, and one more for each try."""
    refusals["_INBOX.x.*"] = error  # type: ignore[assignment]
    with pytest.raises((BrokerUnavailable, asyncio.CancelledError)):
        await connect()
    assert [client.closed for client in clients] == [1]


async def test_replies_belong_to_their_requests_in_any_order() -> None:
    connection = await connect()
    futures = [await connection.request("q", b"") for _ in range(2)]
    for (_, reply_to), data in zip(reversed(connection.client.published), (b"second", b"first"), strict=True):
        await connection._handle_reply(SimpleNamespace(subject=reply_to, data=data))
    replies = await connection.gather_replies(*futures)
    assert [reply.data for reply in replies] == [b"first", b"second"]
    await asyncio.sleep(0)
    assert connection._replies == {}


async def test_a_reply_that_comes_twice_or_late_is_ignored() -> None:
    connection = await connect()
    future = await connection.request("q", b"")
    for _ in range(2):
        await answer(connection, b"x")
    await connection.gather_replies(future)
    await answer(connection, b"late")


async def test_f36_a_late_reply_is_an_unavailable_broker_and_the_connection_stays() -> None:
    connection = await connect("nats://h?timeout=10ms")
    with pytest.raises(BrokerUnavailable, match=r"within 0\.01 s"):
        await connection.gather_replies(await connection.request("q", b""))
    assert connection.lost is None
    await asyncio.sleep(0)
    assert connection._replies == {}


@pytest.mark.parametrize(
    ("error", "is_lost"),
    [
        (nats.errors.ConnectionClosedError(), True),
        (nats.errors.StaleConnectionError(), True),
        (OSError("reset"), True),
        (nats.errors.TimeoutError(), False),
    ],
)
async def test_an_error_of_the_driver_is_an_unavailable_broker(error: Exception, is_lost: bool) -> None:
    connection, losses = await connect(), []
    connection.on_lost = lambda: losses.append(1)
    connection.client.error = error
    for work in (connection.flush(), connection.publish("q"), connection.request("q")):
        with pytest.raises(BrokerUnavailable):
            await work
    assert (connection.lost is not None, len(losses)) == (is_lost, int(is_lost))
    assert connection._replies == {} or all(future.done() for future in connection._replies.values())


async def test_a_connection_that_broke_fails_all_that_wait_and_takes_no_more() -> None:
    connection = await connect()
    future = await connection.request("q", b"")
    await connection._handle_close()
    with pytest.raises(BrokerUnavailable, match="broke"):
        await connection.gather_replies(future)
    with pytest.raises(BrokerUnavailable, match="broke"):
        await connection.request("q", b"")


async def test_a_forbidden_subject_fails_all_that_wait_since_the_error_does_not_name_it() -> None:
    connection = await connect()
    future = await connection.request("q", b"")
    await connection._handle_error(nats.errors.Error("slow consumer"))
    assert not future.done()
    await connection._handle_error(nats.errors.Error('Permissions Violation for Publish to "q"'))
    with pytest.raises(ConfigurationError, match="does not let this user"):
        await connection.gather_replies(future)


async def test_an_error_while_connecting_ends_the_attempt() -> None:
    connection = NatsConnection(NatsEndpoint(Address("nats://h")))
    with pytest.raises(nats.errors.Error, match="x"):
        await connection._handle_error(nats.errors.Error("x"))


async def test_a_call_of_jetstream_is_answered_or_refused() -> None:
    connection = await connect()
    calling = asyncio.create_task(connection.call_jetstream("STREAM.INFO.q", {"a": 1}))
    await answer(connection, b'{"config": {}}')
    assert await calling == {"config": {}}
    assert connection.client.published[0][0] == "$JS.API.STREAM.INFO.q"
    connection.client.published.clear()
    calling = asyncio.create_task(connection.call_jetstream("STREAM.INFO.q"))
    await answer(connection, json.dumps({"error": {"code": 404, "err_code": 10059}}).encode())
    with pytest.raises(JetStreamRefusal) as caught:
        await calling
    assert caught.value.status == 404


async def test_a_server_without_jetstream_says_how_to_start_it() -> None:
    connection = await connect()
    calling = asyncio.create_task(connection.call_jetstream("STREAM.INFO.q"))
    await answer(connection, b"", {"Status": "503"})
    with pytest.raises(JetStreamRefusal, match="-js") as caught:
        await calling
    assert caught.value.status == 503


async def test_a_closed_connection_is_closed_whatever_the_driver_says() -> None:
    for error in (None, OSError("x"), nats.errors.Error("x")):
        connection = await connect()
        connection.client.error = error
        await connection.close()
        assert connection.client.closed == 1
        assert "is closed" in str(connection.lost)
