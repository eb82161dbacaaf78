"""Queues on streams of Redis: entries, publishing, and which acks are sent how, with a stand-in for the connection."""

from __future__ import annotations

import time
from typing import Any

import pytest

from effectonce.backends.redis.broker import RedisBrokerBackend, RedisDeadLetters, RedisPublisher
from effectonce.backends.redis.consumer import FORGET_SILENT_AFTER_MS, RedisConsumer
from effectonce.backends.redis.endpoint import RedisEndpoint
from effectonce.backends.redis.errors import MissingGroup, RedisBrokerErrors, ReplyError
from effectonce.backends.redis.stream import SETTLE_SCRIPT, StreamKeys, declare_group, make_fields, read_packet
from effectonce.contracts import Packet
from effectonce.errors import BrokerUnavailable, ConfigurationError, InvalidOption
from effectonce.values.urls import Address

ENDPOINT = RedisEndpoint(error_kind=RedisBrokerErrors)
KEYS = StreamKeys("eo", "q", "g")


class Connection:
    """Answers commands and scripts, one after another, and notes them."""

    def __init__(self) -> None:
        self.errors = RedisBrokerErrors("r")
        self.sent: list[tuple[Any, ...]] = []
        self.scripts: list[tuple[Any, ...]] = []
        self.replies: list[Any] = []
        self.answers: list[Any] = []
        self.maintenance: Any = (-1, "0-0", [])

    async def exchange(self, *commands: Any, block: float = 0.0, check: bool = True) -> list[Any]:
        self.sent += commands
        if not self.replies:
            return [None] * len(commands)
        reply = self.replies.pop(0)
        if isinstance(reply, Exception):
            raise reply
        result: list[Any] = reply
        return result

    def of_queue(self, key: str) -> Connection:
        return self

    async def call(self, *words: Any) -> Any:
        return (await self.exchange(words))[0]

    async def batch(self, script: Any, keys: Any, args: Any) -> Any:
        if script is not SETTLE_SCRIPT:
            self.scripts.append(("maintain", *args[2:]))
            return self.maintenance
        self.scripts.append(tuple(args[2:]))
        answer = self.answers.pop(0) if self.answers else [1] * len(args[4:])
        if isinstance(answer, Exception):
            raise answer
        return answer

    def translate(self, reply: ReplyError) -> Exception:
        return self.errors.translate(reply)

    async def close(self) -> None:
        pass


# -- entries


def fields_of(packet: Packet) -> dict[bytes, bytes]:
    words = [word if isinstance(word, bytes) else word.encode() for word in make_fields(packet)]
    return dict(zip(words[::2], words[1::2], strict=True))


@pytest.mark.parametrize(
    "packet",
    [
        Packet(body=b""),
        Packet(body=b"\xff", id="é", headers={"a": "b"}, ordering_key="k"),
        Packet(body=b"x", ordering_key=""),
    ],
)
def test_a_packet_survives_the_journey(packet: Packet) -> None:
    assert read_packet(fields_of(packet)) == packet


def test_an_entry_of_another_program_is_read_as_far_as_it_can_be() -> None:
    packet = read_packet({b"body": b"x", b"headers": b"{", b"id": b"\xff", b"key": b"\xfe"})
    assert (packet.headers, packet.id, packet.ordering_key) == ({"headers": "{"}, "\\xff", "\\xfe")
    assert read_packet({b"a": b"1", b"group": b"g", b"attempts": b"2"}).body == b'{"a":"1"}'


@pytest.mark.parametrize("namespace", ["", "a{b", "a}b", "a%0Ab"])
def test_a_namespace_leaves_the_hash_tag_to_the_queue(namespace: str) -> None:
    assert KEYS.settled == [b"eo:{q}", b"eo:{q}:delayed:g", b"eo:{q}:dead:g"]
    assert KEYS.maintained == [b"eo:{q}", b"eo:{q}:delayed:g", b"eo:{q}:scheduled"]
    with pytest.raises((InvalidOption, ValueError)):
        RedisBrokerBackend(Address(f"redis://h?namespace={namespace}"))


