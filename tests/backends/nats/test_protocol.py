"""NATS without a server: URLs, headers, replies of JetStream, the settings of streams, and whose a delivery is."""

from __future__ import annotations

import asyncio
import json
from base64 import b64encode
from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any

import pytest

from effectonce.backends.nats.broker import NatsBackend
from effectonce.backends.nats.connection import JetStreamRefusal, NatsConnection, NatsEndpoint, read_status
from effectonce.backends.nats.consumer import NatsConsumer, _parse_ack_subject
from effectonce.backends.nats.dead_letters import NatsDeadLetters, _parse_headers
from effectonce.backends.nats.packets import NO_MESSAGE_ID, make_headers, read_packet
from effectonce.backends.nats.publisher import (
    Duplicate,
    NatsMessage,
    NatsPublisher,
    _parse_publish_reply,
    publish_messages,
)
from effectonce.backends.nats.streams import (
    NO_MESSAGE_FOUND,
    MissingStream,
    StreamDeclarations,
    encode_name,
    require_subject,
)
from effectonce.contracts import Packet
from effectonce.errors import BrokerUnavailable, ConfigurationError, InvalidOption
from effectonce.values.urls import Address
from tests.harness.waiting import auntil

NS = 1_000_000_000


def endpoint(url: str = "nats://h") -> NatsEndpoint:
    return NatsEndpoint(Address(url))


# -- URLs


def test_a_url_says_where_the_servers_are_and_who_asks() -> None:
    bare = endpoint("nats://")
    assert (bare.nodes, bare.timeout, bare.login, bare.tls) == (["localhost:4222"], 5.0, {}, None)
    full = endpoint("nats://shop:s%2Fcret@h:4333,i,[::1]:4223?timeout=2s")
    assert (full.nodes, full.timeout) == (["h:4333", "i:4222", "[::1]:4223"], 2.0)
    assert full.login == {"user": "shop", "password": "s/cret"}
    assert endpoint("nats://:secret@h").login == {"user": "", "password": "secret"}
    assert endpoint("nats://token@h").login == {"token": "token"}
    assert endpoint("nats://h?tls=yes").tls is not None


def test_f66_a_token_and_a_password_are_not_shown() -> None:
    assert "canary" not in endpoint("nats://canary@h").shown
    assert "canary" not in repr(endpoint("nats://user:canary@h"))
    for query in ("replicas=two", "ca_file=/x", "nkey_file=/none", "tls=yes&ca_file=/none"):
        with pytest.raises(InvalidOption) as caught:
            NatsBackend(Address(f"nats://canary@h?{query}"))
        assert "canary" not in str(caught.value)
    assert "user" in endpoint("nats://user:canary@h").shown


def test_capabilities_depend_on_what_the_stream_keeps() -> None:
    queue = NatsBackend(Address("nats://h?dedup_window=1m&ack_window=7s")).capabilities
    assert (queue.groups, queue.redelivery_horizon_s, queue.dedup_window_s, queue.ack_window_s) == (
        False,
        None,
        60.0,
        7.0,
    )
    log = NatsBackend(Address("nats://h?retention=limits&max_age=1d")).capabilities
    assert (log.groups, log.redelivery_horizon_s, log.dedup_window_s) == (True, 86_400.0, None)
    assert NatsBackend(Address("nats://h?stream=shop")).capabilities.dedup_window_s is None
    with pytest.raises(InvalidOption, match="no path"):
        NatsBackend(Address("nats://h/stream"))


# -- headers


@pytest.mark.parametrize(
    ("name", "value", "is_plain"),
    [
        ("a", "b", True),
        ("A-b_c.d", "x y", True),
        ("a", "", False),
        ("a", " x", False),
        ("a", "x ", False),
        ("a", "é", False),
        ("a", "x\ny", False),
        ("a b", "x", False),
        ("Nats-Expected-Stream", "x", False),
        ("eo-packet", "x", False),
        ("Status", "x", False),
        ("description", "x", False),
        ("status-2", "x", True),
    ],
)
def test_a_header_is_a_line_of_its_own_where_the_server_allows_and_ignores_it(
    name: str, value: str, is_plain: bool
) -> None:
    packet = Packet(body=b"x", id="id", headers={name: value})
    headers = make_headers(packet)
    assert (headers.get(name) == value) == is_plain
    assert ("Eo-Packet" in headers) != is_plain
    assert read_packet(headers, b"x") == packet


