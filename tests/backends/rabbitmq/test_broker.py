"""RabbitMQ: the contract on a real server, and what is RabbitMQ's own."""

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Iterator
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import pika
import pytest

import effectonce as eo
from effectonce.babelqueue import headers as bq_headers
from effectonce.babelqueue.envelope import BabelQueue
from effectonce.backends.rabbitmq.broker import RabbitMQBackend
from effectonce.backends.rabbitmq.queues import MAX_DELAY_MS, delay_step
from effectonce.contracts import Packet
from effectonce.errors import BrokerUnavailable, ConfigurationError, InvalidOption
from effectonce.message import Message
from effectonce.testing.suites import Site, broker_cases, broker_suite
from effectonce.values.urls import Address
from tests import conftest
from tests.backends.queue_under_test import QueueUnderTest, Traffic, assert_exits_silently, receive
from tests.harness import installed
from tests.harness.process import free_port
from tests.harness.proxy import FaultProxy
from tests.harness.rabbitmq import RabbitMQ, rabbitmq
from tests.harness.waiting import auntil

SECRET = "canary-Zq7"


def backend_at(url: str, **options: str) -> RabbitMQBackend:
    extra = "&".join(f"{name}={value}" for name, value in options.items())
    return RabbitMQBackend(Address(f"{url}?{extra}" if extra else url))


@pytest.fixture
def proxy(rabbitmq_url: str) -> Iterator[FaultProxy]:
    address = Address(rabbitmq_url)
    with FaultProxy(address.port or 5672, address.host) as proxy:
        yield proxy


@pytest.fixture(scope="module")
def own() -> Iterator[RabbitMQ]:
    """A server that may be killed, and that does not wait 30 minutes for an ack."""
    try:
        server = rabbitmq(consumer_timeout="600", channel_tick_interval="100")
    except installed.Missing as missing:
        conftest.skip_or_fail(str(missing))
    with server:
        yield server
    assert not server.alive
    assert not server.epmd.alive


# -- the contract

WINDOWED = (
    "a_cancelled_receive_loses_nothing",
    "an_acked_delivery_is_not_redelivered",
    "closing_sends_the_acks_that_wait",
    "an_attempt_that_was_never_settled_counts",
    "a_dead_consumers_deliveries_are_redelivered_to_another",
    "a_stale_ack_is_refused_and_leaves_the_heirs_delivery_alone",
    "a_stale_nack_does_not_deliver_it_twice",
    "a_stale_dead_letter_is_refused",
    "a_dead_letter_is_not_delivered_again",
)
ON_CLASSIC = (
    "what_is_confirmed_is_delivered",
    "each_delivery_is_settled_alone",
    "a_delay_keeps_a_delivery_back_that_long",
    "a_delayed_delivery_outlives_its_consumer",
    "a_dead_letter_keeps_its_bytes_and_the_reason",
    "dead_letters_are_paged_oldest_first",
    "removing_removes_only_the_named_ones",
    "both_ends_recover_from_a_broken_connection",
)


def all_but(*names: str) -> tuple[str, ...]:
    return tuple(case.name for case in broker_cases() if case.name not in names)


class TestQuorum(broker_suite(skip=WINDOWED)):  # type: ignore[misc]
    @pytest.fixture
    def site(self, rabbitmq_url: str, proxy: FaultProxy) -> Site:
        return Site(
            backend=backend_at(proxy.through(rabbitmq_url)),
            cut=proxy.reset,
            unreachable=backend_at(f"amqp://guest:guest@127.0.0.1:{free_port()}/"),
            locked=backend_at(rabbitmq_url.replace("guest:guest", f"guest:{SECRET}")),
            secret=SECRET,
        )


class TestClassic(broker_suite(skip=all_but(*ON_CLASSIC))):  # type: ignore[misc]
    @pytest.fixture
    def site(self, rabbitmq_url: str, proxy: FaultProxy) -> Site:
        return Site(backend=backend_at(proxy.through(rabbitmq_url), queue_type="classic"), cut=proxy.reset)


@pytest.mark.long
@pytest.mark.chaos
class TestBriefWindow(broker_suite(skip=all_but(*WINDOWED))):  # type: ignore[misc]
    """F55, with a consumer_timeout of 0.6 s in the place of 30 minutes: the broker ends the channel, and all that was
    delivered on it is redelivered."""

    @pytest.fixture
    def site(self, own: RabbitMQ) -> Site:
        return Site(backend=backend_at(own.url, ack_window="0.8s"))