async def test_a_group_that_is_there_is_left_alone() -> None:
    connection: Any = Connection()
    connection.replies = [[ReplyError("BUSYGROUP exists")], [b"OK"], [ReplyError("WRONGTYPE x")]]
    await declare_group(connection, KEYS)
    await declare_group(connection, KEYS)
    with pytest.raises(ConfigurationError):
        await declare_group(connection, KEYS)


# -- publishing


async def publish(*replies: Any, count: int = 2) -> tuple[list[Any], Connection]:
    publisher, connection = RedisPublisher(ENDPOINT, "eo"), Connection()
    publisher._connection = connection  # type: ignore[assignment]
    connection.replies = [list(replies)]
    return list(await publisher.publish("q", [Packet(body=b"%d" % n) for n in range(count)])), connection


async def test_one_packet_is_one_command_and_several_are_a_transaction() -> None:
    outcomes, connection = await publish(b"1-0", count=1)
    assert (outcomes, [command[0] for command in connection.sent]) == ([None], ["XADD"])
    outcomes, connection = await publish(b"OK", b"QUEUED", b"QUEUED", [b"1-0", b"2-0"])
    assert (outcomes, [command[0] for command in connection.sent]) == ([None, None], ["MULTI", "XADD", "XADD", "EXEC"])
    outcomes, connection = await publish(count=0)
    assert (outcomes, connection.sent) == ([], [])


async def test_f44_a_transaction_that_was_refused_names_the_first_cause_for_all() -> None:
    outcomes, _ = await publish(b"OK", b"QUEUED", ReplyError("OOM x"), ReplyError("EXECABORT x"))
    assert [type(outcome) for outcome in outcomes] == [BrokerUnavailable] * 2
    assert all("maxmemory" in str(outcome) for outcome in outcomes)
    outcomes, _ = await publish(b"OK", b"QUEUED", b"QUEUED", ReplyError("EXECABORT x"))
    assert all(isinstance(outcome, BrokerUnavailable) for outcome in outcomes)
    outcomes, _ = await publish(b"OK", b"QUEUED", b"QUEUED", [b"1-0", ReplyError("WRONGTYPE x")])
    assert [type(outcome) for outcome in outcomes] == [type(None), ConfigurationError]


# -- consuming


def consumer_on(connection: Any, *, window: float = 30.0, prefetch: int = 10) -> RedisConsumer:
    consumer = RedisConsumer(ENDPOINT, KEYS, window=window, prefetch=prefetch)
    consumer._reading = consumer._settling = connection
    consumer._maintain_at = time.monotonic() + 60
    return consumer


def entries(*ids: bytes) -> list[Any]:
    return [None, [[b"eo:{q}", [[id, [b"body", id, b"id", b""]] for id in ids]]]]


async def received(connection: Connection, *ids: bytes, **options: Any) -> tuple[RedisConsumer, list[Any]]:
    consumer = consumer_on(connection, **options)
    connection.replies = [entries(*ids)]
    deliveries = list(await consumer.receive(len(ids), 0.0))
    connection.sent.clear()
    return consumer, deliveries


async def test_a_read_asks_for_what_there_is_room_for_and_waits_no_longer_than_asked() -> None:
    connection = Connection()
    consumer = consumer_on(connection, prefetch=3)
    connection.replies = [entries(b"1-0")]
    await consumer.receive(9, 0.0)
    assert connection.sent[-1][4:] == ("COUNT", 3, "STREAMS", "eo:{q}", ">")
    connection.replies = [entries(b"2-0")]
    await consumer.receive(1, 7.0)
    *_, count, block, milliseconds, _, _, _ = connection.sent[-1]
    assert (count, block) == (1, "BLOCK")
    assert 6000 < milliseconds <= 7000


async def test_an_early_ack_goes_out_with_the_next_read() -> None:
    connection = Connection()
    consumer, deliveries = await received(connection, b"1-0", b"2-0")
    assert await consumer.ack(deliveries) == [True, True]
    assert await consumer.ack(deliveries) == [False, False]
    assert connection.sent == []
    await consumer.receive(1, 0.0)
    assert [command[0] for command in connection.sent] == ["XACK", "XREADGROUP"]
    assert connection.sent[0] == ("XACK", "eo:{q}", "g", b"1-0", b"2-0")
    await consumer.receive(1, 0.0)
    assert [command[0] for command in connection.sent[2:]] == ["XREADGROUP"]