@pytest.mark.parametrize(
    ("id", "is_plain"),
    [("id", True), ("a b", True), ("i" * 200, True), ("i" * 201, False), ("é", False), (" a", False)],
)
def test_the_server_deduplicates_by_the_id_or_by_its_hash(id: str, is_plain: bool) -> None:
    headers = make_headers(Packet(body=b"", id=id))
    assert (headers["Nats-Msg-Id"] == id) == is_plain
    assert read_packet(headers, b"").id == id


def test_a_message_that_shall_not_be_deduplicated_keeps_its_id() -> None:
    headers = make_headers(Packet(body=b"", id="id", ordering_key="k"), NO_MESSAGE_ID)
    assert "Nats-Msg-Id" not in headers
    packet = read_packet(headers, b"")
    assert (packet.id, packet.ordering_key) == ("id", "k")
    assert make_headers(Packet(body=b"")) == {}
    assert make_headers(Packet(body=b"", id="id"), "other")["Nats-Msg-Id"] == "other"


def test_headers_of_a_stored_message_are_lines() -> None:
    raw = b"NATS/1.0\r\nA: b\r\nC:d: e\r\nodd\r\n\r\n"
    assert _parse_headers(raw) == {"A": "b", "C": "d: e"}
    assert _parse_headers(b"") == {}


# -- replies


def reply(data: bytes = b"", headers: dict[str, str] | None = None, **fields: Any) -> Any:
    return SimpleNamespace(data=data, headers=headers, **fields)


@pytest.mark.parametrize(
    ("message", "status"),
    [
        (reply(headers={"Status": "503"}), 503),
        (reply(b"x", {"Status": "503"}), 0),  # a message with a header of that name
        (reply(headers={"Status": "odd"}), 0),
        (reply(), 0),
    ],
)
def test_a_status_stands_in_place_of_a_message(message: Any, status: int) -> None:
    assert read_status(message) == status


def test_an_error_of_jetstream_may_pass_or_not() -> None:
    connection = NatsConnection(endpoint())
    for status in (500, 503):
        assert type(connection.translate_error({"code": status})) is BrokerUnavailable
    refused = connection.translate_error({"code": 400, "err_code": 10058, "description": "in use"})
    assert isinstance(refused, JetStreamRefusal)
    assert (refused.status, refused.err_code) == (400, 10058)
    assert "in use" in str(refused)
    unnumbered = connection.translate_error({"code": 499})
    assert isinstance(unnumbered, JetStreamRefusal)
    assert (unnumbered.status, unnumbered.err_code) == (499, 0)
    undescribed = connection.translate_error({})
    assert isinstance(undescribed, JetStreamRefusal)
    assert undescribed.status == 0


@pytest.mark.parametrize(
    ("data", "outcome"),
    [
        (b'{"seq": 3}', type(None)),
        (b'{"seq": 3, "duplicate": true}', Duplicate),
        (b'{"error": {"code": 503}}', BrokerUnavailable),
        (b'{"error": {"code": 400}}', JetStreamRefusal),
        (b'{"ok": true}', ConfigurationError),
        (b"thanks", ConfigurationError),
        (b"[]", ConfigurationError),
    ],
)
def test_only_a_streams_reply_confirms_a_message(data: bytes, outcome: type) -> None:
    assert type(_parse_publish_reply(NatsConnection(endpoint()), "q", data)) is outcome


@pytest.mark.parametrize(
    ("subject", "expected"),
    [("$JS.ACK.s.c.2.7.1.1700000000.0", (2, 7)), ("$JS.ACK.domain.hash.s.c.3.8.1.1700000000.0.token", (3, 8))],
)
def test_the_subject_of_an_ack_says_which_delivery_it_is(subject: str, expected: tuple[int, int]) -> None:
    assert _parse_ack_subject(subject) == expected


