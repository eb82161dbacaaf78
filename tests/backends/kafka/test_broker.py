"""The Kafka broker, on a real one: the contract, rebalances in mid-flight, a killed process, restarts."""

import asyncio
import os
import re
import subprocess
import sys
import textwrap
import time
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import pytest
from confluent_kafka import (
    OFFSET_BEGINNING,
    TIMESTAMP_CREATE_TIME,
    Consumer,
    KafkaError,
    KafkaException,
    Producer,
    TopicPartition,
)
from confluent_kafka.admin import AdminClient, ConfigResource, NewTopic, ResourceType

import effectonce as eo
from effectonce.backends.kafka.broker import KafkaBackend, KafkaConsumer
from effectonce.backends.kafka.endpoint import dead_letter_topic, parse_cluster
from effectonce.backends.kafka.group_member import POLL_S, POLLS_BEFORE_PAUSE
from effectonce.backends.kafka.offset_tracker import MIN_READ_AHEAD
from effectonce.backends.kafka.producer import ConfirmedProducer
from effectonce.backends.kafka.records import KafkaRecord
from effectonce.backends.kafka.topics import KafkaAdmin
from effectonce.contracts import Delivery, Packet
from effectonce.envelopes import Raw
from effectonce.errors import BrokerUnavailable, ConfigurationError, InvalidOption
from effectonce.testing.suites import BrokerCase, Site
from effectonce.values.urls import Address
from tests.backends import side_by_side
from tests.conftest import skip_or_fail
from tests.harness import kafka
from tests.harness.installed import Missing
from tests.harness.waiting import auntil

REBALANCE_TIMEOUT_S = 20.0
GROUP = "workers"


@pytest.fixture(scope="module")
def server() -> Iterator[kafka.Kafka]:
    """One of its own: it is restarted, and its connections are cut."""
    try:
        running = kafka.kafka()
    except Missing as missing:
        skip_or_fail(str(missing))
    yield running
    running.close()


def backend(url: str, *options: str) -> KafkaBackend:
    return KafkaBackend(Address(url + ("&" if "?" in url else "?") + "&".join(("session_timeout=3s", *options))))


# -- the contract


@pytest.fixture
def make_site(request: pytest.FixtureRequest) -> Callable[[], Site]:
    if given := os.environ.get("EFFECTONCE_TEST_KAFKA_URL"):
        return lambda: Site(backend=backend(given))
    server: kafka.Kafka = request.getfixturevalue("server")
    return lambda: Site(
        backend=backend(server.cut_url),
        cut=server.proxy.reset,
        restart=server.restart,
        unreachable=backend("kafka://127.0.0.1:1", "timeout=1s"),
        locked=backend(server.locked_url("wrong-canary"), "timeout=10s"),
        secret="wrong-canary",
    )


# A membership outlives its connections. What a consumer held comes to others when it is dead: see below.
ALONE = side_by_side.alone(skip=["deliveries_of_a_broken_connection_are_redelivered"])


@pytest.mark.long
@pytest.mark.chaos
@pytest.mark.parametrize("case", ALONE, ids=str)
def test_the_contract_alone(case: BrokerCase, make_site: Callable[[], Site]) -> None:
    case.run(make_site())


def test_the_contract(make_site: Callable[[], Site]) -> None:
    side_by_side.run(make_site, threads=12)


# -- rebalances


@asynccontextmanager
async def consumers(broker: KafkaBackend, queue: str, *prefetches: int) -> AsyncIterator[list[KafkaConsumer]]:
    await broker.declare(queue, group=GROUP)
    made = [broker.consumer(queue, group=GROUP, prefetch=prefetch) for prefetch in prefetches]
    try:
        yield made
    finally:
        for consumer in made:
            await consumer.close()


async def publish(broker: KafkaBackend, queue: str, *packets: Packet) -> None:
    await broker.declare(queue, group=GROUP)
    publisher = broker.publisher()
    assert set(await publisher.publish(queue, packets)) == {None}
    await publisher.close()


def numbered(count: int) -> list[Packet]:
    """Packets with a key each, so that they are spread over the partitions."""
    return [Packet(body=b"%d" % n, id=f"id-{n}", ordering_key=f"key-{n}") for n in range(count)]


