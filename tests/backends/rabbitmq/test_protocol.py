"""The protocol of AMQP 0-9-1 as a connection and its channels speak it: frames in, frames out, without a server."""

from __future__ import annotations

import asyncio
from typing import Any

import pamqp.body
import pamqp.commands as commands
import pamqp.frame
import pamqp.header
import pamqp.heartbeat
import pytest

from effectonce.backends.rabbitmq import connection as module
from effectonce.backends.rabbitmq.channel import RabbitMQChannel
from effectonce.backends.rabbitmq.connection import MAX_SILENT_BEATS, RabbitMQConnection
from effectonce.backends.rabbitmq.endpoint import RabbitMQEndpoint, RabbitMQRefusal
from effectonce.backends.rabbitmq.frames import HEARTBEAT_FRAME, encode_content, encode_publish
from effectonce.backends.rabbitmq.login import Login
from effectonce.errors import BrokerUnavailable, ConfigurationError
from effectonce.values.urls import Address


class Transport(asyncio.Transport):
    def __init__(self) -> None:
        super().__init__()
        self.sent = b""
        self.aborted = False

    def write(self, data: Any) -> None:
        self.sent += data

    def abort(self) -> None:
        self.aborted = True

    def take_frames(self) -> list[tuple[int, Any]]:
        """Each frame that was sent since the last call, with its channel."""
        frames = []
        while self.sent:
            count, channel, frame = pamqp.frame.unmarshal(self.sent)
            self.sent = self.sent[count:]
            frames.append((channel, frame))
        return frames


class ConnectionUnderTest:
    """A connection to a server that a test plays."""

    def __init__(self, options: str = "") -> None:
        self.connection = RabbitMQConnection(RabbitMQEndpoint(Address(f"amqp://shop:secret@h/orders{options}")), "test")
        self.connection._password = "secret"
        self.transport = Transport()
        self.connection.connection_made(self.transport)
        self.greeting, self.transport.sent = self.transport.sent, b""

    def serve(self, frame: Any, channel: int = 0) -> None:
        self.connection.data_received(pamqp.frame.marshal(frame, channel))

    def log_in(self, heartbeat: int = 60, frame_max: int = 4096) -> None:
        self.serve(commands.Connection.Start(server_properties={"version": "4.0"}, mechanisms="AMQPLAIN PLAIN"))
        self.serve(commands.Connection.Tune(channel_max=7, frame_max=frame_max, heartbeat=heartbeat))
        self.serve(commands.Connection.OpenOk())

    async def open_channel(self) -> RabbitMQChannel:
        opening = asyncio.create_task(self.connection.open_channel())
        await asyncio.sleep(0)
        number = self.transport.take_frames()[-1][0]
        self.serve(commands.Channel.OpenOk(), number)
        return await opening

    def deliver(self, channel: RabbitMQChannel, tag: int, body: bytes) -> bytes:
        """The frames of a delivery, with a body in parts of two bytes."""
        header = pamqp.header.ContentHeader(0, len(body), commands.Basic.Properties(message_id="id"))
        parts = [pamqp.body.ContentBody(body[at : at + 2]) for at in range(0, len(body), 2)]
        method = commands.Basic.Deliver("consumer", tag, False, "", "q")
        return b"".join(pamqp.frame.marshal(frame, channel.number) for frame in (method, header, *parts))


@pytest.fixture
async def under_test() -> ConnectionUnderTest:
    under_test = ConnectionUnderTest()
    under_test.log_in()
    under_test.transport.take_frames()
    return under_test


def lost(owner: Any) -> str:
    assert owner.lost is not None
    return f"{type(owner.lost).__name__}: {owner.lost}"


# -- logging in