# -- a stand-in for the connection


class Connection:
    """Answers calls of JetStream's API by their path, and notes what is published."""

    def __init__(self, **replies: Any) -> None:
        self.endpoint = endpoint()
        self.client = SimpleNamespace(max_payload=1000, new_inbox=lambda: "_INBOX.1")
        self.server_version = (2, 12)
        self.lost: Exception | None = None
        self.on_lost: Any = None
        self.replies = {name.replace("__", "."): value for name, value in replies.items()}
        self.calls: list[tuple[str, Any]] = []
        self.published: list[tuple[str, bytes]] = []
        self.requests: list[tuple[str, bytes, Any]] = []
        self.answers: list[Any] = []
        self.callback: Any = None
        self.translate_error = NatsConnection(self.endpoint).translate_error

    async def call_jetstream(self, path: str, body: Any = None) -> dict[str, Any]:
        self.calls.append((path, body))
        name = next((name for name in self.replies if path.startswith(name)), None)
        answer = {} if name is None else self.replies[name]
        if isinstance(answer, list):
            answer = answer.pop(0)
        if isinstance(answer, Exception):
            raise answer
        result: dict[str, Any] = answer
        return result

    async def request(self, subject: str, payload: bytes = b"", headers: Any = None) -> Any:
        self.requests.append((subject, payload, headers))
        return len(self.requests)

    async def gather_replies(self, *requests: Any) -> list[Any]:
        answers, self.answers = self.answers[: len(requests)], self.answers[len(requests) :]
        return answers or [reply(b'{"seq": 1}')] * len(requests)

    async def subscribe(self, subject: str, callback: Any) -> Any:
        self.callback = callback
        return SimpleNamespace(unsubscribe=self.flush)

    async def publish(self, subject: str, payload: bytes = b"", answer_to: str = "", headers: Any = None) -> None:
        self.published.append((subject, payload))

    async def flush(self) -> None:
        pass

    async def close(self) -> None:
        self.lost = BrokerUnavailable("closed")

    def paths(self) -> list[str]:
        return [path for path, _ in self.calls]


def streams(**options: Any) -> StreamDeclarations:
    known = {"retention": "workqueue", "window": 30.0, "dedup_window": 120.0, "max_age": 60.0, "replicas": 3}
    return StreamDeclarations(endpoint=endpoint(), **{**known, **options})


def opening(connection: Connection, owner: Any) -> Any:
    async def open() -> Any:
        return connection

    owner._connection._open = open
    return owner


NOT_FOUND = JetStreamRefusal("no", 404, 10059)
SAFE_STREAM: dict[str, dict[str, Any]] = {
    "config": {"name": "q", "subjects": ["q"], "retention": "workqueue", "storage": "file", "discard": "new"}
}
SAFE_CONSUMER = {"config": {"ack_policy": "explicit", "max_deliver": -1}}


# -- streams


async def test_a_missing_stream_is_created_so_that_it_drops_nothing() -> None:
    created = {"config": {"name": "q", "retention": "workqueue"}}
    connection: Any = Connection(STREAM__INFO=NOT_FOUND, STREAM__CREATE=created)
    await streams().declare(connection, "q", "g")
    configs = {path: body for path, body in connection.calls if path.startswith("STREAM.CREATE")}
    assert configs["STREAM.CREATE.q"] == {
        "name": "q",
        "subjects": ["q"],
        "retention": "workqueue",
        "duplicate_window": 120 * NS,
        "storage": "file",
        "discard": "new",
        "num_replicas": 3,
    }
    assert configs["STREAM.CREATE.q=2Edead"]["subjects"] == ["eo.dead.q=2Edead"]
    _, consumer = connection.calls[-1]
    assert consumer["config"] == {
        "durable_name": "g",
        "filter_subject": "q",
        "ack_policy": "explicit",
        "ack_wait": 30 * NS,
        "deliver_policy": "all",
        "max_deliver": -1,
        "max_ack_pending": -1,
    }