async def test_a_late_ack_proves_that_the_delivery_is_still_ours() -> None:
    connection = Connection()
    consumer, (first, second) = await received(connection, b"1-0", b"2-0")
    second.handle.needs_proof_at = 0.0
    connection.answers = [[1, 0]]
    assert await consumer.ack([first, second]) == [True, False]
    assert connection.scripts == [("ack", "", b"1-0", b"2-0")]


async def test_an_ack_that_has_waited_too_long_is_proven_when_it_is_sent() -> None:
    for flushes in (True, False):
        connection = Connection()
        consumer, (first,) = await received(connection, b"1-0")
        await consumer.ack([first])
        consumer._acks[b"1-0"] = 0.0
        await (consumer.flush() if flushes else consumer.receive(1, 0.0))
        assert connection.scripts == [("ack", "", b"1-0")]
        assert not any(command[0] == "XACK" for command in connection.sent)


async def test_a_flush_sends_the_acks_once_and_again_where_that_failed() -> None:
    connection = Connection()
    consumer, deliveries = await received(connection, b"1-0")
    await consumer.ack(deliveries)
    connection.replies = [BrokerUnavailable("gone")]
    with pytest.raises(BrokerUnavailable):
        await consumer.flush()
    await consumer.flush()
    await consumer.flush()
    assert connection.sent == [("XACK", "eo:{q}", "g", b"1-0")] * 2


async def test_acks_of_a_read_that_failed_are_sent_again() -> None:
    connection = Connection()
    consumer, deliveries = await received(connection, b"1-0")
    await consumer.ack(deliveries)
    connection.replies = [BrokerUnavailable("gone")]
    with pytest.raises(BrokerUnavailable):
        await consumer.receive(1, 0.0)
    await consumer.flush()
    assert connection.sent[-1][0] == "XACK"


async def test_a_group_that_was_deleted_is_declared_again() -> None:
    connection = Connection()
    consumer = consumer_on(connection)
    connection.replies = [MissingGroup("gone"), [b"OK"], entries(b"1-0")]
    assert len(await consumer.receive(1, 5.0)) == 1
    assert [command[0] for command in connection.sent] == ["XREADGROUP", "XGROUP", "XREADGROUP"]


async def test_other_settlements_are_sent_at_once_and_say_whose_the_delivery_was() -> None:
    connection = Connection()
    consumer, (first, second, third) = await received(connection, b"1-0", b"2-0", b"3-0")
    connection.answers = [[0]]
    assert await consumer.nack([first], 1.5) == [False]
    assert await consumer.nack([second]) == [True]
    assert await consumer.dead_letter(third, {"eo-dead": "why"}) is True
    assert await consumer.dead_letter(third, {}) is False
    assert connection.scripts == [
        ("nack", 1500, b"1-0"),
        ("nack", 0, b"2-0"),
        ("dead", b'{"eo-dead":"why"}', b"3-0"),
    ]


@pytest.mark.parametrize(("seconds", "idle_ms", "kept"), [(10.0, 20_000, 10.0), (30.0, 0, 30.0), (99.0, 0, 30.0)])
async def test_a_delivery_is_extended_by_the_window_at_most(seconds: float, idle_ms: int, kept: float) -> None:
    connection = Connection()
    consumer, (first, second) = await received(connection, b"1-0", b"2-0")
    connection.answers = [[1, 0]]
    assert await consumer.extend([first, second], seconds) == [True, False]
    assert connection.scripts == [("extend", idle_ms, b"1-0", b"2-0")]
    assert first.handle.ends_at - time.monotonic() == pytest.approx(kept, abs=0.5)
    assert first.handle.needs_proof_at - time.monotonic() == pytest.approx(0.7 * kept, abs=0.5)


# -- maintenance