async def test_a_login_names_the_user_the_vhost_and_what_we_understand() -> None:
    under_test = ConnectionUnderTest("?heartbeat=20s")
    assert under_test.greeting == b"AMQP\x00\x00\x09\x01"
    under_test.log_in(heartbeat=60)
    (_, start), (_, tune), (_, open_vhost) = under_test.transport.take_frames()
    assert (start.mechanism, start.response) == ("PLAIN", "\0shop\0secret")
    assert start.client_properties["capabilities"]["publisher_confirms"] is True
    assert start.client_properties["capabilities"]["consumer_cancel_notify"] is True
    assert (tune.channel_max, tune.frame_max, tune.heartbeat) == (7, 4096, 20)
    assert open_vhost.virtual_host == "orders"
    assert under_test.connection.server_properties == {"version": "4.0"}
    assert under_test.connection.lost is None


MECHANISMS = "PLAIN AMQPLAIN EXTERNAL RABBIT-CR-DEMO"


@pytest.mark.parametrize(
    ("options", "offered", "mechanism", "response"),
    [
        ("", MECHANISMS, "PLAIN", "\0shop\0secret"),
        ("", "AMQPLAIN EXTERNAL", "AMQPLAIN", "\x05LOGINS\0\0\0\x04shop\x08PASSWORDS\0\0\0\x06secret"),
        ("?auth_mechanism=amqplain", MECHANISMS, "AMQPLAIN", None),
        ("?auth_mechanism=EXTERNAL", MECHANISMS, "EXTERNAL", ""),
        ("?auth_mechanism=rabbit-cr-demo", MECHANISMS, "RABBIT-CR-DEMO", "shop"),
    ],
)
async def test_the_mechanism_is_chosen_from_what_the_server_offers(
    options: str, offered: str, mechanism: str, response: str | None
) -> None:
    under_test = ConnectionUnderTest(options)
    under_test.serve(commands.Connection.Start(mechanisms=offered))
    ((_, start),) = under_test.transport.take_frames()
    assert start.mechanism == mechanism
    assert response is None or start.response == response


@pytest.mark.parametrize(
    ("url", "offered", "mechanism"),
    [
        ("amqps://h", "PLAIN EXTERNAL", "EXTERNAL"),
        ("amqps://h", "PLAIN", "PLAIN"),  # the guest, as without a certificate
        ("amqps://shop:secret@h", "PLAIN EXTERNAL", "PLAIN"),
        ("amqps://shop:secret@h?auth_mechanism=EXTERNAL", "PLAIN EXTERNAL", "EXTERNAL"),
    ],
)
def test_a_client_certificate_logs_in_where_the_url_names_no_user(url: str, offered: str, mechanism: str) -> None:
    endpoint = RabbitMQEndpoint(Address(url))
    endpoint.has_certificate = True
    assert Login(endpoint, "", offered).mechanism == mechanism


async def test_a_server_that_offers_no_mechanism_of_ours_is_refused_with_what_it_offers() -> None:
    under_test = ConnectionUnderTest("?auth_mechanism=EXTERNAL")
    under_test.serve(commands.Connection.Start(mechanisms="PLAIN GSSAPI"))
    assert "offers the login mechanisms PLAIN, GSSAPI" in lost(under_test.connection)
    assert isinstance(under_test.connection.lost, RabbitMQRefusal)
    assert under_test.transport.aborted


@pytest.mark.parametrize(
    ("mechanism", "answer"), [("PLAIN", "\0shop\0secret"), ("RABBIT-CR-DEMO", "My password is secret")]
)
async def test_a_challenge_is_answered(mechanism: str, answer: str) -> None:
    under_test = ConnectionUnderTest()
    under_test.connection.endpoint.mechanism = mechanism
    under_test.serve(commands.Connection.Start(mechanisms=MECHANISMS))
    under_test.transport.take_frames()
    under_test.serve(commands.Connection.Secure("Please tell me your password"))
    ((_, secure),) = under_test.transport.take_frames()
    assert (secure.name, secure.response) == ("Connection.SecureOk", answer)