# -- words for what follows


@pytest.fixture
async def under_test(rabbitmq_url: str, proxy: FaultProxy, unique_name: str) -> AsyncIterator[QueueUnderTest]:
    under_test = QueueUnderTest(backend_at(proxy.through(rabbitmq_url), timeout="3s"), unique_name)
    yield under_test
    proxy.heal()
    await under_test.close()


@pytest.fixture
def channel(rabbitmq_url: str) -> Iterator[Any]:
    """Another client of the same server."""
    connection = pika.BlockingConnection(pika.URLParameters(rabbitmq_url))
    yield connection.channel()
    connection.close()


# -- publishing


class TestPublishing:
    async def test_f45_what_reaches_no_queue_is_refused(self, rabbitmq_url: str, unique_name: str) -> None:
        under_test = QueueUnderTest(backend_at(rabbitmq_url, declare="no"), unique_name)
        with pytest.raises(ConfigurationError, match="declare=no leaves that to you"):
            await under_test.publisher.publish(unique_name, [Packet(body=b"1"), Packet(body=b"2")])
        await under_test.close()

    async def test_f45_an_exchange_refuses_what_no_queue_is_bound_for(
        self, rabbitmq_url: str, unique_name: str, channel: Any
    ) -> None:
        channel.exchange_declare(f"{unique_name}.x", "topic", durable=True)
        under_test = QueueUnderTest(backend_at(rabbitmq_url, exchange=f"{unique_name}.x"), unique_name)
        with pytest.raises(ConfigurationError, match="start its worker"):
            await under_test.publisher.publish(unique_name, [Packet(body=b"early")])
        consumer = await under_test.consumer()
        await under_test.publish(b"bound")
        assert [d.packet.body for d in await receive(consumer, 1)] == [b"bound"]
        await under_test.close()

    async def test_f45_without_a_confirm_nothing_is_known(self, under_test: QueueUnderTest, proxy: FaultProxy) -> None:
        await under_test.publish(b"before")
        proxy.drop_reply(to=b"unheard")
        with pytest.raises(BrokerUnavailable, match="broke"):
            await under_test.publish(b"unheard")
        await under_test.publish(b"unheard", b"after")
        bodies = [delivery.packet.body for delivery in await receive(await under_test.consumer(), 4)]
        assert bodies == [b"before", b"unheard", b"unheard", b"after"]  # the broker had it: the same id, twice

    async def test_f36_a_broker_that_hangs_is_unavailable(
        self, rabbitmq_url: str, proxy: FaultProxy, unique_name: str
    ) -> None:
        under_test = QueueUnderTest(backend_at(proxy.through(rabbitmq_url), timeout="0.5s"), unique_name)
        await under_test.publish(b"before")
        proxy.blackhole = True
        with pytest.raises(BrokerUnavailable, match=r"did not answer within 0\.5 s"):
            await under_test.publish(b"swallowed")
        proxy.heal()
        await under_test.publish(b"after")
        await under_test.close()

    async def test_f44_one_bad_packet_harms_itself_only(self, under_test: QueueUnderTest) -> None:
        packets = [
            Packet(body=b"good", id="1"),
            Packet(body=b"", id="x" * 256),
            Packet(body=b"", headers={"n" * 256: "v"}),
            Packet(body=b"", headers={"content-type": "v" * 256}),
            Packet(body=bytes(16 * 1024 * 1024 + 1)),
            Packet(body=b"also good", id="x" * 255, headers={"n" * 255: "v" * 100_000}),
        ]
        outcomes = await under_test.publisher.publish(under_test.queue, packets)
        assert [isinstance(outcome, ConfigurationError) for outcome in outcomes] == [
            False, True, True, True, True, False,
        ]  # fmt: skip
        assert [d.packet for d in await receive(await under_test.consumer(), 2)] == [packets[0], packets[5]]

    async def test_f44_what_a_full_queue_does_not_take_is_refused(
        self, rabbitmq_url: str, unique_name: str, channel: Any
    ) -> None:
        arguments = {"x-queue-type": "classic", "x-max-length": 2, "x-overflow": "reject-publish"}
        channel.queue_declare(unique_name, durable=True, arguments=arguments)
        under_test = QueueUnderTest(backend_at(rabbitmq_url, declare="no"), unique_name)
        packets = [Packet(body=b"%d" % n) for n in range(20)]
        outcomes = [(await under_test.publisher.publish(unique_name, [packet]))[0] for packet in packets]
        assert outcomes[:2] == [None, None]
        assert isinstance(outcomes[-1], BrokerUnavailable)
        kept = channel.queue_declare(unique_name, passive=True).method.message_count
        assert kept == outcomes.count(None)
        await under_test.close()

    async def test_a_body_of_several_frames(self, under_test: QueueUnderTest) -> None:
        body = os.urandom(131_064 * 3)  # exactly three, and next to it
        await under_test.publisher.publish(
            under_test.queue, [Packet(body=part) for part in (body, body + b"!", body[:-1])]
        )
        found = await receive(await under_test.consumer(), 3)
        assert [len(d.packet.body) for d in found] == [len(body), len(body) + 1, len(body) - 1]
        assert found[0].packet.body == body

    async def test_several_tasks_share_the_confirms(self, under_test: QueueUnderTest) -> None:
        """Dead letters and delays are sent by many handlers at once, each waiting for its own."""
        consumer = await under_test.consumer()
        await under_test.publish(*(b"%d" % n for n in range(40)))
        held = await receive(consumer, 40)
        answers = await asyncio.gather(
            *(consumer.dead_letter(delivery, {"n": "x"}) for delivery in held[:20]),
            *(consumer.nack([delivery], 0.1 * (n % 3 + 1)) for n, delivery in enumerate(held[20:])),
        )
        assert answers == [True] * 20 + [[True]] * 20
        assert {d.packet.body for d in await receive(consumer, 20)} == {b"%d" % n for n in range(20, 40)}
        assert await under_test.dead_letters().count() == 20