async def test_a_stream_of_a_log_has_an_age_and_each_group_its_dead_letters() -> None:
    created = {"config": {"name": "q", "retention": "limits"}}
    connection: Any = Connection(STREAM__INFO=NOT_FOUND, STREAM__CREATE=created)
    await streams(retention="limits").declare(connection, "q", "g")
    assert next(body for path, body in connection.calls if path == "STREAM.CREATE.q")["max_age"] == 60 * NS
    assert "STREAM.CREATE.q=2Edead=2Eg" in connection.paths()
    await streams(retention="limits").declare(connection, "q", None)
    assert connection.paths()[-1] == "STREAM.CREATE.q"


async def test_a_stream_that_others_declare_is_only_looked_up() -> None:
    connection: Any = Connection(STREAM__INFO=SAFE_STREAM)
    await streams(shared_stream="shop").declare(connection, "q", None)
    assert connection.paths() == ["STREAM.INFO.shop"]


async def test_a_stream_with_another_retention_is_refused() -> None:
    connection: Any = Connection(STREAM__INFO=SAFE_STREAM)
    with pytest.raises(ConfigurationError, match="retention workqueue"):
        await streams(retention="limits").declare(connection, "q", None)


async def test_a_second_group_of_a_work_queue_is_refused() -> None:
    connection: Any = Connection(STREAM__INFO=SAFE_STREAM, CONSUMER=JetStreamRefusal("not unique", 400))
    with pytest.raises(ConfigurationError, match="has one group"):
        await streams().declare(connection, "q", "g")


async def check(stream: dict[str, Any], consumer: Any = SAFE_CONSUMER, **options: Any) -> None:
    info = {"config": {**SAFE_STREAM["config"], **stream}}
    connection: Any = Connection(STREAM__INFO=info, CONSUMER__INFO=consumer)
    await streams(**options).check(connection, "q", "g")


@pytest.mark.parametrize(
    "stream",
    [
        {},
        {"max_msgs": 5},
        {"discard": "old"},
        {"discard": "old", "max_msgs": -1, "max_bytes": 0},
        {"max_age": 0},
    ],
)
async def test_a_stream_that_loses_nothing_passes(stream: dict[str, Any]) -> None:
    await check(stream)


@pytest.mark.parametrize(
    ("stream", "said"),
    [
        ({"discard": "old", "max_msgs": 1}, "has limits"),
        ({"discard": "old", "max_bytes": 5}, "has limits"),
        ({"max_age": 1}, "has limits"),
        ({"storage": "memory"}, "in memory"),
        ({"retention": "limits"}, "has retention"),
    ],
)
async def test_a_stream_that_loses_messages_is_refused(stream: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigurationError, match=said):
        await check(stream)


async def test_a_log_may_drop_what_is_old() -> None:
    await check({"retention": "limits", "discard": "old", "max_msgs": 1, "max_age": 5}, retention="limits")
    await check({"retention": "limits"}, shared_stream="shop")


@pytest.mark.parametrize("config", [{"ack_policy": "none"}, {"ack_policy": "explicit", "max_deliver": 5}])
async def test_a_consumer_that_loses_messages_is_refused(config: dict[str, Any]) -> None:
    with pytest.raises(ConfigurationError, match="would lose messages"):
        await check({}, {"config": config})


async def test_a_stream_or_a_consumer_that_is_missing_says_how_to_declare_it() -> None:
    with pytest.raises(MissingStream):
        await check({}, NOT_FOUND)
    missing: Any = Connection(STREAM__INFO=NOT_FOUND)
    with pytest.raises(MissingStream, match="declare"):
        await streams().check(missing, "q", "g")
    forbidden: Any = Connection(STREAM__INFO=JetStreamRefusal("no", 403))
    with pytest.raises(JetStreamRefusal, match="no"):
        await streams().check(forbidden, "q", "g")