@pytest.mark.parametrize(
    ("options", "server", "agreed"),
    [
        ("", (0, 0), (0, module.FRAME_MAX)),
        ("", (7, 8192), (7, 8192)),
        ("?channel_max=3&frame_max=8192", (7, 16384), (3, 8192)),
        ("?channel_max=9&frame_max=9000", (7, 8192), (7, 8192)),
        ("?channel_max=9&frame_max=9000", (0, 0), (9, 9000)),
    ],
)
async def test_the_lower_limits_on_channels_and_frames_count(
    options: str, server: tuple[int, int], agreed: tuple[int, int]
) -> None:
    under_test = ConnectionUnderTest(options)
    under_test.serve(commands.Connection.Tune(channel_max=server[0], frame_max=server[1], heartbeat=60))
    (_, tune), _ = under_test.transport.take_frames()
    assert (tune.channel_max, tune.frame_max) == agreed
    assert under_test.connection.frame_max == agreed[1]


async def test_no_channel_is_opened_beyond_the_limit(under_test: ConnectionUnderTest) -> None:
    under_test.connection.channel_max = 2
    for number in (1, 2):
        assert (await under_test.open_channel()).number == number
    with pytest.raises(ConfigurationError, match="allows 2 channels"):
        await under_test.connection.open_channel()
    assert under_test.connection.lost is None


@pytest.mark.parametrize("server", [0, 60])
async def test_a_heartbeat_of_0_is_none(server: int) -> None:
    under_test = ConnectionUnderTest("?heartbeat=0")
    under_test.log_in(heartbeat=server)
    _, (_, tune), _ = under_test.transport.take_frames()
    assert tune.heartbeat == 0
    assert under_test.connection._heartbeat_timer is None


@pytest.mark.parametrize(("server", "agreed"), [(10, 10), (60, 20), (0, 20)])
async def test_the_shorter_heartbeat_counts(server: int, agreed: int) -> None:
    under_test = ConnectionUnderTest("?heartbeat=20s")
    under_test.log_in(heartbeat=server, frame_max=0)
    _, (_, tune), _ = under_test.transport.take_frames()
    assert (tune.heartbeat, tune.frame_max) == (agreed, module.FRAME_MAX)


@pytest.mark.parametrize(
    ("status", "kind", "said"),
    [
        (403, RabbitMQRefusal, "user or the password"),
        (530, RabbitMQRefusal, "vhost 'orders'"),
        (320, BrokerUnavailable, "refused the connection"),
    ],
)
async def test_a_refused_login_says_what_to_correct(status: int, kind: type[Exception], said: str) -> None:
    under_test = ConnectionUnderTest()
    under_test.serve(commands.Connection.Close(status, "no", 0, 0))
    assert type(under_test.connection.lost) is kind
    assert said in lost(under_test.connection)
    assert under_test.transport.take_frames()[-1][1].name == "Connection.CloseOk"


async def test_a_server_that_closes_a_connection_in_use_is_unavailable(under_test: ConnectionUnderTest) -> None:
    channel = await under_test.open_channel()
    under_test.serve(commands.Connection.Close(403, "shutdown", 0, 0))
    assert type(under_test.connection.lost) is BrokerUnavailable
    assert channel.lost is under_test.connection.lost
    assert under_test.transport.aborted


@pytest.mark.parametrize(
    "data", [b"HTTP/1.1 400 Bad Request\r\n", b"\x09" + bytes(7), b"\x01\x00\x00\x00\x00\x00\x00x"]
)
async def test_what_speaks_another_protocol_is_refused(data: bytes) -> None:
    under_test = ConnectionUnderTest()
    under_test.connection.data_received(data)
    assert "RabbitMQRefusal" in lost(under_test.connection)
    assert "does not speak AMQP" in lost(under_test.connection)


async def test_a_frame_that_cannot_be_read_ends_a_connection_in_use(under_test: ConnectionUnderTest) -> None:
    under_test.connection.data_received(b"\x01\x00\x00\x00\x00\x00\x00x")
    assert "BrokerUnavailable" in lost(under_test.connection)
    assert "cannot be read" in lost(under_test.connection)