# -- the channel that delivered


class TestChannels:
    async def test_f56_a_tag_of_a_lost_channel_is_never_used(
        self, under_test: QueueUnderTest, proxy: FaultProxy
    ) -> None:
        consumer = await under_test.consumer()
        await under_test.publish(b"first")
        (old,) = await receive(consumer, 1)
        proxy.reset()
        with pytest.raises(BrokerUnavailable, match="stopped"):
            await receive(consumer, 1)
        (new,) = await receive(consumer, 1)
        assert (new.handle.tag, new.attempt) == (old.handle.tag, 2)  # the same number for another delivery
        for settled in (
            consumer.ack([old]),
            consumer.nack([old]),
            consumer.nack([old], 0.1),
            consumer.extend([old], 9),
        ):
            assert await settled == [False]
        assert await consumer.dead_letter(old, {}) is False
        await consumer.close()
        assert [d.packet.body for d in await receive(await under_test.consumer(), 1)] == [b"first"]

    async def test_f56_a_channel_that_the_broker_closes_is_opened_again(
        self, under_test: QueueUnderTest, caplog: pytest.LogCaptureFixture
    ) -> None:
        consumer = await under_test.consumer()
        await under_test.publish(b"held")
        (held,) = await receive(consumer, 1)
        channel = held.handle.consuming.channel
        channel.ack([9999])  # no tag of this channel
        (again,) = await receive(consumer, 1)
        assert "unknown delivery tag 9999" in caplog.text
        assert await consumer.ack([held, again]) == [False, True]

    async def test_a_queue_that_is_deleted_is_a_configuration_error(
        self, under_test: QueueUnderTest, channel: Any
    ) -> None:
        consumer = await under_test.consumer()
        waiting = asyncio.ensure_future(consumer.receive(1, 20.0))
        await asyncio.sleep(0.1)
        channel.queue_delete(under_test.queue)
        with pytest.raises(ConfigurationError, match="has no queue"):
            await waiting

    async def test_f59_a_silent_connection_is_given_up(
        self, rabbitmq_url: str, proxy: FaultProxy, unique_name: str
    ) -> None:
        under_test = QueueUnderTest(backend_at(proxy.through(rabbitmq_url), heartbeat="1"), unique_name)
        consumer = await under_test.consumer()
        await consumer.receive(1, 0.0)
        proxy.blackhole = True
        with pytest.raises(BrokerUnavailable, match="silent"):
            await consumer.receive(1, 20.0)
        proxy.heal()
        await under_test.publish(b"after")
        assert len(await receive(consumer, 1)) == 1
        await under_test.close()

    async def test_f16_a_cancelled_opening_leaves_a_consumer_that_works(
        self, under_test: QueueUnderTest, proxy: FaultProxy
    ) -> None:
        consumer = await under_test.consumer()
        await under_test.publish(b"kept")
        proxy.delay = 0.02
        for steps in range(12):
            task = asyncio.ensure_future(consumer.receive(1, 5.0))
            await asyncio.sleep(steps * 0.02)
            task.cancel()
            for delivery in await asyncio.gather(task, return_exceptions=True):
                if isinstance(delivery, list):
                    await consumer.nack(delivery)
        proxy.heal()
        assert [d.packet.body for d in await receive(consumer, 1)] == [b"kept"]