def test_names_stay_different_and_short() -> None:
    assert [encode_name(name) for name in ("a-b_C1", "a.b", "a b")] == ["a-b_C1", "a=2Eb", "a=20b"]
    assert encode_name("a" * 200) == "a" * 200
    long = {encode_name("a" * 201), encode_name("a" * 202)}
    assert len(long) == 2
    assert all(len(name) <= 200 for name in long)


@pytest.mark.parametrize("name", [".a", "a.", "a..b"])
def test_f61_dots_stand_between_two_words(name: str) -> None:
    assert require_subject("a.b") == "a.b"
    with pytest.raises(InvalidOption, match=r"name|dots"):
        require_subject(name)


# -- publishing


async def test_f44_a_message_over_the_servers_limit_is_refused_alone() -> None:
    connection: Any = Connection()
    messages = [
        NatsMessage("q", {}, bytes(900)),
        NatsMessage("q", {}, bytes(901)),
        NatsMessage("q", {"a": "b"}, bytes(895)),
    ]
    outcomes = await publish_messages(connection, "s", messages)
    assert [type(outcome) for outcome in outcomes] == [type(None), ConfigurationError, ConfigurationError]
    assert [headers for _, _, headers in connection.requests] == [{"Nats-Expected-Stream": "s"}]


def publisher_on(connection: Connection, **options: Any) -> NatsPublisher:
    publisher: NatsPublisher = opening(connection, NatsPublisher(streams(**options)))
    return publisher


NO_STREAM = reply(headers={"Status": "503"})
PACKETS = [Packet(body=b"a", id="1"), Packet(body=b"b", id="2")]


async def test_a_queue_without_a_stream_gets_one_and_what_was_refused_is_sent_again() -> None:
    connection = Connection(STREAM__INFO=SAFE_STREAM)
    connection.answers = [reply(b'{"seq": 1}'), NO_STREAM]
    assert await publisher_on(connection).publish("q", PACKETS) == [None, None]
    assert [payload for _, payload, _ in connection.requests] == [b"a", b"b", b"b"]


DELAYED = [Packet(body=b"a", id="1", delay_s=60.0)]


async def test_a_delayed_message_is_a_schedule_for_its_queue_and_carries_its_own_id() -> None:
    connection = Connection(STREAM__INFO=SAFE_STREAM)
    assert await publisher_on(connection).publish("q", DELAYED) == [None]
    (_, (path, config)) = connection.calls
    assert path == "STREAM.UPDATE.q"
    assert (config["allow_msg_schedules"], config["subjects"]) == (True, ["q", "eo.delayed.q.*"])
    ((subject, _, headers),) = connection.requests
    assert subject.startswith("eo.delayed.q.")
    assert headers["Nats-Schedule-Target"] == "q"
    due = datetime.fromisoformat(headers["Nats-Schedule"].removeprefix("@at "))
    assert 50 < (due - datetime.now(UTC)).total_seconds() <= 60
    sent_on = {name: value for name, value in headers.items() if name != "Nats-Msg-Id"}  # as the server delivers it
    assert read_packet(sent_on, b"a").id == "1"


async def test_a_stream_is_set_up_for_delays_once() -> None:
    connection = Connection(STREAM__INFO=SAFE_STREAM)
    publisher = publisher_on(connection)
    for _ in range(2):
        await publisher.publish("q", DELAYED)
    assert connection.paths() == ["STREAM.INFO.q", "STREAM.UPDATE.q"]


async def test_a_server_before_2_12_refuses_a_delay_and_its_streams_stay_as_they_are() -> None:
    connection = Connection(STREAM__INFO=SAFE_STREAM)
    connection.server_version = (2, 11)
    with pytest.raises(ConfigurationError, match=r"NATS 2\.12.*outbox"):
        await publisher_on(connection).publish("q", DELAYED)
    assert (connection.calls, connection.requests) == ([], [])