async def test_a_frame_of_the_agreed_size_is_read_and_a_larger_one_is_not(under_test: ConnectionUnderTest) -> None:
    under_test.connection.data_received(b"\x03\x00\x09" + (4096).to_bytes(4, "big") + bytes(4096) + b"\xce")
    assert under_test.connection.lost is None  # of a channel that was closed
    under_test.connection.data_received(b"\x03\x00\x09" + (4097).to_bytes(4, "big") + b"x")
    assert under_test.connection.lost is not None


# -- heartbeats


async def test_a_heartbeat_of_the_server_is_read_and_ours_is_sent(under_test: ConnectionUnderTest) -> None:
    under_test.connection.data_received(HEARTBEAT_FRAME)
    under_test.connection._send_heartbeat()
    assert under_test.connection.lost is None
    assert under_test.transport.sent == HEARTBEAT_FRAME


async def test_f59_a_server_that_stays_silent_is_given_up_and_one_that_does_not_is_kept(
    under_test: ConnectionUnderTest,
) -> None:
    for _ in range(MAX_SILENT_BEATS):
        under_test.connection._send_heartbeat()
    under_test.connection.data_received(HEARTBEAT_FRAME)
    for _ in range(MAX_SILENT_BEATS):
        under_test.connection._send_heartbeat()
    assert under_test.connection.lost is None
    under_test.connection._send_heartbeat()
    assert "silent for 60 s" in lost(under_test.connection)  # a beat is half of the heartbeat of 30 s


async def test_a_lost_connection_beats_no_more(under_test: ConnectionUnderTest) -> None:
    timer = under_test.connection._heartbeat_timer
    assert timer is not None
    under_test.connection.fail(BrokerUnavailable("gone"))
    assert timer.cancelled()


# -- channels


async def test_a_delivery_is_put_together_from_its_frames_wherever_they_are_cut(
    under_test: ConnectionUnderTest,
) -> None:
    channel, delivered = await under_test.open_channel(), []
    channel.on_delivery = lambda tag, header, body: delivered.append((tag, body))
    data = (
        under_test.deliver(channel, 1, b"abc")
        + under_test.deliver(channel, 2, b"")
        + under_test.deliver(channel, 258, b"x")
    )
    for at in range(0, len(data), 5):
        under_test.connection.data_received(data[at : at + 5])
    under_test.connection.data_received(data)
    assert delivered == [(1, b"abc"), (2, b""), (258, b"x")] * 2


async def test_a_returned_message_comes_with_its_routing_key(under_test: ConnectionUnderTest) -> None:
    channel, returned = await under_test.open_channel(), []
    channel.on_return = lambda queue, header, body: returned.append((queue, body))
    under_test.serve(commands.Basic.Return(312, "NO_ROUTE", "", "q"), channel.number)
    under_test.serve(pamqp.header.ContentHeader(0, 1, commands.Basic.Properties()), channel.number)
    under_test.serve(pamqp.body.ContentBody(b"x"), channel.number)
    assert returned == [("q", b"x")]


@pytest.mark.parametrize("multiple", [True, False])
async def test_confirms_and_refusals_of_messages_are_passed_on(under_test: ConnectionUnderTest, multiple: bool) -> None:
    channel, confirms = await under_test.open_channel(), []
    channel.on_confirm = lambda *confirm: confirms.append(confirm)
    under_test.serve(commands.Basic.Ack(258, multiple), channel.number)
    under_test.serve(commands.Basic.Nack(259, multiple, False), channel.number)
    assert confirms == [(258, multiple, True), (259, multiple, False)]


async def test_replies_belong_to_the_commands_in_the_order_of_sending(under_test: ConnectionUnderTest) -> None:
    channel = await under_test.open_channel()
    get = commands.Basic.Get(queue="q")
    calling = asyncio.create_task(channel.call(get, get))
    await asyncio.sleep(0)
    under_test.serve(commands.Basic.GetOk(7, False, "", "q", 0), channel.number)
    under_test.serve(pamqp.header.ContentHeader(0, 1, commands.Basic.Properties()), channel.number)
    under_test.serve(pamqp.body.ContentBody(b"x"), channel.number)
    under_test.serve(commands.Basic.GetEmpty(), channel.number)
    (frame, _, body), empty = await calling
    assert (frame.delivery_tag, body, empty.name) == (7, b"x", "Basic.GetEmpty")


