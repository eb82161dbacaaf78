"""A batch that is being published: confirms, returns and losses, in the orders in which a server may send them."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from effectonce.backends.rabbitmq.endpoint import RabbitMQEndpoint
from effectonce.backends.rabbitmq.packets import MAX_BODY_BYTES, Content, make_content
from effectonce.backends.rabbitmq.publish_gate import PublishGate
from effectonce.backends.rabbitmq.publisher import ConfirmedPublisher, RabbitMQPublisher, _UnconfirmedBatch
from effectonce.backends.rabbitmq.queues import MissingRabbitMQQueue, QueueDeclarations
from effectonce.contracts import Packet
from effectonce.errors import BrokerUnavailable, ConfigurationError
from effectonce.values.urls import Address
from tests.harness.waiting import auntil

ENDPOINT = RabbitMQEndpoint(Address("amqp://h"))


def batch_of(*bodies: bytes, first_tag: int = 1) -> _UnconfirmedBatch:
    return _UnconfirmedBatch([Content(b"properties", body) for body in bodies], first_tag, ENDPOINT)


def header_of(properties: bytes = b"properties") -> bytes:
    return bytes(12) + properties


async def test_a_batch_is_done_when_every_message_is_confirmed() -> None:
    batch = batch_of(b"a", b"b", first_tag=5)
    batch.handle_confirm(6, False, True)
    assert not batch.done.done()
    batch.handle_confirm(5, False, True)
    assert batch.done.done()
    assert batch.outcomes == [None, None]


async def test_one_confirm_may_be_for_all_before_it() -> None:
    batch = batch_of(b"a", b"b", b"c")
    batch.handle_confirm(2, True, True)
    assert not batch.done.done()
    batch.handle_confirm(3, True, True)
    assert batch.done.done()


async def test_f44_a_message_that_was_not_taken_fails_alone() -> None:
    batch = batch_of(b"a", b"b", b"c", first_tag=5)
    batch.handle_confirm(5, True, True)
    batch.handle_confirm(6, False, False)
    batch.handle_confirm(7, False, True)
    assert [type(outcome) for outcome in batch.outcomes] == [type(None), BrokerUnavailable, type(None)]


async def test_a_confirm_that_comes_twice_or_after_the_end_changes_nothing() -> None:
    batch = batch_of(b"a")
    for _ in range(2):
        batch.handle_confirm(1, False, True)
    batch.handle_confirm(1, False, False)
    batch.handle_loss(BrokerUnavailable("late"))
    assert batch.outcomes == [None]
    assert batch.done.result() is None


async def test_a_returned_message_is_found_by_its_content() -> None:
    batch = batch_of(b"a", b"b", b"b", b"c")
    for _ in range(2):
        batch.handle_return("q", header_of(), b"b")
    assert [isinstance(outcome, MissingRabbitMQQueue) for outcome in batch.outcomes] == [False, True, True, False]


@pytest.mark.parametrize(("properties", "body"), [(b"changed", b"a"), (b"properties", b"changed")])
async def test_a_returned_message_that_the_server_has_changed_may_be_any_of_them(
    properties: bytes, body: bytes
) -> None:
    batch = batch_of(b"a", b"b")
    batch.handle_return("q", header_of(properties), body)
    assert all(isinstance(outcome, MissingRabbitMQQueue) for outcome in batch.outcomes)


async def test_f45_a_lost_channel_is_the_outcome_of_the_batch() -> None:
    batch = batch_of(b"a")
    batch.handle_loss(BrokerUnavailable("gone"))
    with pytest.raises(BrokerUnavailable, match="gone"):
        await asyncio.wait_for(batch.done, 5)


# -- publishing, with a stand-in for the channel


class Channel:
    """A channel with publisher confirms, and its connection. ``answers`` are what the server does after each write."""

    number, frame_max, lost = 1, 4096, None

    def __init__(self) -> None:
        self.connection = self
        self.commands: Any = self
        self.gate = PublishGate("amqp://h", 0.05)
        self.writes: list[bytes] = []
        self.failures: list[Exception] = []
        self.answers: list[Any] = []
        self.opened = 0
        self.abandoned = False
        self.declared: list[str] = []
        self.on_confirm: Any = None
        self.on_return: Any = None
        self.on_lost: Any = None

    @property
    def Confirm(self) -> Any:
        return self

    def Select(self) -> str:
        return "confirm.select"

    async def open_channel(self) -> Channel:
        self.opened += 1
        return self

    async def call(self, *commands: Any) -> list[Any]:
        return []

    def write(self, data: bytes) -> None:
        self.writes.append(data)
        if self.answers:
            self.answers.pop(0)()

    async def drain(self) -> None:
        pass

    def fail(self, error: Exception) -> None:
        self.failures.append(error)

    def abandon(self, error: Exception) -> None:
        self.abandoned = True
        self.lost = error  # type: ignore[assignment]

    def fail_unanswered(self) -> Exception:
        return BrokerUnavailable("did not answer")

    async def close(self) -> None:
        pass


@pytest.fixture
def channel() -> Channel:
    return Channel()


def publisher_on(channel: Channel, timeout: str = "10s") -> ConfirmedPublisher:
    endpoint = RabbitMQEndpoint(Address(f"amqp://h?timeout={timeout}"))
    publisher = ConfirmedPublisher(QueueDeclarations(endpoint, "quorum", "", True), "test")

    async def open() -> Any:
        return channel

    publisher._connection._open = open
    return publisher


CONTENTS = [Content(b"", b"a"), Content(b"", b"b")]


async def test_tags_go_on_from_one_batch_to_the_next(channel: Channel) -> None:
    publisher = publisher_on(channel)
    channel.answers = [lambda: channel.on_confirm(2, True, True), lambda: channel.on_confirm(4, True, True)]
    for _ in range(2):
        assert await publisher.publish("", "q", CONTENTS) == [None, None]
    assert channel.opened == 1


async def test_a_lost_channel_is_opened_again_and_counts_from_one(channel: Channel) -> None:
    publisher = publisher_on(channel)
    channel.answers = [lambda: channel.on_confirm(2, True, True)] * 2
    await publisher.publish("", "q", CONTENTS)
    other = Channel()
    other.answers = [lambda: other.on_confirm(2, True, True)]
    channel.lost = BrokerUnavailable("gone")  # type: ignore[assignment]
    channel.open_channel = other.open_channel  # type: ignore[method-assign]

    async def open() -> Any:
        return other

    publisher._connection._open = open
    assert await publisher.publish("", "q", CONTENTS) == [None, None]
    assert other.writes


async def test_what_was_returned_is_published_again_once_the_queue_is_declared(channel: Channel) -> None:
    publisher = publisher_on(channel)

    def return_second() -> None:
        channel.on_return("q", bytes(12), b"b")
        channel.on_confirm(2, True, True)

    async def declare(channel: Any) -> None:
        channel.declared.append("q")

    channel.answers = [return_second, lambda: channel.on_confirm(3, False, True)]
    assert await publisher.publish("", "q", CONTENTS, declare) == [None, None]
    assert channel.declared == ["q"]
    assert len(channel.writes) == 2


async def test_without_the_right_to_declare_what_was_returned_is_refused(channel: Channel) -> None:
    publisher = publisher_on(channel)

    def return_second() -> None:
        channel.on_return("q", bytes(12), b"b")
        channel.on_confirm(2, True, True)

    channel.answers = [return_second]
    outcomes = await publisher.publish("", "q", CONTENTS)
    assert [type(outcome) for outcome in outcomes] == [type(None), MissingRabbitMQQueue]


async def test_f36_a_batch_that_is_not_confirmed_ends_in_time(channel: Channel) -> None:
    with pytest.raises(BrokerUnavailable, match="did not answer"):
        await publisher_on(channel, "10ms").publish("", "q", CONTENTS)


async def test_a_cancelled_batch_ends_the_connection_since_its_returns_are_under_way(channel: Channel) -> None:
    task = asyncio.create_task(publisher_on(channel).publish("", "q", CONTENTS))
    await auntil(lambda: bool(channel.writes))
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert len(channel.failures) == 1


# -- a server that takes no messages now


async def test_f80_nothing_is_written_while_the_server_blocks_publishers_and_the_error_says_why(
    channel: Channel,
) -> None:
    publisher = publisher_on(channel)
    channel.gate.close(0, "low on memory")
    for _ in range(2):  # a relay or a worker tries again
        with pytest.raises(BrokerUnavailable, match=r"takes no messages now \(low on memory\)"):
            await publisher.publish("", "q", CONTENTS)
    assert channel.writes == []
    assert channel.failures == []  # the connection stays: on a new one, nothing would be known of the block


async def test_f80_a_block_that_ends_in_time_is_waited_for(channel: Channel) -> None:
    publisher = publisher_on(channel)
    channel.gate = PublishGate("amqp://h", 60.0)
    channel.answers = [lambda: channel.on_confirm(2, True, True)]
    channel.gate.close(0, "low on memory")
    publishing = asyncio.create_task(publisher.publish("", "q", CONTENTS))
    await asyncio.sleep(0.01)
    assert channel.writes == []
    channel.gate.open(0)
    assert await asyncio.wait_for(publishing, 5) == [None, None]


async def test_f80_the_limit_counts_from_the_block_and_not_from_each_call(channel: Channel) -> None:
    publisher = publisher_on(channel)
    channel.gate = PublishGate("amqp://h", 0.2)
    channel.gate.close(0, "low on disk")
    loop = asyncio.get_running_loop()
    begun = loop.time()
    for _ in range(20):  # one after another: each of them waiting for 0.2 s would take 4 s
        with pytest.raises(BrokerUnavailable):
            await publisher.publish("", "q", CONTENTS)
    assert loop.time() - begun < 2.0


async def test_f80_a_batch_that_is_on_its_way_when_the_server_blocks_keeps_its_connection(channel: Channel) -> None:
    publisher = publisher_on(channel, "10ms")
    channel.answers = [lambda: channel.gate.close(0, "low on memory")]
    with pytest.raises(BrokerUnavailable, match="low on memory"):
        await publisher.publish("", "q", CONTENTS)
    assert channel.abandoned
    assert channel.failures == []
    with pytest.raises(BrokerUnavailable, match="low on memory"):
        await publisher.publish("", "q", CONTENTS)
    assert len(channel.writes) == 1
    channel.gate.open(0)
    other = Channel()
    other.gate = channel.gate
    other.answers = [lambda: other.on_confirm(2, True, True)]
    channel.open_channel = other.open_channel  # type: ignore[method-assign]
    channel.lost = None
    publisher._channel = None
    assert await publisher.publish("", "q", CONTENTS) == [None, None]


async def test_f80_a_batch_on_its_way_is_waited_for_as_long_as_the_block_may_last(channel: Channel) -> None:
    """Sent again after its own timeout it would be there twice: the server confirms it when it goes on."""
    publisher = publisher_on(channel, "10ms")
    channel.gate = PublishGate("amqp://h", 60.0)
    channel.answers = [lambda: channel.gate.close(0, "low on memory")]
    publishing = asyncio.create_task(publisher.publish("", "q", CONTENTS))
    await asyncio.sleep(0.1)
    assert not publishing.done()
    channel.gate.open(0)
    channel.on_confirm(2, True, True)
    assert await asyncio.wait_for(publishing, 5) == [None, None]


async def test_f80_a_gate_with_two_causes_opens_when_both_are_gone() -> None:
    gate = PublishGate("amqp://h", 0.01)
    gate.close(0, "low on memory")
    gate.close(3, "it has paused the channel")
    gate.open(0)
    assert not gate.is_open
    gate.open(3)
    await asyncio.wait_for(gate.wait(), 5)


async def test_a_missing_queue_is_not_declared_into_a_block(channel: Channel) -> None:
    publisher = publisher_on(channel)

    def return_and_block() -> None:
        channel.on_return("q", bytes(12), b"b")
        channel.on_confirm(2, True, True)
        channel.gate.close(0, "low on memory")

    async def declare(channel: Any) -> None:
        channel.declared.append("q")

    channel.answers = [return_and_block]
    with pytest.raises(BrokerUnavailable, match="low on memory"):
        await publisher.publish("", "q", CONTENTS, declare)
    assert channel.declared == []


async def test_an_empty_batch_opens_no_channel(channel: Channel) -> None:
    assert await publisher_on(channel).publish("", "q", []) == []
    assert channel.opened == 0


@pytest.mark.parametrize(
    ("exchange", "declares", "refusal"),
    [
        ("", True, None),
        ("", False, "amqp://h has no queue q; declare=no leaves that to you"),
        ("shop", True, "exchange shop of amqp://h has no queue q bound to it; start its worker"),
    ],
)
async def test_a_missing_queue_is_declared_unless_others_do_that(
    channel: Channel, exchange: str, declares: bool, refusal: str | None
) -> None:
    declared = []

    class Declarations(QueueDeclarations):
        async def declare(self, channel: Any, queue: str) -> None:
            declared.append(queue)

    queues = Declarations(ENDPOINT, "quorum", exchange, declares)
    publisher = RabbitMQPublisher(queues)
    publisher._publisher = publisher_on(channel)

    def return_first() -> None:
        channel.on_return("q", header_of(make_content(Packet(body=b"a", id="id")).properties), b"a")
        channel.on_confirm(1, False, True)

    channel.answers = [return_first, lambda: channel.on_confirm(2, False, True)]
    if refusal is None:
        assert await publisher.publish("q", [Packet(body=b"a", id="id")]) == [None]
        assert declared == ["q"]
    else:
        with pytest.raises(MissingRabbitMQQueue, match=refusal):
            await publisher.publish("q", [Packet(body=b"a", id="id")])
        assert declared == []


async def test_f44_a_packet_that_has_no_form_on_the_wire_harms_itself_only(channel: Channel) -> None:
    publisher = RabbitMQPublisher(QueueDeclarations(ENDPOINT, "quorum", "", True))
    publisher._publisher = publisher_on(channel)
    channel.answers = [lambda: channel.on_confirm(1, False, True)]
    outcomes = await publisher.publish("q", [Packet(body=b"x", id="i" * 256), Packet(body=b"y", id="i" * 255)])
    assert [type(outcome) for outcome in outcomes] == [ConfigurationError, type(None)]


def test_the_longest_body_is_taken_and_one_byte_more_is_not() -> None:
    assert make_content(Packet(body=bytes(MAX_BODY_BYTES)))
    with pytest.raises(ValueError, match="the limit is"):
        make_content(Packet(body=bytes(MAX_BODY_BYTES + 1)))