@pytest.mark.parametrize(
    ("limits", "options"), [({"max_msgs": 10}, {}), ({"max_bytes": 10}, {}), ({}, {"shared_stream": "q"})]
)
async def test_a_stream_that_would_drop_messages_is_not_set_up_for_delays(
    limits: dict[str, int], options: dict[str, str]
) -> None:
    """The server wants discard=old for it, and with a limit that loses messages."""
    connection = Connection(STREAM__INFO={"config": {**SAFE_STREAM["config"], **limits}})
    with pytest.raises(ConfigurationError, match="allow_msg_schedules"):
        await publisher_on(connection, **options).publish("q", DELAYED)
    assert connection.paths() == ["STREAM.INFO.q"]


async def test_a_stream_that_others_declare_is_not_created() -> None:
    connection = Connection(STREAM__INFO=NOT_FOUND)
    connection.answers = [NO_STREAM, reply(b'{"seq": 1}')]
    outcomes = await publisher_on(connection, shared_stream="shop").publish("q", PACKETS)
    assert [type(outcome) for outcome in outcomes] == [MissingStream, type(None)]
    assert connection.calls == [("STREAM.INFO.shop", None)]


@pytest.mark.parametrize("options", [{}, {"shared_stream": "shop"}])
async def test_f85_a_stream_whose_replicas_have_no_leader_is_not_missing(options: dict[str, Any]) -> None:
    connection = Connection(STREAM__INFO=SAFE_STREAM)
    connection.gather_replies = always_silent  # type: ignore[method-assign]
    outcomes = await publisher_on(connection, **options).publish("q", PACKETS)
    assert [type(outcome) for outcome in outcomes] == [BrokerUnavailable, BrokerUnavailable]


async def always_silent(*requests: Any) -> list[Any]:
    return [NO_STREAM] * len(requests)


@pytest.mark.parametrize("waits", [True, False])
async def test_a_duplicate_is_sent_again_if_the_first_is_no_longer_there(waits: bool) -> None:
    found = {"message": {}} if waits else JetStreamRefusal("gone", 404, NO_MESSAGE_FOUND)
    connection = Connection(STREAM__MSG__GET=found)
    connection.answers = [reply(b'{"seq": 7, "duplicate": true}'), reply(b'{"seq": 8}')]
    assert await publisher_on(connection).publish("q", PACKETS) == [None, None]
    assert connection.calls == [("STREAM.MSG.GET.q", {"seq": 7})]
    assert [payload for _, payload, _ in connection.requests] == [b"a", b"b", *([] if waits else [b"a"])]
    assert waits or "Nats-Msg-Id" not in connection.requests[2][2]


async def test_where_the_server_does_not_know_who_needs_a_message_it_does_not_deduplicate() -> None:
    connection = Connection()
    await publisher_on(connection, retention="limits").publish("q", PACKETS)
    assert all("Nats-Msg-Id" not in headers for _, _, headers in connection.requests)


# -- consuming


def ack_subject(sequence: int, count: int = 1) -> str:
    return f"$JS.ACK.q.g.{count}.{sequence}.1.1700000000.0"


async def consumer_with(connection: Connection, *bodies: bytes, **options: Any) -> tuple[NatsConsumer, list[Any]]:
    """A consumer that has received messages with ``bodies``."""
    consumer: NatsConsumer = opening(connection, NatsConsumer(streams(**options), "q", "g", 10))
    receiving = asyncio.create_task(consumer.receive(len(bodies) or 1, 0.05 if not bodies else 60.0))
    await auntil(lambda: connection.callback is not None)
    for sequence, body in enumerate(bodies, 1):
        await connection.callback(reply(body, {"a": "b"}, reply=ack_subject(sequence, 2), subject="_INBOX.1.1"))
    deliveries = list(await asyncio.wait_for(receiving, 5))
    while len(deliveries) < len(bodies):
        deliveries += await consumer.receive(9, 1.0)
    return consumer, deliveries


async def test_a_receive_returns_no_more_than_its_limit_of_what_has_arrived() -> None:
    connection = Connection()
    consumer, _ = await consumer_with(connection)
    for sequence in (1, 2, 3):
        await connection.callback(reply(b"x", {}, reply=ack_subject(sequence), subject="_INBOX.1.1"))
    assert [len(await consumer.receive(2, 0.01)) for _ in range(3)] == [2, 1, 0]