@pytest.mark.parametrize(
    ("status", "kind", "said"),
    [
        (403, RabbitMQRefusal, "set_permissions"),
        (404, RabbitMQRefusal, "refused"),
        (405, RabbitMQRefusal, "refused"),
        (406, RabbitMQRefusal, "refused"),
        (541, BrokerUnavailable, "closed the channel"),
    ],
)
async def test_a_command_that_is_refused_ends_its_channel_only(
    under_test: ConnectionUnderTest, status: int, kind: type[Exception], said: str
) -> None:
    channel, other = await under_test.open_channel(), await under_test.open_channel()
    losses: list[Exception] = []
    channel.on_lost = losses.append
    calling = asyncio.create_task(channel.call(commands.Queue.Declare(queue="q")))
    await asyncio.sleep(0)
    under_test.transport.take_frames()
    under_test.serve(commands.Channel.Close(status, "no", 0, 0), channel.number)
    with pytest.raises(kind, match=said):
        await calling
    assert (len(losses), other.lost, under_test.connection.lost) == (1, None, None)
    assert [frame.name for _, frame in under_test.transport.take_frames()] == ["Channel.CloseOk"]
    with pytest.raises(kind, match=said):
        await channel.call(commands.Queue.Declare(queue="q"))
    assert (await under_test.open_channel()).number == channel.number  # which is free again


async def test_a_cancelled_consumer_ends_its_channel_so_that_its_messages_are_requeued(
    under_test: ConnectionUnderTest,
) -> None:
    channel = await under_test.open_channel()
    under_test.serve(commands.Basic.Cancel("consumer", True), channel.number)
    assert [frame.name for _, frame in under_test.transport.take_frames()] == ["Channel.Close"]
    assert "its queue was deleted" in lost(channel)
    under_test.serve(commands.Channel.CloseOk(), channel.number)
    assert (await under_test.open_channel()).number == channel.number


async def test_a_server_that_pauses_a_channel_gets_its_answer(under_test: ConnectionUnderTest) -> None:
    channel = await under_test.open_channel()
    under_test.serve(commands.Channel.Flow(False), channel.number)
    ((number, answer),) = under_test.transport.take_frames()
    assert (number, answer.name, answer.active) == (channel.number, "Channel.FlowOk", False)


async def test_a_channel_is_closed_by_the_protocol_and_once(under_test: ConnectionUnderTest) -> None:
    channel = await under_test.open_channel()
    closing = asyncio.create_task(channel.close())
    await asyncio.sleep(0)
    under_test.serve(commands.Channel.CloseOk(), channel.number)
    await closing
    assert "closed" in lost(channel)
    under_test.transport.take_frames()
    await channel.close()
    assert under_test.transport.sent == b""


async def test_a_lost_connection_opens_no_channel(under_test: ConnectionUnderTest) -> None:
    under_test.connection.connection_lost(None)
    with pytest.raises(BrokerUnavailable, match="closed by the broker"):
        await under_test.connection.open_channel()


async def test_the_reason_of_a_broken_connection_is_named(under_test: ConnectionUnderTest) -> None:
    under_test.connection.connection_lost(ConnectionResetError("reset by peer"))
    assert "reset by peer" in lost(under_test.connection)
    under_test.connection.fail(BrokerUnavailable("later"))
    assert "reset by peer" in lost(under_test.connection)


async def test_f80_a_paused_channel_takes_no_messages_until_it_goes_on_or_ends(
    under_test: ConnectionUnderTest,
) -> None:
    gate = under_test.connection.gate
    channel, other = await under_test.open_channel(), await under_test.open_channel()
    for paused in (channel, other):
        under_test.serve(commands.Channel.Flow(False), paused.number)
    under_test.serve(commands.Channel.Flow(True), channel.number)
    assert not gate.is_open
    under_test.serve(commands.Channel.Close(541, "no", 0, 0), other.number)
    assert gate.is_open