async def test_the_first_receive_takes_over_what_has_timed_out() -> None:
    connection = Connection()
    consumer = consumer_on(connection)
    consumer._maintain_at = 0.0
    connection.maintenance = (-1, b"5-0", [[b"1-0", [b"body", b"x"], 4]])
    (delivery,) = await consumer.receive(2, 0.0)
    assert delivery.attempt == 4
    assert connection.scripts == [("maintain", 30_000, 2, "0-0", 200, FORGET_SILENT_AFTER_MS)]
    assert consumer._maintain_at - time.monotonic() == pytest.approx(1.0, abs=0.5)
    await consumer.maintain(1)
    assert connection.scripts[-1] == ("maintain", 30_000, 1, b"5-0", 200, 0)


@pytest.mark.parametrize(
    ("window", "next_due_ms", "interval"), [(30.0, -1, 1.0), (30.0, 200, 0.2), (30.0, 0, 0.0), (2.0, 5000, 0.4)]
)
async def test_it_is_done_again_when_the_next_message_is_due(window: float, next_due_ms: int, interval: float) -> None:
    connection = Connection()
    consumer = consumer_on(connection, window=window)
    connection.maintenance = (next_due_ms, "0-0", [])
    before = time.monotonic()
    await consumer.maintain(1)
    assert before + interval <= consumer._maintain_at <= time.monotonic() + interval


@pytest.mark.parametrize(
    ("fields", "count", "attempt"),
    [
        ([], [], 1),
        ([], [3], 3),
        ([b"attempts", b"4"], [], 5),
        ([b"attempts", b"4"], [2], 6),
        ([b"attempts", b"odd"], [2], 2),
    ],
)
async def test_an_attempt_counts_those_before_the_entry_was_added_again(
    fields: list[bytes], count: list[int], attempt: int
) -> None:
    consumer = consumer_on(Connection())
    (delivery,) = consumer._make_deliveries([[b"1-0", [b"body", b"x", *fields], *count]])
    assert delivery.attempt == attempt


async def test_a_message_that_another_group_nacked_is_acked_and_not_delivered() -> None:
    connection = Connection()
    consumer = consumer_on(connection)
    fields = [b"body", b"x", b"group"]
    deliveries = consumer._make_deliveries([[b"1-0", [*fields, b"other"]], [b"2-0", [*fields, b"g"]]])
    assert [delivery.handle.key for delivery in deliveries] == [b"2-0"]
    await consumer.flush()
    assert connection.sent == [("XACK", "eo:{q}", "g", b"1-0")]


async def test_close_gives_back_what_is_unsettled_if_it_has_ever_read() -> None:
    connection = Connection()
    consumer, deliveries = await received(connection, b"1-0", b"2-0")
    await consumer.ack(deliveries[:1])
    await consumer.close()
    assert connection.sent == [("XACK", "eo:{q}", "g", b"1-0")]
    assert [script[0] for script in connection.scripts] == ["leave", "maintain"]
    assert await consumer.ack(deliveries) == [False, False]
    unread = Connection()
    never = consumer_on(unread)
    never._maintain_at = 0.0
    await never.close()
    assert unread.scripts == []


# -- dead letters


async def test_dead_letters_are_listed_page_by_page() -> None:
    dead_letters, connection = RedisDeadLetters(ENDPOINT, KEYS), Connection()
    dead_letters._connection = connection  # type: ignore[assignment]
    listed = [[b"%d-0" % n, [b"body", b"x"]] for n in range(3)]
    connection.replies = [[listed], [listed[2:]], [listed[:2]]]
    page, cursor = await dead_letters.browse(2)
    assert ([dead_letter.id for dead_letter in page], cursor) == (["0-0", "1-0"], "1-0")
    page, cursor = await dead_letters.browse(2, cursor)
    assert ([dead_letter.id for dead_letter in page], cursor) == (["2-0"], None)
    assert (await dead_letters.browse(2))[1] is None
    assert [command[2:] for command in connection.sent] == [
        ("-", "+", "COUNT", 3),
        ("(1-0", "+", "COUNT", 3),
        ("-", "+", "COUNT", 3),
    ]
    connection.replies = [[2]]
    assert await dead_letters.remove(["1-0", "2-0"]) == 2
    assert await dead_letters.remove([]) == 0
    assert len(connection.sent) == 4
