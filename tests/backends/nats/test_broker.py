"""NATS JetStream: the contract on a real server, and what is its own."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from typing import Any

import nats
import pytest

from effectonce.backends.nats.broker import NatsBackend
from effectonce.backends.nats.packets import OWN_HEADER, make_headers, read_packet
from effectonce.contracts import Packet
from effectonce.errors import BrokerUnavailable, ConfigurationError, InvalidOption
from effectonce.testing.suites import Site, broker_cases, broker_suite
from effectonce.values.urls import Address
from tests import conftest
from tests.backends.queue_under_test import QueueUnderTest, Traffic, assert_exits_silently, receive
from tests.harness import installed
from tests.harness.nats import Nats
from tests.harness.nats import nats as start_nats
from tests.harness.process import free_port
from tests.harness.proxy import FaultProxy
from tests.harness.waiting import auntil

SECRET = "canary-Zq7"
WINDOW = 0.6
CONFIG = f"""
authorization {{
  users = [
    {{ user: all, password: {SECRET} }}
    {{ user: some, password: few, permissions: {{ publish: {{ deny: [forbidden, "$JS.API.CONSUMER.MSG.NEXT.>"] }} }} }}
  ]
}}
"""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Nats]:
    """A server that asks for a password, and that may be killed."""
    config = tmp_path_factory.mktemp("nats") / "server.conf"
    config.write_text(CONFIG)
    try:
        server = start_nats("-c", str(config))
    except installed.Missing as missing:
        conftest.skip_or_fail(str(missing))
    with server:
        yield server


@pytest.fixture
def proxy(server: Nats) -> Iterator[FaultProxy]:
    with FaultProxy(server.port) as proxy:
        yield proxy


def backend_at(port: int, user: str = f"all:{SECRET}", **options: str) -> NatsBackend:
    extra = "&".join(f"{name}={value}" for name, value in {"ack_window": f"{WINDOW}s", **options}.items())
    return NatsBackend(Address(f"nats://{user}@127.0.0.1:{port}?{extra}"))


# -- the contract


class TestWorkQueue(broker_suite()):  # type: ignore[misc]
    @pytest.fixture
    def site(self, server: Nats, proxy: FaultProxy) -> Site:
        return Site(
            backend=backend_at(proxy.port),
            cut=proxy.reset,
            restart=server.restart,
            unreachable=backend_at(free_port()),
            locked=backend_at(server.port, user="all:wrong-Kx9"),
            secret="wrong-Kx9",
        )


SEVERAL_GROUPS = (
    "another_group_gets_every_message_too",
    "a_nack_of_one_group_does_not_deliver_to_another",
    "a_message_to_an_undeclared_queue_is_kept_or_refused",
    "an_acked_delivery_is_not_redelivered",
    "a_dead_letter_can_be_sent_again",
    "a_declared_queue_passes_its_check",
)


class TestLimits(
    broker_suite(skip=tuple(case.name for case in broker_cases() if case.name not in SEVERAL_GROUPS))  # type: ignore[misc]
):
    @pytest.fixture
    def site(self, server: Nats) -> Site:
        return Site(backend=backend_at(server.port, retention="limits"))


# -- words for what follows


@pytest.fixture
async def under_test(proxy: FaultProxy, unique_name: str) -> AsyncIterator[QueueUnderTest]:
    under_test = QueueUnderTest(backend_at(proxy.port, timeout="1s", ack_window="60s"), unique_name)
    yield under_test
    proxy.heal()
    await under_test.close()


@pytest.fixture
async def other(server: Nats) -> AsyncIterator[Any]:
    """Another client of the same server."""
    client = await nats.connect(server.url, user="all", password=SECRET)
    yield client
    await client.close()


# -- acks


class TestAcks:
    async def test_f57_the_server_takes_a_zombies_ack_for_the_heirs(
        self, server: Nats, unique_name: str, other: Any
    ) -> None:
        """Why the worker acks only what is recorded as done, and why a stale delivery is not acked here."""
        under_test = QueueUnderTest(backend_at(server.port), unique_name)
        zombie, heir = await under_test.consumer(), await under_test.consumer()
        await under_test.publish(b"one")
        (stale,) = await receive(zombie, 1)
        (again,) = await receive(heir, 1)
        assert again.attempt == 2
        assert await zombie.ack([stale]) == [False]
        assert (await other.jetstream().stream_info(unique_name)).state.messages == 1
        await other.publish(stale.handle.key, b"+ACK")  # as a client does that does not watch the window
        await other.flush()

        async def is_settled() -> bool:  # the server takes acks in when it comes to it
            return (await other.jetstream().consumer_info(unique_name, "g")).num_ack_pending == 0

        await auntil(is_settled)
        await under_test.close()

    async def test_f59_what_was_delivered_before_a_lost_connection_can_still_be_settled(
        self, under_test: QueueUnderTest, proxy: FaultProxy
    ) -> None:
        consumer = await under_test.consumer()
        await under_test.publish(b"acked", b"nacked", b"dead")
        held = await receive(consumer, 3)
        proxy.reset()
        with pytest.raises(BrokerUnavailable, match="stopped"):
            await consumer.receive(1, 5.0)
        assert await consumer.ack(held[:1]) == [True]
        assert await consumer.nack(held[1:2]) == [True]
        assert await consumer.dead_letter(held[2], {"why": "test"})
        (again,) = await receive(consumer, 1)
        assert (again.packet.body, again.attempt) == (b"nacked", 2)
        assert await under_test.dead_letters().count() == 1

    async def test_what_goes_to_the_dead_letters_makes_room_for_the_next(self, under_test: QueueUnderTest) -> None:
        consumer = await under_test.consumer(prefetch=1)
        await under_test.publish(b"a", b"b", b"c")
        for number in range(3):
            (bad,) = await receive(consumer, 1)
            assert await consumer.dead_letter(bad, {"why": "test"})
            assert await under_test.dead_letters().count() == number + 1

    async def test_dead_letters_whose_stream_was_deleted_get_it_back(
        self, under_test: QueueUnderTest, other: Any
    ) -> None:
        """Also by who only cleaned up: the message is not lost with it, and not redelivered for ever."""
        consumer = await under_test.consumer()
        await under_test.publish(b"bad")
        (bad,) = await receive(consumer, 1)
        streams = other.jetstream()
        for info in await streams.streams_info():
            if info.config.name.startswith(under_test.queue) and "dead" in info.config.name:
                await streams.delete_stream(info.config.name)
        assert await consumer.dead_letter(bad, {"why": "test"})
        assert [letter.packet.body for letter in (await under_test.dead_letters().browse(5))[0]] == [b"bad"]

    async def test_a_second_attempt_to_give_up_is_not_a_second_letter(
        self, under_test: QueueUnderTest, proxy: FaultProxy
    ) -> None:
        consumer = await under_test.consumer()
        await under_test.publish(b"bad")
        (bad,) = await receive(consumer, 1)
        proxy.drop_reply(to=b"eo.dead.")
        with pytest.raises(BrokerUnavailable):
            await consumer.dead_letter(bad, {"why": "test"})
        assert await consumer.dead_letter(bad, {"why": "test"})
        assert await under_test.dead_letters().count() == 1

    async def test_f54_a_letter_that_took_too_long_leaves_the_message_to_its_heir(
        self, proxy: FaultProxy, server: Nats, unique_name: str
    ) -> None:
        under_test = QueueUnderTest(backend_at(proxy.port, ack_window="0.5s"), unique_name)
        consumer, heir = (
            await under_test.consumer(),
            backend_at(server.port).consumer(unique_name, group="g", prefetch=5),
        )
        await under_test.publish(b"slow")
        (slow,) = await receive(consumer, 1)
        proxy.delay = 0.3
        assert await consumer.dead_letter(slow, {"why": "test"}) is False
        proxy.heal()
        (again,) = await receive(heir, 1)
        assert again.attempt == 2
        assert await heir.dead_letter(again, {"why": "again"})
        assert await under_test.dead_letters().count() == 1
        await heir.close()
        await under_test.close()

    @pytest.mark.parametrize("settle", ["ack", "dead_letter"])
    async def test_what_is_settled_makes_room_for_a_receive_that_waits(
        self, under_test: QueueUnderTest, settle: str
    ) -> None:
        await under_test.consumer()
        consumer = under_test.backend.consumer(under_test.queue, group="g", prefetch=1)
        await under_test.publish(b"1", b"2")
        (first,) = await receive(consumer, 1)
        waiting = asyncio.ensure_future(consumer.receive(1, 20.0))
        await asyncio.sleep(0.05)
        assert await consumer.extend([first], 5.0) == [True]
        await (consumer.ack([first]) if settle == "ack" else consumer.dead_letter(first, {"why": "test"}))
        async with asyncio.timeout(15):
            (second,) = await waiting
        assert second.packet.body == b"2"
        await consumer.close()

    async def test_closing_gives_back_what_was_on_its_way(self, under_test: QueueUnderTest) -> None:
        consumer, heir = await under_test.consumer(), await under_test.consumer()
        task = asyncio.ensure_future(consumer.receive(10, 5.0))
        await asyncio.sleep(0.05)
        await under_test.publish(*(b"%d" % n for n in range(10)))
        first = await task  # the pull asked for ten, and goes on
        await consumer.close()
        assert len(first) <= 10
        assert len(await receive(heir, 10)) == 10  # long before the window ends


# -- publishing


class TestPublishing:
    async def test_the_server_drops_a_duplicate_while_the_first_waits(self, under_test: QueueUnderTest) -> None:
        await under_test.publish(b"same")
        await under_test.publish(b"same", b"other")
        consumer = await under_test.consumer()
        found = await receive(consumer, 2)
        assert [d.packet.body for d in found] == [b"same", b"other"]
        assert list(await consumer.receive(1, 0.1)) == []
        # Acked, and so gone: a sender that repeats it means it, as a redrive does.
        await consumer.ack(found)
        await consumer.flush()
        await under_test.publish(b"same")
        (again,) = await receive(consumer, 1)
        assert again.packet == found[0].packet

    async def test_f45_without_the_streams_ack_nothing_is_known(
        self, under_test: QueueUnderTest, proxy: FaultProxy
    ) -> None:
        await under_test.publish(b"before")
        proxy.blackhole = True
        with pytest.raises(BrokerUnavailable, match="did not answer within 1 s"):
            await under_test.publish(b"swallowed")
        proxy.heal()
        await under_test.publish(b"swallowed")
        proxy.drop_reply(to=b"unheard")
        with pytest.raises(BrokerUnavailable, match="broke"):
            await under_test.publish(b"unheard")
        await under_test.publish(b"unheard")  # the server had it, knows its id, and keeps one
        found = await receive(await under_test.consumer(), 3)
        assert [d.packet.body for d in found] == [b"before", b"swallowed", b"unheard"]

    async def test_f44_a_full_stream_refuses_and_drops_nothing(
        self, server: Nats, unique_name: str, other: Any
    ) -> None:
        await other.jetstream().add_stream(
            name="few-" + unique_name, subjects=[unique_name], max_msgs=2, discard="new", storage="file"
        )
        under_test = QueueUnderTest(backend_at(server.port, stream="few-" + unique_name), unique_name)
        outcomes = await under_test.publisher.publish(unique_name, [Packet(body=b"%d" % n) for n in range(3)])
        assert [type(outcome) for outcome in outcomes] == [type(None), type(None), BrokerUnavailable]
        assert "maximum messages" in str(outcomes[2])
        assert [d.packet.body for d in await receive(await under_test.consumer(), 2)] == [b"0", b"1"]
        await under_test.close()

    async def test_f44_a_packet_that_is_too_large_harms_itself_only(self, under_test: QueueUnderTest) -> None:
        packets = [Packet(body=b"small"), Packet(body=bytes(1024 * 1024))]
        fine, large = await under_test.publisher.publish(under_test.queue, packets)
        assert fine is None
        assert isinstance(large, ConfigurationError)
        assert "max_payload" in str(large)

    async def test_f45_a_given_stream_that_is_not_there_is_refused(self, server: Nats, unique_name: str) -> None:
        under_test = QueueUnderTest(backend_at(server.port, stream="nowhere"), unique_name)
        (outcome,) = await under_test.publisher.publish(unique_name, [Packet(body=b"x")])
        assert isinstance(outcome, ConfigurationError)
        with pytest.raises(ConfigurationError, match="no stream"):
            await under_test.backend.declare(unique_name, group="g")
        await under_test.close()

    async def test_a_foreign_reply_is_no_confirmation(self, under_test: QueueUnderTest, other: Any) -> None:
        async def busybody(message: Any) -> None:
            await message.respond(b"got it")

        await other.subscribe(under_test.queue, cb=busybody)
        await other.flush()
        (outcome,) = await under_test.publisher.publish(under_test.queue, [Packet(body=b"x")])
        assert isinstance(outcome, ConfigurationError)
        assert "not a stream" in str(outcome)


# -- packets


class TestPackets:
    @pytest.mark.parametrize(
        "name", ["Nats-Rollup", "nats-msg-id", "Nats-Expected-Stream", "Status", OWN_HEADER, "a b", "ü"]
    )
    async def test_f61_headers_that_the_server_would_act_upon_travel_hidden(self, name: str) -> None:
        packet = Packet(body=b"x", id="1", headers={name: "all", "plain": "kept"})
        written = make_headers(packet)
        assert set(written) == {"plain", OWN_HEADER, "Nats-Msg-Id"}
        assert read_packet(written, b"x") == packet

    @pytest.mark.parametrize("text", ["", "no json", "[]", '{"id": 1}', '{"headers": []}', '{"headers": {"a": 1}}'])
    def test_what_others_write_there_is_not_believed(self, text: str) -> None:
        assert read_packet({OWN_HEADER: text, "Nats-Msg-Id": "7", "Nats-Stream": "s"}, b"x") == Packet(
            body=b"x", id="7"
        )

    async def test_a_foreign_message_without_an_id(self, under_test: QueueUnderTest, other: Any) -> None:
        consumer = await under_test.consumer()
        await other.jetstream().publish(under_test.queue, b"plain", headers={"X-Source": "elsewhere"})
        (found,) = await receive(consumer, 1)
        assert found.packet == Packet(body=b"plain", headers={"X-Source": "elsewhere"})


# -- streams and addresses


class TestSettings:
    async def test_names_that_look_alike_are_different_queues(self, server: Nats, unique_name: str) -> None:
        backend = backend_at(server.port)
        queues = [f"{unique_name}{sign}a" for sign in ".-_:/"] + [f"{unique_name}{'.x' * 80}"]
        publisher = backend.publisher()
        for queue in queues:
            assert not any(await publisher.publish(queue, [Packet(body=queue.encode(), id="same")]))
        for queue in queues:
            await backend.declare(queue, group="a.b:c/d")
            consumer = backend.consumer(queue, group="a.b:c/d", prefetch=5)
            assert [d.packet.body for d in await receive(consumer, 1)] == [queue.encode()]
            await consumer.close()
        await publisher.close()

    def test_f61_a_name_that_is_no_subject(self, server: Nats) -> None:
        for queue in ("a..b", "a.", ".a", "a b", "a*", ">"):
            with pytest.raises(InvalidOption):
                backend_at(server.port).consumer(queue, group="g", prefetch=1)

    async def test_a_work_queue_has_one_group(self, server: Nats, unique_name: str) -> None:
        backend = backend_at(server.port)
        await backend.declare(unique_name, group="first")
        with pytest.raises(ConfigurationError, match="retention=limits"):
            await backend.declare(unique_name, group="second")
        with pytest.raises(ConfigurationError, match="has retention workqueue"):
            await backend_at(server.port, retention="limits").declare(unique_name, group="first")

    async def test_check_finds_what_would_lose_messages(self, server: Nats, unique_name: str, other: Any) -> None:
        backend = backend_at(server.port)
        with pytest.raises(ConfigurationError, match=r"declare\('"):
            await backend.check(unique_name, group="g")
        await backend.declare(unique_name, group="g")
        await other.jetstream().delete_consumer(unique_name, "g")
        with pytest.raises(ConfigurationError, match="no consumers"):
            await backend.check(unique_name, group="g")
        await other.jetstream().add_consumer(
            unique_name, durable_name="g", ack_policy="explicit", max_deliver=3, filter_subject=unique_name
        )
        with pytest.raises(ConfigurationError, match="max_deliver 3"):
            await backend.check(unique_name, group="g")
        await other.jetstream().delete_stream(unique_name)
        await other.jetstream().add_stream(
            name=unique_name, subjects=[unique_name], retention="workqueue", storage="memory"
        )
        with pytest.raises(ConfigurationError, match="kept in memory"):
            await backend.check(unique_name, group="g")
        await other.jetstream().delete_stream(unique_name)
        await other.jetstream().add_stream(
            name=unique_name, subjects=[unique_name], retention="workqueue", storage="file", max_msgs=10
        )
        with pytest.raises(ConfigurationError, match="delete messages before they are handled"):
            await backend.check(unique_name, group="g")

    async def test_a_consumer_that_is_deleted_is_a_configuration_error(
        self, under_test: QueueUnderTest, other: Any
    ) -> None:
        consumer = await under_test.consumer()
        waiting = asyncio.ensure_future(consumer.receive(1, 20.0))
        await asyncio.sleep(0.1)
        await other.jetstream().delete_consumer(under_test.queue, "g")
        with pytest.raises(ConfigurationError, match="no consumers"):
            await waiting
        with pytest.raises(ConfigurationError, match="no consumers"):
            await consumer.receive(1, 1.0)

    async def test_what_a_user_may_not_do_is_a_configuration_error(self, server: Nats, unique_name: str) -> None:
        await backend_at(server.port).declare(unique_name, group="g")
        backend = backend_at(server.port, user="some:few")
        publisher, consumer = backend.publisher(), backend.consumer(unique_name, group="g", prefetch=1)
        with pytest.raises(ConfigurationError, match="does not let this user"):
            await publisher.publish("forbidden", [Packet(body=b"x")])
        with pytest.raises(ConfigurationError, match="does not let this user"):
            await consumer.receive(1, 5.0)
        await publisher.close()
        await consumer.close()

    async def test_a_server_without_jetstream(self) -> None:
        class Plain(Nats):
            def command(self) -> list[str]:
                return [word for word in super().command() if word != "-js"]

        with start_nats() as found, Plain(found._binary).start() as server:
            backend = NatsBackend(Address(server.url))
            with pytest.raises(ConfigurationError, match="-js"):
                await backend.declare("q", group="g")

    async def test_another_node_is_asked_where_the_first_does_not_answer(self, server: Nats, unique_name: str) -> None:
        for _ in range(6):  # they are asked in a random order
            backend = NatsBackend(Address(f"nats://all:{SECRET}@127.0.0.1:{free_port()},127.0.0.1:{server.port}"))
            await backend.declare(unique_name, group="g")

    async def test_f36_a_connection_that_leads_nowhere_is_given_up(
        self, under_test: QueueUnderTest, proxy: FaultProxy
    ) -> None:
        consumer = await under_test.consumer()
        await consumer.receive(1, 0.05)
        proxy.blackhole = True
        assert list(await consumer.receive(1, 0.2)) == []
        with pytest.raises(BrokerUnavailable, match="stopped"):
            await consumer.receive(1, 20.0)
        proxy.heal()
        await under_test.publish(b"after")
        assert len(await receive(consumer, 1)) == 1

    def test_f66_a_token_is_not_shown(self) -> None:
        backend = NatsBackend(Address("nats://s3cr3t-t0ken@localhost"))
        assert "s3cr3t" not in repr(backend) + repr(backend.publisher())

    @pytest.mark.parametrize(
        ("url", "match"),
        [
            ("nats://h?retention=interest", "workqueue or limits"),
            ("nats://h/orders", "has no path"),
            ("nats://h?ca_file=/x.pem", "add tls=yes"),
            ("nats://h?streams=x", "has no option streams"),
        ],
    )
    def test_options_that_make_no_sense(self, url: str, match: str) -> None:
        with pytest.raises(InvalidOption, match=match):
            NatsBackend(Address(url))


@pytest.mark.chaos
async def test_f59_a_server_killed_in_mid_flight_loses_nothing_that_was_confirmed(
    server: Nats, unique_name: str
) -> None:
    """Publishing and consuming go on while the server is killed and started again on its data, twice."""
    under_test = QueueUnderTest(backend_at(server.port, ack_window="2s"), unique_name)
    consumer = await under_test.consumer()
    traffic = Traffic(under_test, consumer)
    async with asyncio.timeout(60), asyncio.TaskGroup() as tasks:
        traffic.start(tasks)
        for _ in range(2):
            before = len(traffic.confirmed)
            await auntil(lambda: len(traffic.confirmed) > before + 100)  # noqa: B023
            await asyncio.to_thread(server.kill)
            await asyncio.to_thread(server.restart)
        traffic.stop()
    assert traffic.received >= traffic.confirmed
    await under_test.close()


def test_a_program_that_closes_nothing_assert_exits_silently(nats_url: str, unique_name: str) -> None:
    assert_exits_silently(nats_url, unique_name)