async def test_a_pull_asks_for_what_the_caller_wants() -> None:
    connection = Connection()
    _, (delivery,) = await consumer_with(connection, b"x")
    ((subject, request),) = connection.published
    assert subject == "$JS.API.CONSUMER.MSG.NEXT.q.g"
    assert json.loads(request)["batch"] == 1
    assert 50 * NS < json.loads(request)["expires"] <= 60 * NS
    assert (delivery.attempt, delivery.packet.headers, delivery.packet.body) == (2, {"a": "b"}, b"x")


async def test_what_is_settled_is_settled_once() -> None:
    connection = Connection()
    consumer, (first, second, third) = await consumer_with(connection, b"1", b"2", b"3")
    connection.published.clear()
    assert await consumer.ack([first]) == [True]
    assert await consumer.nack([first, second], 1.5) == [False, True]
    assert await consumer.nack([third]) == [True]
    assert connection.published == [
        (ack_subject(1, 2), b"+ACK"),
        (ack_subject(2, 2), b'-NAK {"delay": 1500000000}'),
        (ack_subject(3, 2), b"-NAK"),
    ]


async def test_f57_a_delivery_is_ours_for_less_than_the_window() -> None:
    for window, owned_for in ((30.0, 29.0), (5.0, 4.5)):
        consumer = NatsConsumer(streams(window=window), "q", "g", 10)
        assert consumer._owned_for == owned_for
    consumer, (first, second) = await consumer_with(Connection(), b"1", b"2")
    first.handle.ends_at = 0.0
    assert await consumer.extend([first, second], 1.0) == [False, True]
    assert await consumer.ack([first, second]) == [False, True]
    assert await consumer.dead_letter(first, {}) is False


async def test_a_dead_letter_is_confirmed_before_its_message_is_acked() -> None:
    connection = Connection(STREAM__INFO=SAFE_STREAM)
    consumer, (delivery,) = await consumer_with(connection, b"x")
    connection.answers = [NO_STREAM]  # its stream is declared, and it is sent again
    assert await consumer.dead_letter(delivery, {"eo-dead": "why"}) is True
    subjects = [subject for subject, _, _ in connection.requests]
    assert subjects == ["eo.dead.q=2Edead"] * 2 + [ack_subject(1, 2)]
    headers = connection.requests[0][2]
    assert (headers["Nats-Msg-Id"], headers["eo-dead"], headers["a"]) == ("q.1", "why", "b")
    assert await consumer.ack([delivery]) == [False]


async def test_f85_a_dead_letter_waits_for_a_leader_of_its_stream() -> None:
    connection = Connection(STREAM__INFO=SAFE_STREAM)
    consumer, (delivery,) = await consumer_with(connection, b"x")
    connection.gather_replies = always_silent  # type: ignore[method-assign]
    with pytest.raises(BrokerUnavailable, match="no server leads"):
        await consumer.dead_letter(delivery, {})
    assert await consumer.ack([delivery]) == [True]


async def test_a_dead_letter_that_is_refused_leaves_the_message_unsettled() -> None:
    connection = Connection()
    consumer, (delivery,) = await consumer_with(connection, b"x")
    connection.answers = [reply(b'{"error": {"code": 503}}')]
    with pytest.raises(BrokerUnavailable):
        await consumer.dead_letter(delivery, {})
    assert await consumer.ack([delivery]) == [True]


@pytest.mark.parametrize(
    ("status", "description", "found", "kind"),
    [
        ("503", "", NOT_FOUND, MissingStream),
        ("503", "", {}, BrokerUnavailable),  # its replicas are choosing a leader
        ("503", "", BrokerUnavailable("no answer"), BrokerUnavailable),
        ("503", "", JetStreamRefusal("forbidden", 403), JetStreamRefusal),
        ("409", "Consumer Deleted", NOT_FOUND, MissingStream),
        ("409", "Exceeded", {}, BrokerUnavailable),
    ],
)
async def test_a_pull_that_the_server_cannot_serve_is_the_error_of_one_receive(
    status: str, description: str, found: Any, kind: type[Exception]
) -> None:
    connection = Connection(CONSUMER__INFO=found)
    consumer, _ = await consumer_with(connection)
    await connection.callback(reply(headers={"Status": status, "Description": description}, reply="", subject="x"))
    with pytest.raises(kind):
        await consumer.receive(1, 0.01)
    assert await consumer.receive(1, 0.01) == []