# -- delays


class TestDelays:
    @pytest.mark.parametrize(
        ("seconds", "milliseconds"),
        [(0.001, 100), (0.1, 100), (0.101, 150), (1, 1000), (1.001, 1500), (7, 8000), (8.1, 10_000), (60, 60_000)],
    )
    def test_a_delay_is_rounded_up_to_a_step(self, seconds: float, milliseconds: int) -> None:
        assert delay_step(seconds) == milliseconds

    def test_no_delay_is_cut_short_below_seven_weeks(self) -> None:
        assert all(delay_step(seconds) >= seconds * 1000 for seconds in range(1, MAX_DELAY_MS // 1000, 99_991))
        assert delay_step(1e9) == MAX_DELAY_MS

    async def test_a_lost_confirm_of_a_delay_doubles_and_loses_nothing(
        self, under_test: QueueUnderTest, proxy: FaultProxy
    ) -> None:
        consumer = await under_test.consumer()
        await under_test.publish(b"warm", b"held")
        warm, held = await receive(consumer, 2)
        assert await consumer.nack([warm], 0.1) == [True]  # the delay's queue is there now
        proxy.drop_reply(to=f"{under_test.queue}.delay.".encode())
        with pytest.raises(BrokerUnavailable):
            await consumer.nack([held], 0.1)
        assert await consumer.nack([held], 0.1) == [True]
        found = await receive(consumer, 3)
        assert sorted(d.packet.body for d in found) == [b"held", b"held", b"warm"]
        assert {d.attempt for d in found} == {2}

    async def test_what_the_delay_does_not_take_stays_unsettled(self, under_test: QueueUnderTest, channel: Any) -> None:
        full = {"x-queue-type": "classic", "x-max-length": 0, "x-overflow": "reject-publish"}
        channel.queue_declare(f"{under_test.queue}.delay.100", durable=True, arguments=full)
        consumer = await under_test.consumer()
        await under_test.publish(b"kept")
        held = await receive(consumer, 1)
        with pytest.raises(BrokerUnavailable, match="rejected the message"):
            await consumer.nack(held, 0.1)
        assert await consumer.nack(held) == [True]
        assert [d.packet.body for d in await receive(consumer, 1)] == [b"kept"]

    async def test_what_waits_is_kept_in_a_queue_that_hands_on_safely(
        self, under_test: QueueUnderTest, channel: Any
    ) -> None:
        consumer = await under_test.consumer()
        await under_test.publish(b"later")
        await consumer.nack(await receive(consumer, 1), 50)
        name = f"{under_test.queue}.delay.60000"
        assert channel.queue_declare(name, passive=True).method.message_count == 1
        with pytest.raises(pika.exceptions.ChannelClosedByBroker, match=r"x-dead-letter-strategy.*at-least-once"):
            channel.queue_declare(
                name,
                durable=True,
                arguments={
                    "x-queue-type": "quorum",
                    "x-delivery-limit": 1_000_000,
                    "x-message-ttl": 60_000,
                    "x-dead-letter-exchange": "",
                    "x-dead-letter-routing-key": under_test.queue,
                    "x-overflow": "reject-publish",
                },
            )

    async def test_a_message_that_is_published_with_a_delay_waits_in_the_same_queues(
        self, under_test: QueueUnderTest, channel: Any
    ) -> None:
        packets = [Packet(body=b"later", id="1", delay_s=50.0), Packet(body=b"much later", id="2", delay_s=5000.0)]
        assert await under_test.publisher.publish(under_test.queue, packets) == [None, None]
        for milliseconds in (60_000, 6_000_000):  # rounded up
            waiting = channel.queue_declare(f"{under_test.queue}.delay.{milliseconds}", passive=True)
            assert waiting.method.message_count == 1
        assert channel.queue_declare(under_test.queue, passive=True).method.message_count == 0

    @pytest.mark.parametrize(
        ("option", "reason"), [("queue_type=classic", "queue_type=quorum"), ("exchange=shop", "one queue")]
    )
    def test_a_delay_is_refused_where_the_message_could_be_lost_or_go_astray(
        self, rabbitmq_url: str, option: str, reason: str
    ) -> None:
        broker = eo.connect_broker(f"{rabbitmq_url}?{option}")
        with pytest.raises(InvalidOption, match=f"{reason}.*outbox"):
            broker.publish("orders", Message(data=1), delay="1m")


# -- what others have sent


FOREIGN: dict[str, Any] = {
    "x-attempts": 3,
    "flag": True,
    "ratio": Decimal("0.5"),
    "at": datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC),
    "raw": b"\xff\x00",
    "nested": {"a": [1, "two"]},
    "nothing": None,
    "plain": "Café ☕",
}


class TestForeignMessages:
    async def test_their_headers_become_strings_and_their_properties_headers(
        self, under_test: QueueUnderTest, channel: Any
    ) -> None:
        consumer = await under_test.consumer()
        send_foreign(channel, under_test.queue)
        (found,) = await receive(consumer, 1)
        assert found.packet == Packet(
            body=b"{}",
            id="meta-id",
            headers={
                "content-type": "application/json",
                "content-encoding": "utf-8",
                "correlation-id": "trace",
                "type": "urn:babel:orders:created",
                "app-id": "babelqueue",
                "x-attempts": "3",
                "flag": "true",
                "ratio": "0.5",
                "at": "2026-01-02T03:04:05+00:00",
                "raw": "\\xff\x00",
                "nested": '{"a":[1,"two"]}',
                "nothing": "",
                "plain": "Café ☕",
            },
            numbers=frozenset(["x-attempts"]),
        )

    async def test_a_delay_keeps_them_as_they_are(
        self, under_test: QueueUnderTest, channel: Any, unique_name: str
    ) -> None:
        copies = f"{unique_name}.cc"
        channel.queue_declare(copies, durable=True)
        consumer = await under_test.consumer()
        send_foreign(channel, under_test.queue, CC=[copies])
        delivery = await receive(consumer, 1)
        await consumer.nack(delivery, 0.1)
        await consumer.close()
        properties = await auntil(lambda: channel.basic_get(under_test.queue)[1])
        kept = {name: properties.headers.get(name) for name in FOREIGN}
        assert kept == {**FOREIGN, "at": properties.headers["at"]}
        assert properties.headers["at"].replace(tzinfo=UTC) == FOREIGN["at"]  # pika gives it without its zone
        assert (properties.message_id, properties.type, properties.priority) == (
            "meta-id",
            "urn:babel:orders:created",
            4,
        )
        assert (properties.expiration, properties.user_id, properties.delivery_mode) == (None, None, 2)
        assert channel.queue_declare(copies, passive=True).method.message_count == 1  # not sent there again

    async def test_ours_have_the_properties_that_others_look_for(
        self, under_test: QueueUnderTest, channel: Any
    ) -> None:
        headers = {"content-type": "application/json", "type": "urn:x", "correlation-id": "t", "app-id": "babelqueue"}
        packet = Packet(body=b"{}", id="m-1", headers={**headers, "x-source-lang": "python"})
        assert not any(await under_test.publisher.publish(under_test.queue, [packet]))
        _, properties, _ = channel.basic_get(under_test.queue)
        assert (properties.content_type, properties.type, properties.correlation_id, properties.app_id) == (
            "application/json", "urn:x", "t", "babelqueue",
        )  # fmt: skip
        assert (properties.message_id, properties.delivery_mode) == ("m-1", 2)
        assert {**properties.headers, "x-delivery-count": 0} == {"x-source-lang": "python", "x-delivery-count": 0}

    async def test_a_babelqueue_message_is_what_its_contract_says(
        self, under_test: QueueUnderTest, channel: Any
    ) -> None:
        envelope = BabelQueue()
        message = Message(type="urn:babel:orders:created", data={"order_id": 1042}, trace_id="trace", attempt=3)
        sent = envelope.encode(message, under_test.queue)
        assert not any(await under_test.publisher.publish(under_test.queue, [sent, sent]))
        _, properties, body = channel.basic_get(under_test.queue, auto_ack=True)
        assert body == sent.body
        assert (properties.type, properties.correlation_id, properties.message_id, properties.app_id) == (
            "urn:babel:orders:created", "trace", message.id, "babelqueue",
        )  # fmt: skip
        assert properties.headers == {
            **properties.headers,
            "x-schema-version": 1,
            "x-source-lang": "python",
            "x-attempts": 2,
        }
        (found,) = await receive(await under_test.consumer(), 1)
        received = bq_headers.contract_headers(found.packet)
        assert {**received, bq_headers.CREATED: sent.headers[bq_headers.CREATED]} == sent.headers
        assert envelope.decode(found.packet).id == message.id


def send_foreign(channel: Any, queue: str, **more: Any) -> None:
    properties = pika.BasicProperties(
        content_type="application/json",
        content_encoding="utf-8",
        message_id="meta-id",
        correlation_id="trace",
        type="urn:babel:orders:created",
        app_id="babelqueue",
        user_id="guest",
        priority=4,
        expiration="60000",
        timestamp=1,
        headers={**FOREIGN, **more},
    )
    channel.basic_publish("", queue, b"{}", properties)


# -- dead letters


class TestDeadLetters:
    async def test_listing_many_keeps_them_and_their_order(self, under_test: QueueUnderTest) -> None:
        consumer = await under_test.consumer(prefetch=200)
        await under_test.publish(*(b"%d" % n for n in range(60)))
        for delivery in await receive(consumer, 60):
            await consumer.dead_letter(delivery, {})
        for limit in (30, 60, 20, 60):  # a part, all, a part of what was listed before, all
            dead_letters = under_test.dead_letters()
            page, cursor = await dead_letters.browse(limit)
            assert [int(dead_letter.packet.body) for dead_letter in page] == list(range(limit))
            assert (cursor is None) == (limit == 60)
            assert await dead_letters.count() == 60  # what a listing holds is counted too
            await dead_letters.close()

    async def test_a_cursor_leads_on_in_another_process_and_where_its_letter_is_gone(
        self, under_test: QueueUnderTest
    ) -> None:
        consumer = await under_test.consumer()
        await under_test.publish(*(b"%d" % n for n in range(6)))
        for delivery in await receive(consumer, 6):
            await consumer.dead_letter(delivery, {})
        first, second, third = under_test.dead_letters(), under_test.dead_letters(), under_test.dead_letters()
        page, cursor = await first.browse(2)
        await first.close()
        rest, _ = await second.browse(10, cursor)
        assert [dead_letter.packet.body for dead_letter in rest] == [b"2", b"3", b"4", b"5"]
        assert await second.remove([page[1].id]) == 1
        everything, _ = await third.browse(10, cursor)
        assert [dead_letter.packet.body for dead_letter in everything] == [b"0", b"2", b"3", b"4", b"5"]

    async def test_removing_in_the_middle_of_a_listing(self, under_test: QueueUnderTest) -> None:
        """As a redrive does: page by page, some are removed and some are not."""
        consumer = await under_test.consumer()
        await under_test.publish(*(b"%d" % n for n in range(7)))
        for delivery in await receive(consumer, 7):
            await consumer.dead_letter(delivery, {})
        dead_letters, seen, cursor = under_test.dead_letters(), [], None
        while True:
            page, cursor = await dead_letters.browse(3, cursor)
            seen += [int(dead_letter.packet.body) for dead_letter in page]
            await dead_letters.remove([dead_letter.id for dead_letter in page if int(dead_letter.packet.body) % 2])
            if cursor is None:
                break
        assert seen == list(range(7))
        assert [dead_letter.packet.body for dead_letter in (await dead_letters.browse(10))[0]] == [
            b"0",
            b"2",
            b"4",
            b"6",
        ]

    async def test_what_the_broker_itself_gives_up_says_why(
        self, under_test: QueueUnderTest, channel: Any, rabbitmq_url: str
    ) -> None:
        arguments = {
            "x-queue-type": "quorum",
            "x-delivery-limit": 1,
            "x-dead-letter-exchange": "",
            "x-dead-letter-routing-key": f"{under_test.queue}.dead",
        }
        channel.queue_declare(under_test.queue, durable=True, arguments=arguments)
        under_test.backend = backend_at(rabbitmq_url, declare="no")
        await under_test.publish(b"1", b"2")
        for _ in range(2):  # consumers that end without an ack: RabbitMQ 4.3 does not count what one gives back
            consumer = await under_test.consumer()
            await receive(consumer, 2)
            await consumer.close()
        dead_letters = under_test.dead_letters()

        async def both() -> bool:
            return bool(await dead_letters.count() == 2)

        await auntil(both)
        page, _ = await dead_letters.browse(5)
        assert {dead_letter.packet.headers["x-first-death-reason"] for dead_letter in page} == {"delivery_limit"}
        assert len({dead_letter.id for dead_letter in page}) == 2
        assert await dead_letters.remove([page[0].id]) == 1
        assert [dead_letter.packet.body for dead_letter in (await dead_letters.browse(5))[0]] == [page[1].packet.body]


# -- queues and addresses


class TestSettings:
    async def test_a_queue_made_otherwise_names_the_remedy(
        self, rabbitmq_url: str, unique_name: str, channel: Any
    ) -> None:
        channel.queue_declare(unique_name, durable=True)  # as BabelQueue does
        with pytest.raises(ConfigurationError, match="use queue_type=classic if it is a classic queue, declare=no"):
            await backend_at(rabbitmq_url).declare(unique_name, group="g")
        for options in ({"queue_type": "classic"}, {"declare": "no"}):
            backend = backend_at(rabbitmq_url, **options)
            channel.queue_delete(f"{unique_name}.dead")
            await backend.declare(unique_name, group="g")
            await backend.check(unique_name, group="g")

    async def test_a_prefetch_above_the_protocols_limit_is_the_limit(self, rabbitmq_url: str, unique_name: str) -> None:
        under_test = QueueUnderTest(backend_at(rabbitmq_url), unique_name)
        consumer = await under_test.consumer(prefetch=100_000)
        await under_test.publish(b"first")
        assert [delivery.packet.body for delivery in await receive(consumer, 1)] == [b"first"]
        await under_test.close()

    async def test_check_finds_what_is_missing(self, rabbitmq_url: str, unique_name: str, channel: Any) -> None:
        backend = backend_at(rabbitmq_url)
        with pytest.raises(ConfigurationError, match=f"has no queue {unique_name};"):
            await backend.check(unique_name, group="g")
        await backend.declare(unique_name, group="g")
        channel.queue_delete(f"{unique_name}.dead")
        with pytest.raises(ConfigurationError, match=rf"has no queue {unique_name}\.dead;"):
            await backend.check(unique_name, group="g")

    async def test_a_vhost_that_is_not_there(self, rabbitmq_url: str) -> None:
        with pytest.raises(ConfigurationError, match="vhost 'shop'"):
            await backend_at(f"{rabbitmq_url}shop").declare("q", group="g")

    async def test_another_kind_of_server(self, nats_url: str, rabbitmq_url: str) -> None:
        where = Address(nats_url).netloc
        with pytest.raises(ConfigurationError, match="does not speak AMQP"):
            await backend_at(f"amqp://{where}").declare("q", group="g")
        with pytest.raises(ConfigurationError, match="TLS"):
            await backend_at(rabbitmq_url.replace("amqp://", "amqps://")).declare("q", group="g")

    async def test_f59_each_failed_connection_asks_for_more_patience(self) -> None:
        consumer = backend_at(f"amqp://127.0.0.1:{free_port()}").consumer("q", group="g", prefetch=1)
        waits = []
        for _ in range(10):
            with pytest.raises(BrokerUnavailable, match="cannot connect") as caught:
                await consumer.receive(1, 0.1)
            waits.append(caught.value.retry_after)
        assert waits[0] <= 0.2
        assert 7.5 <= waits[-1] <= 15.0

    def test_f55_the_window_is_the_servers(self, rabbitmq_url: str) -> None:
        assert backend_at(rabbitmq_url).capabilities.ack_window_s == 1800
        assert backend_at(rabbitmq_url, ack_window="1h").capabilities.ack_window_s == 3600
        assert not backend_at(rabbitmq_url).capabilities.extends

    @pytest.mark.parametrize(
        ("url", "match"),
        [
            ("amqp://h?queue_type=stream", "queue_type .*: use quorum or classic"),
            ("amqp://h?heartbeat=601", "heartbeat"),
            ("amqp://h?ca_file=/x.pem", "add tls=yes"),
            ("amqps://h?ca_file=/nowhere.pem", "cannot be used"),
            ("amqp://h?quorum=yes", "has no option quorum"),
        ],
    )
    def test_options_that_make_no_sense(self, url: str, match: str) -> None:
        with pytest.raises(InvalidOption, match=match):
            RabbitMQBackend(Address(url))


# -- processes and servers that die

VICTIM = """
import asyncio, sys
from effectonce.backends.rabbitmq.broker import RabbitMQBackend
from effectonce.values.urls import Address

async def main():
    consumer = RabbitMQBackend(Address(sys.argv[1])).consumer(sys.argv[2], group="g", prefetch=10)
    found = []
    while len(found) < 3:
        found += await consumer.receive(10, 5.0)
    await consumer.ack(found[:1])
    print(found[0].packet.body.decode(), flush=True)
    await asyncio.sleep(60)

asyncio.run(main())
"""


@pytest.mark.long
@pytest.mark.chaos
class TestDeath:
    async def test_f58_a_killed_consumer_leaves_its_messages_to_others(
        self, under_test: QueueUnderTest, rabbitmq_url: str
    ) -> None:
        await under_test.publish(b"0", b"1", b"2")
        heir = await under_test.consumer()
        victim = subprocess.Popen(
            [sys.executable, "-c", VICTIM, rabbitmq_url, under_test.queue], stdout=subprocess.PIPE, text=True
        )
        try:
            assert victim.stdout is not None
            acked = await asyncio.to_thread(victim.stdout.readline)
        finally:
            victim.send_signal(signal.SIGKILL)
            victim.communicate(timeout=30)
        found = await receive(heir, 2)
        assert acked.strip() == "0"
        assert [(d.packet.body, d.attempt) for d in found] == [(b"1", 2), (b"2", 2)]

    async def test_f59_a_server_killed_in_mid_flight_loses_nothing_that_was_confirmed(
        self, own: RabbitMQ, unique_name: str
    ) -> None:
        """Publishing and consuming go on while the server is killed and started again on its data."""
        backend = backend_at(own.url, timeout="20s")
        under_test = QueueUnderTest(backend, unique_name)
        consumer = await under_test.consumer()
        declared = time.monotonic()
        traffic = Traffic(under_test, consumer)
        async with asyncio.timeout(90), asyncio.TaskGroup() as tasks:
            traffic.start(tasks)
            # RabbitMQ 3.10 takes a moment to note on disk that a new quorum queue is there: killed before, it never
            # gets a leader again. Of what was confirmed in a queue that it knows, nothing may be lost.
            await auntil(lambda: len(traffic.received) > 100 and time.monotonic() > declared + 2)
            before = len(traffic.confirmed)
            await asyncio.to_thread(own.kill)
            await asyncio.to_thread(own.restart)
            await auntil(lambda: len(traffic.confirmed) > before + 100, 60)
            traffic.stop()
        assert traffic.received >= traffic.confirmed
        await under_test.close()

    async def test_f59_a_delayed_message_outlives_a_server_that_is_killed(
        self, own: RabbitMQ, unique_name: str
    ) -> None:
        under_test = QueueUnderTest(backend_at(own.url, timeout="20s"), unique_name)
        delayed = Packet(body=b"later", id="1", delay_s=6.0)
        assert await under_test.publisher.publish(unique_name, [delayed]) == [None]
        await asyncio.sleep(2.5)  # until its queues are noted on disk: see above
        await asyncio.to_thread(own.kill)
        await asyncio.to_thread(own.restart)
        consumer = await under_test.consumer()
        (delivery,) = await receive(consumer, 1)
        assert (delivery.packet.body, delivery.packet.id, delivery.attempt) == (b"later", "1", 1)
        await under_test.close()


def test_a_program_that_closes_nothing_assert_exits_silently(rabbitmq_url: str, unique_name: str) -> None:
    assert_exits_silently(rabbitmq_url, unique_name)