async def collect(consumer: KafkaConsumer, count: int) -> list[Delivery]:
    found: list[Delivery] = []
    deadline = time.monotonic() + REBALANCE_TIMEOUT_S
    while len(found) < count:
        assert time.monotonic() < deadline, f"{len(found)} of {count} came"
        found += await consumer.receive(count - len(found), 0.5)
    return found


def numbers(deliveries: list[Delivery]) -> set[int]:
    return {int(delivery.packet.body) for delivery in deliveries}


async def test_f53_a_rebalance_in_mid_flight_takes_what_is_open_and_leaves_what_is_settled(
    server: kafka.Kafka, unique_name: str
) -> None:
    broker = backend(server.url)
    await publish(broker, unique_name, *numbered(60))
    async with consumers(broker, unique_name, 100, 100, 100) as (first, second, third):
        held = await collect(first, 60)
        settled = [delivery for delivery in held if int(delivery.packet.body) % 3 == 0]
        rest = [delivery for delivery in held if int(delivery.packet.body) % 3]
        assert all(await first.ack(settled))

        taken_over = await collect(second, 1)

        async def some_are_stale() -> bool:
            return not all(await first.extend(rest, 1))

        await auntil(some_are_stale)
        answers = await first.ack(rest)
        stale = {int(d.packet.body) for d, mine in zip(rest, answers, strict=True) if not mine}
        assert 0 < len(stale) < len(rest), "with four partitions and two consumers, each has some"
        taken_over += await collect(second, len(stale) - len(taken_over))
        assert numbers(taken_over) == stale, "what was settled was redelivered, or what was open was not"
        assert await second.receive(10, 0.3) == []

        # The late acks of the first have committed nothing: given back, the message is redelivered.
        await first.close()
        await second.close()
        assert numbers(await collect(third, len(stale))) == stale