async def test_f80_a_lost_connection_lets_those_go_that_wait_for_its_block_to_end(
    under_test: ConnectionUnderTest,
) -> None:
    under_test.serve(commands.Connection.Blocked("low on memory"))
    waiting = asyncio.create_task(under_test.connection.gate.wait())
    await asyncio.sleep(0)
    assert not waiting.done()
    under_test.connection.fail(BrokerUnavailable("gone"))
    await asyncio.wait_for(waiting, 5)


async def test_f36_a_command_that_is_not_answered_says_that_publishers_are_blocked() -> None:
    under_test = ConnectionUnderTest("?timeout=10ms")
    under_test.log_in()
    under_test.serve(commands.Connection.Blocked("low on memory"))
    with pytest.raises(BrokerUnavailable, match="low on memory"):
        await under_test.connection.open_channel()
    assert under_test.transport.aborted


async def test_publishers_that_are_blocked_no_more_are_not_said_to_be() -> None:
    under_test = ConnectionUnderTest("?timeout=10ms")
    under_test.log_in()
    under_test.serve(commands.Connection.Blocked("low on memory"))
    under_test.serve(commands.Connection.Unblocked())
    with pytest.raises(BrokerUnavailable, match=r"within 0\.01 s$|within 0\.01 s\n"):
        await under_test.connection.open_channel()


async def test_a_cancelled_command_ends_the_connection_since_its_reply_is_under_way(
    under_test: ConnectionUnderTest,
) -> None:
    calling = asyncio.create_task(under_test.connection.open_channel())
    await asyncio.sleep(0)
    calling.cancel()
    with pytest.raises(asyncio.CancelledError):
        await calling
    assert "cancelled" in lost(under_test.connection)


async def test_a_full_socket_holds_up_who_writes_until_there_is_room(under_test: ConnectionUnderTest) -> None:
    under_test.connection.pause_writing()
    draining = asyncio.create_task(under_test.connection.drain())
    await asyncio.sleep(0)
    assert not draining.done()
    under_test.connection.resume_writing()
    await asyncio.wait_for(draining, 5)


async def test_nothing_is_written_to_a_lost_connection_and_nobody_waits_for_room(
    under_test: ConnectionUnderTest,
) -> None:
    under_test.connection.pause_writing()
    under_test.connection.fail(BrokerUnavailable("gone"))
    under_test.connection.write(b"x")
    assert under_test.transport.sent == b""
    await asyncio.wait_for(under_test.connection.drain(), 5)


async def test_a_connection_is_closed_by_the_protocol(
    under_test: ConnectionUnderTest, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "CLOSE_TIMEOUT_S", 0.01)
    await under_test.connection.close()  # the server does not answer
    assert [(number, frame.name) for number, frame in under_test.transport.take_frames()] == [(0, "Connection.Close")]
    assert under_test.transport.aborted
    assert "is closed" in lost(under_test.connection)


async def test_a_server_that_confirms_the_end_has_ended_it(under_test: ConnectionUnderTest) -> None:
    under_test.serve(commands.Connection.CloseOk())
    assert "is closed" in lost(under_test.connection)


# -- frames


@pytest.mark.parametrize("size", [0, 1, 24, 25, 48, 49])
def test_a_body_is_cut_into_frames_of_the_agreed_size(size: int) -> None:
    data, body, sizes = encode_content(3, bytes(2), b"x" * size, 32), b"", []
    count, number, header = pamqp.frame.unmarshal(data)
    assert (number, header.body_size) == (3, size)
    while data := data[count:]:
        count, number, frame = pamqp.frame.unmarshal(data)
        sizes.append(count)
        body += frame.value
    assert body == b"x" * size
    assert max(sizes, default=0) <= 32
    assert len(sizes) == (size + 23) // 24


def test_a_message_is_mandatory_so_that_the_server_returns_what_reaches_no_queue() -> None:
    _, number, frame = pamqp.frame.unmarshal(encode_publish(3, "shop", "q"))
    assert (number, frame.exchange, frame.routing_key, frame.mandatory) == (3, "shop", "q", True)