@pytest.mark.parametrize("status", ["404", "408"])
async def test_a_pull_that_ended_without_a_message_is_followed_by_another(status: str) -> None:
    connection = Connection()
    consumer, _ = await consumer_with(connection)
    await consumer.receive(1, 0.01)
    assert len(connection.published) == 1  # the first may still be answered
    await connection.callback(reply(headers={"Status": status}, reply="", subject="_INBOX.1.1"))
    await consumer.receive(1, 0.01)
    assert len(connection.published) == 2


async def test_a_lost_connection_is_the_error_of_one_receive() -> None:
    connection = Connection()
    consumer, _ = await consumer_with(connection)
    connection.lost = BrokerUnavailable("gone")
    with pytest.raises(BrokerUnavailable, match="deliveries of q stopped"):
        await consumer.receive(1, 0.01)
    connection.lost = None
    assert await consumer.receive(1, 0.01) == []


async def test_close_gives_back_what_is_unsettled() -> None:
    connection = Connection()
    consumer, (first, _) = await consumer_with(connection, b"1", b"2")
    await consumer.ack([first])
    connection.published.clear()
    await consumer.close()
    assert connection.published == [(ack_subject(2, 2), b"-NAK")]


# -- dead letters


def dead_letters_on(connection: Connection) -> NatsDeadLetters:
    dead_letters: NatsDeadLetters = opening(connection, NatsDeadLetters(streams(), "q", "g"))
    return dead_letters


def stored(sequence: int) -> dict[str, Any]:
    return {"message": {"seq": sequence, "data": b64encode(b"%d" % sequence).decode()}}


NO_MESSAGE = JetStreamRefusal("no message", 404, NO_MESSAGE_FOUND)


async def test_dead_letters_are_listed_page_by_page() -> None:
    connection = Connection(STREAM__MSG__GET=[stored(2), stored(5), stored(6), stored(6), NO_MESSAGE])
    dead_letters = dead_letters_on(connection)
    page, cursor = await dead_letters.browse(2)
    assert ([(each.id, each.packet.body) for each in page], cursor) == ([("2", b"2"), ("5", b"5")], "5")
    page, cursor = await dead_letters.browse(2, cursor)
    assert ([each.id for each in page], cursor) == (["6"], None)
    assert [body["seq"] for _, body in connection.calls] == [1, 3, 6, 6, 7]


async def test_removing_counts_those_that_were_there() -> None:
    gone = [JetStreamRefusal("x", 404), JetStreamRefusal("x", 400, 10043), JetStreamRefusal("x", 400, 10057)]
    connection = Connection(STREAM__MSG__DELETE=[{}, *gone, {}])
    assert await dead_letters_on(connection).remove(["1", "1", "odd", "2", "3", "4", "5"]) == 2
    assert [body["seq"] for _, body in connection.calls] == [1, 2, 3, 4, 5]
    forbidden = Connection(STREAM__MSG__DELETE=JetStreamRefusal("forbidden", 403))
    with pytest.raises(JetStreamRefusal, match="forbidden"):
        await dead_letters_on(forbidden).remove(["1"])


async def test_counting_in_a_stream_that_is_missing_says_how_to_declare_it() -> None:
    assert await dead_letters_on(Connection(STREAM__INFO={"state": {"messages": 3}})).count() == 3
    with pytest.raises(MissingStream):
        await dead_letters_on(Connection(STREAM__INFO=NOT_FOUND)).count()
    with pytest.raises(JetStreamRefusal, match="forbidden"):
        await dead_letters_on(Connection(STREAM__INFO=JetStreamRefusal("forbidden", 403))).count()