async def test_f53_a_consumer_whose_handlers_are_busy_still_gives_up_its_partitions(
    server: kafka.Kafka, unique_name: str
) -> None:
    """It has read as much as it may, and has stopped reading, but not polling; with room again it reads on."""
    broker = backend(server.url)
    many = 4 * MIN_READ_AHEAD
    for start in range(0, many, 500):
        await publish(broker, unique_name, *numbered(many)[start : start + 500])
    async with consumers(broker, unique_name, 1, many) as (busy, other):
        (held,) = await collect(busy, 1)
        await asyncio.sleep(POLLS_BEFORE_PAUSE * POLL_S * 2)
        found = await collect(other, many // 10)
        if int(held.packet.body) in numbers(found):
            assert await busy.extend([held], 1) == [False]
        await busy.ack([held])
        seen = set()
        while len(seen) < MIN_READ_AHEAD // 2:
            (held,) = await collect(busy, 1)
            await busy.ack([held])
            seen.add(held.packet.id)


async def test_committed_offsets_that_cannot_be_read_end_the_membership_and_not_the_thread(
    server: kafka.Kafka, unique_name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """F36, F53. An exception in a callback passes through the client's C code, and arrives as no exception at all."""

    class WithoutOffsets(Consumer):
        def committed(self, partitions: Any, timeout: float) -> Any:
            monkeypatch.undo()
            raise KafkaException(KafkaError(KafkaError._TIMED_OUT, "Failed to get committed offsets"))

    broker = backend(server.url)
    await publish(broker, unique_name, *numbered(3))
    monkeypatch.setattr("confluent_kafka.Consumer", WithoutOffsets)
    async with consumers(broker, unique_name, 10) as (consumer,):
        with pytest.raises(BrokerUnavailable, match="Failed to get committed offsets"):
            await collect(consumer, 1)
        assert numbers(await collect(consumer, 3)) == {0, 1, 2}


@pytest.mark.chaos
async def test_what_a_killed_process_held_comes_to_another_and_what_it_acked_does_not(
    server: kafka.Kafka, unique_name: str
) -> None:
    """F53, F58: also what was acked beyond a gap, though Kafka itself keeps only the offset before it."""
    program = f"""
        import asyncio
        from effectonce.backends.kafka.broker import KafkaBackend
        from effectonce.values.urls import Address

        async def main():
            broker = KafkaBackend(Address("{server.url}?session_timeout=1s"))
            consumer = broker.consumer("{unique_name}", group="{GROUP}", prefetch=100)
            held = []
            while len(held) < 30:
                held += await consumer.receive(30, 1.0)
            await consumer.ack([each for each in held if int(each.packet.body) % 2])
            await consumer.flush()
            print("acked", flush=True)
            await asyncio.sleep(60)

        asyncio.run(main())
    """
    broker = backend(server.url)
    await publish(broker, unique_name, *numbered(30))
    with subprocess.Popen([sys.executable, "-c", textwrap.dedent(program)], stdout=subprocess.PIPE) as process:
        try:
            assert process.stdout is not None
            assert await asyncio.to_thread(process.stdout.readline) == b"acked\n"
        finally:
            process.kill()
    async with consumers(broker, unique_name, 100) as (heir,):
        assert numbers(await collect(heir, 15)) == set(range(0, 30, 2))
        assert await heir.receive(10, 0.3) == []


# -- publishing


async def test_f44_only_the_packet_that_is_too_large_is_refused(server: kafka.Kafka, unique_name: str) -> None:
    broker = backend(server.url, "max_body=2000000")
    await broker.declare(unique_name, group=GROUP)
    sizes = (10, 1_500_000, 3_000_000, 10)  # what fits; over the topic's limit, over the client's; what fits
    publisher = broker.publisher()
    answers = await publisher.publish(unique_name, [Packet(body=b"x" * size, id=str(size)) for size in sizes])
    await publisher.close()
    assert [answer is None for answer in answers] == [True, False, False, True]
    for answer in answers[1:3]:
        assert isinstance(answer, ConfigurationError)
        assert "max.message.bytes" in str(answer)


@pytest.mark.chaos
async def test_f45_what_is_not_confirmed_is_not_said_to_be_sent(server: kafka.Kafka, unique_name: str) -> None:
    broker = backend(server.cut_url, "timeout=1s")
    await broker.declare(unique_name, group=GROUP)
    publisher = broker.publisher()
    await publish_until_confirmed(publisher, unique_name, b"before")
    server.proxy.blackhole = True
    try:
        with pytest.raises(BrokerUnavailable):
            await publisher.publish(unique_name, [Packet(body=b"lost")])
    finally:
        server.proxy.heal()
        server.proxy.reset()
    await publish_until_confirmed(publisher, unique_name, b"after")
    await publisher.close()


async def publish_until_confirmed(publisher: Any, queue: str, body: bytes) -> None:
    """A server that was started a moment ago takes longer than the timeout to register its first producer."""
    async with asyncio.timeout(REBALANCE_TIMEOUT_S):
        while True:
            try:
                assert await publisher.publish(queue, [Packet(body=body)]) == [None]
                return
            except BrokerUnavailable:
                continue


async def test_a_message_without_a_topic_is_a_configuration_error(server: kafka.Kafka, unique_name: str) -> None:
    broker = backend(server.url, "timeout=2s")
    consumer = broker.consumer(unique_name, group=GROUP, prefetch=1)
    with pytest.raises(ConfigurationError, match="declare"):
        await consumer.receive(1, 0.1)
    await consumer.close()


# -- what others send, and dead letters


async def test_a_record_of_another_producer_is_given_up_byte_for_byte(server: kafka.Kafka, unique_name: str) -> None:
    """Binary keys and headers, null headers, no value: shown as well as they can be, and kept as they are."""
    broker = backend(server.url)
    await broker.declare(unique_name, group=GROUP)
    producer = Producer({"bootstrap.servers": server.url.removeprefix("kafka://")})
    headers: list[tuple[str, Any]] = [("binary", b"\xff\x00"), ("null", None), ("text", "☕".encode())]
    producer.produce(unique_name, None, b"\xfekey", headers=headers)
    assert producer.flush(REBALANCE_TIMEOUT_S) == 0
    async with consumers(broker, unique_name, 10) as (consumer,):
        (delivery,) = await collect(consumer, 1)
        assert delivery.packet == Packet(
            body=b"", headers={"binary": "\\xff\x00", "text": "☕"}, id="", ordering_key="\\xfekey"
        )
        assert await consumer.dead_letter(delivery, {"why": "foreign"})
    dead_letters = broker.dead_letters(unique_name, group=GROUP)
    ((dead_letter,), _) = await dead_letters.browse(10)
    await dead_letters.close()
    assert dead_letter.packet.headers == {"binary": "\\xff\x00", "text": "☕", "why": "foreign"}
    assert dead_letter.packet.ordering_key == "\\xfekey"


@pytest.mark.long
async def test_f01_a_record_without_a_key_is_known_by_its_offset_when_it_is_delivered_again(
    server: kafka.Kafka, unique_name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another producer wrote two equal records. The first worker handles them, and dies before its offsets are
    committed."""
    producer = Producer({"bootstrap.servers": server.url.removeprefix("kafka://")})
    await backend(server.url).declare(unique_name, group=GROUP)
    for _ in range(2):
        producer.produce(unique_name, b'{"order": 7}')
    assert producer.flush(REBALANCE_TIMEOUT_S) == 0
    charges: list[tuple[str, str]] = []
    outcomes: list[str] = []
    with eo.connect("memory://") as store:
        store.add_hook(lambda event: outcomes.append(event.kind))

        async def charge(message: eo.Message[Any]) -> None:
            charges.append((message.key, eo.current().key))

        async def work_until(condition: Callable[[], Any]) -> None:
            worker = eo.Worker(eo.Broker(backend(server.url), envelope=Raw()), store=store, name=GROUP)
            worker.handler(unique_name, key="topic:partition:offset")(charge)
            serving = asyncio.create_task(worker.serve())
            await auntil(condition, REBALANCE_TIMEOUT_S)
            worker.stop()
            await serving

        with monkeypatch.context() as dying:
            dying.setattr(KafkaConsumer, "ack", lose_acks)
            await work_until(lambda: outcomes.count("completed") == 2)
        await work_until(lambda: outcomes.count("replayed") == 2)
    keys = [key for key, _ in charges]
    assert charges == [(key, key) for key in keys]
    assert len(set(keys)) == len(keys) == 2, "two honest equal records are two effects, delivered again they are none"
    assert all(re.fullmatch(rf"{unique_name}:\d+:\d+", key) for key in keys)


async def lose_acks(consumer: KafkaConsumer, deliveries: Sequence[Delivery]) -> Sequence[bool]:
    return [True] * len(deliveries)


async def test_a_record_is_as_old_as_its_packet_says(server: kafka.Kafka, unique_name: str) -> None:
    """BabelQueue's contract wants it, so that consumers in other languages see when the message was made."""
    broker = backend(server.url)
    await broker.declare(unique_name, group=GROUP)
    created = time.time_ns() // 1_000_000 - 600_000
    publisher = broker.publisher()
    await publisher.publish(unique_name, [Packet(body=b"{}", fields={"timestamp": created})])
    await publisher.close()
    other = Consumer({"bootstrap.servers": server.url.removeprefix("kafka://"), "group.id": f"{unique_name}.other"})
    try:
        partitions = other.list_topics(unique_name, REBALANCE_TIMEOUT_S).topics[unique_name].partitions
        other.assign([TopicPartition(unique_name, number, OFFSET_BEGINNING) for number in partitions])
        message = await asyncio.to_thread(other.poll, REBALANCE_TIMEOUT_S)
        assert message.timestamp() == (TIMESTAMP_CREATE_TIME, created)
    finally:
        other.close()


async def test_what_is_given_up_twice_is_one_dead_letter(server: kafka.Kafka, unique_name: str) -> None:
    """A crash between the dead letter and the commit repeats the dead-lettering."""
    broker = backend(server.url)
    await broker.declare(unique_name, group=GROUP)
    sender = ConfirmedProducer(parse_cluster(Address(server.url)), idempotent=False)
    record = KafkaRecord(b"0-17", b"body", [])
    assert await sender.send(dead_letter_topic(unique_name, GROUP), [record, record]) == [None, None]
    await sender.close()
    dead_letters = broker.dead_letters(unique_name, group=GROUP)
    assert await dead_letters.count() == 1
    assert await dead_letters.remove(["0-17", "0-17", "9-9"]) == 1
    assert await dead_letters.count() == 0
    await dead_letters.close()


# -- start-up checks


async def altered(server: kafka.Kafka, topic: str, **config: str) -> None:
    from confluent_kafka.admin import AlterConfigOpType, ConfigEntry

    admin = AdminClient({"bootstrap.servers": server.url.removeprefix("kafka://")})
    entries = [
        ConfigEntry(name.replace("_", "."), value, incremental_operation=AlterConfigOpType.SET)
        for name, value in config.items()
    ]
    resource = ConfigResource(ResourceType.TOPIC, topic, incremental_configs=entries)
    for future in admin.incremental_alter_configs([resource]).values():
        await asyncio.to_thread(future.result)


@pytest.mark.parametrize(
    ("which", "config", "remedy"),
    [
        ("queue", {"cleanup_policy": "compact"}, "cleanup.policy to delete"),
        ("queue", {"unclean_leader_election_enable": "true"}, "unclean.leader.election.enable to false"),
        ("queue", {"retention_ms": str(30 * 86_400_000)}, r"\?retention=2592000s"),
        ("queue", {"retention_ms": "-1"}, r"\?retention=unlimited"),
        ("dead", {"cleanup_policy": "delete"}, "compact,delete"),
        ("dead", {"retention_ms": "1000"}, "retention.ms to -1"),
    ],
)
async def test_a_topic_that_would_lose_messages_is_refused(
    server: kafka.Kafka, unique_name: str, which: str, config: dict[str, str], remedy: str
) -> None:
    broker = backend(server.url)
    await broker.declare(unique_name, group=GROUP)
    await broker.check(unique_name, group=GROUP)
    await altered(server, unique_name if which == "queue" else dead_letter_topic(unique_name, GROUP), **config)
    with pytest.raises(ConfigurationError, match=remedy):  # the broker learns of it a little later
        await auntil(lambda: broker.check(unique_name, group=GROUP))


async def test_replicas_of_which_one_is_enough_are_refused(
    server: kafka.Kafka, unique_name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The harness has one broker: what it says of its replicas is made up."""
    broker = backend(server.url)
    await broker.declare(unique_name, group=GROUP)
    monkeypatch.setattr(KafkaAdmin, "replicas", lambda self, topic: 3)
    with pytest.raises(ConfigurationError, match=r"min\.insync\.replicas to 2"):
        await broker.check(unique_name, group=GROUP)


async def test_a_topic_that_is_not_there_fails_its_check(server: kafka.Kafka, unique_name: str) -> None:
    with pytest.raises(ConfigurationError, match="declare"):
        await backend(server.url).check(unique_name, group=GROUP)
    admin = AdminClient({"bootstrap.servers": server.url.removeprefix("kafka://")})
    for future in admin.create_topics([NewTopic(unique_name, 1, 1)]).values():
        await asyncio.to_thread(future.result)

    async def is_known() -> bool:
        known = await asyncio.to_thread(admin.list_topics, unique_name, timeout=5)
        return known.topics[unique_name].error is None

    await auntil(is_known)
    with pytest.raises(ConfigurationError, match=f"no topic {dead_letter_topic(unique_name, GROUP)}"):
        await backend(server.url).check(unique_name, group=GROUP)


async def test_declare_makes_the_topic_as_the_url_says(server: kafka.Kafka, unique_name: str) -> None:
    await backend(server.url, "partitions=3", "retention=2d").declare(unique_name, group=GROUP)
    admin = AdminClient({"bootstrap.servers": server.url.removeprefix("kafka://")})
    assert len(admin.list_topics(unique_name, timeout=5).topics[unique_name].partitions) == 3
    with pytest.raises(ConfigurationError, match="keeps its messages for longer"):
        await backend(server.url, "retention=1d").check(unique_name, group=GROUP)


# -- addresses


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("kafka://", "kafka://localhost:9092"),
        ("kafka://host/topic", "kafka://localhost:9092"),
        ("kafka://host?partition=3", "its options are"),
        ("kafka://host?mechanism=NTLM", "use PLAIN or SCRAM-SHA-256"),
        ("kafka://user:secret@host?acks=0", "has no option acks"),
        ("kafka://host?retention=week", "span of time"),
    ],
)
def test_a_wrong_address_says_what_is_right(url: str, said: str) -> None:
    with pytest.raises(InvalidOption, match=said) as caught:
        KafkaBackend(Address(url))
    assert "secret" not in str(caught.value)


def test_f61_names_are_those_that_a_topic_can_have() -> None:
    broker = KafkaBackend(Address("kafka://host"))
    for queue, group in (("a/b", "g"), ("a", "g:h"), ("", "g")):
        with pytest.raises(InvalidOption):
            broker.consumer(queue, group=group, prefetch=1)


def test_f66_the_password_is_in_nothing_that_is_printed() -> None:
    broker = KafkaBackend(Address("kafka://user:canary@host:9093,other:9093?mechanism=SCRAM-SHA-512"))
    shown = repr(broker) + repr(vars(broker)) + repr(broker.publisher()) + str(vars(broker.publisher()))
    assert "canary" not in shown
    assert broker.capabilities.redelivery_horizon_s == 7 * 86400
