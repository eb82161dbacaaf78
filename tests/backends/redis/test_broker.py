"""Redis Streams: the contract on a real server, and what is Redis's own."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest
import redis

import effectonce as eo
from effectonce.backends.redis import consumer as redis_consumer
from effectonce.backends.redis.broker import RedisBrokerBackend
from effectonce.contracts import Consumer, Delivery, Packet
from effectonce.testing.suites import Site, broker_cases, broker_suite
from effectonce.values.urls import Address
from tests.harness import servers
from tests.harness.process import free_port
from tests.harness.proxy import FaultProxy

SECRET = "c4nary-pa55word"
WINDOW = 0.6


def backend_at(url: str, **options: str) -> RedisBrokerBackend:
    extra = "&".join(f"{name}={value}" for name, value in {"ack_window": str(WINDOW), **options}.items())
    return RedisBrokerBackend(Address(f"{url}?{extra}"))


def port_of(url: str) -> int:
    return int(url.removeprefix("redis://").partition("/")[0].rpartition(":")[2])


@pytest.fixture(scope="module")
def own() -> Iterator[servers.Redis]:
    """A server that may be restarted, filled up and misconfigured."""
    with servers.redis("--appendonly", "yes", "--appendfsync", "always") as server:
        server.execute("ACL", "SETUSER", "alice", "on", f">right-{SECRET}", "~*", "+@all")
        yield server


@pytest.fixture
def proxy(redis_url: str) -> Iterator[FaultProxy]:
    with FaultProxy(port_of(redis_url)) as made:
        yield made


@pytest.fixture
def site(redis_url: str, unique_name: str, proxy: FaultProxy, request: pytest.FixtureRequest) -> Site:
    site = Site(backend=backend_at(proxy.through(redis_url), namespace=unique_name), cut=proxy.reset)
    needs = request.node.name
    if "restart" in needs:
        own = request.getfixturevalue("own")
        return Site(backend=backend_at(own.url), restart=own.restart)
    if "unreachable" in needs:
        site.unreachable = backend_at(f"redis://127.0.0.1:{free_port()}/0")
    if "credentials" in needs:
        own = request.getfixturevalue("own")
        site.locked, site.secret = backend_at(f"redis://alice:{SECRET}@127.0.0.1:{own.port}/0"), SECRET
    return site


TestContract = broker_suite()


@pytest.mark.parametrize("name", ["attempts_are_counted", "a_dead_consumers_deliveries_are_redelivered_to_another"])
def test_valkey_keeps_the_contract_too(name: str, valkey_url: str, unique_name: str) -> None:
    {str(case): case for case in broker_cases()}[name].run(backend_at(valkey_url, namespace=unique_name))


# -- one queue, looked at from outside


class Queue:
    """A queue of this test, its backend, and what Redis itself says about it."""

    def __init__(self, backend: RedisBrokerBackend, url: str) -> None:
        self.backend = backend
        self.stream = f"{backend.namespace}:{{q}}"
        self.redis = redis.Redis.from_url(url)
        self.publisher = backend.publisher()
        self._open: list[Consumer] = []

    async def publish(self, *bodies: bytes) -> None:
        packets = [Packet(body=body, id=f"id-{n}") for n, body in enumerate(bodies)]
        assert list(await self.publisher.publish("q", packets)) == [None] * len(bodies)

    def consumer(self, group: str = "g", prefetch: int = 1000) -> Consumer:
        self._open.append(self.backend.consumer("q", group=group, prefetch=prefetch))
        return self._open[-1]

    async def take(self, consumer: Consumer, count: int, within: float = 10.0) -> list[Delivery]:
        found: list[Delivery] = []
        async with asyncio.timeout(within):
            while len(found) < count:
                found += await consumer.receive(count - len(found), 0.2)
        return found

    def length(self) -> int:
        length: Any = self.redis.xlen(self.stream)
        return int(length)

    async def close(self) -> None:
        for consumer in self._open:
            await consumer.close()
        await self.publisher.close()
        self.redis.close()


@pytest.fixture
async def queue(redis_url: str, unique_name: str, proxy: FaultProxy) -> AsyncIterator[Queue]:
    made = Queue(backend_at(proxy.through(redis_url), namespace=unique_name), redis_url)
    await made.backend.declare("q", group="g")
    yield made
    proxy.heal()
    await made.close()


# -- trimming: a stream that grows for ever is a leak, and a trim must lose nothing


async def test_what_is_settled_leaves_the_stream(queue: Queue) -> None:
    consumer = queue.consumer()
    for _ in range(3):
        await queue.publish(*[b"x"] * 500)
        await consumer.ack(await queue.take(consumer, 500))
    await consumer.close()
    assert queue.length() == 0


async def test_a_consumer_that_goes_on_trims_too(queue: Queue) -> None:
    consumer = queue.consumer()
    await queue.publish(*[b"x"] * 300)
    await consumer.ack(await queue.take(consumer, 300))
    async with asyncio.timeout(60):
        while queue.length():
            await consumer.receive(1, 0.1)


async def test_nothing_unsettled_is_trimmed(queue: Queue) -> None:
    consumer = queue.consumer()
    await queue.publish(*(b"%d" % n for n in range(200)))
    taken = await queue.take(consumer, 200)
    held = taken[50]
    await consumer.ack([delivery for delivery in taken if delivery is not held])
    await consumer.flush()
    for _ in range(8):
        await consumer.extend([held], WINDOW)
        await consumer.receive(1, 0.1)
    assert 1 <= queue.length() <= 150  # all before it is gone
    await consumer.close()
    assert (await queue.take(queue.consumer(), 1))[0].packet.body == b"50"


async def test_a_group_that_has_not_read_yet_keeps_everything(queue: Queue) -> None:
    await queue.backend.declare("q", group="late")
    first = queue.consumer()
    await queue.publish(*(b"%d" % n for n in range(50)))
    await first.ack(await queue.take(first, 50))
    await first.close()
    assert queue.length() == 50
    late = queue.consumer("late")
    assert len(await queue.take(late, 50)) == 50


async def test_what_is_delayed_does_not_keep_the_rest(queue: Queue) -> None:
    consumer = queue.consumer()
    await queue.publish(*(b"%d" % n for n in range(100)))
    taken = await queue.take(consumer, 100)
    await consumer.nack(taken[:1], 0.2)
    await consumer.ack(taken[1:])
    await consumer.close()
    assert queue.length() == 0
    heir = queue.consumer()
    (again,) = await queue.take(heir, 1)
    assert (again.packet.body, again.attempt) == (b"0", 2)


# -- replies that are lost


async def test_a_nack_whose_reply_is_lost_delivers_once(queue: Queue, proxy: FaultProxy) -> None:
    """F68: said again, it is recognised."""
    consumer = queue.consumer()
    await queue.publish(b"x")
    taken = await queue.take(consumer, 1)
    await consumer.extend(taken, WINDOW)  # connected
    proxy.drop_reply(to=b"nack")
    with pytest.raises(eo.BrokerUnavailable):
        await consumer.nack(taken)
    assert list(await consumer.nack(taken)) == [False]
    assert len(await queue.take(consumer, 1)) == 1
    assert not await consumer.receive(10, 0.2)


async def test_a_dead_letter_whose_reply_is_lost_is_there_once(queue: Queue, proxy: FaultProxy) -> None:
    consumer = queue.consumer()
    await queue.publish(b"x")
    (delivery,) = await queue.take(consumer, 1)
    await consumer.extend([delivery], WINDOW)
    proxy.drop_reply(to=b"dead")
    with pytest.raises(eo.BrokerUnavailable):
        await consumer.dead_letter(delivery, {"why": "x"})
    assert await consumer.dead_letter(delivery, {"why": "x"}) is False
    dead = queue.backend.dead_letters("q", group="g")
    assert await dead.count() == 1
    await dead.close()


async def test_deliveries_whose_reply_is_lost_come_again(queue: Queue, proxy: FaultProxy) -> None:
    consumer = queue.consumer()
    await consumer.receive(1, 0.0)
    await queue.publish(b"0", b"1")
    proxy.drop_reply(to=b"XREADGROUP")
    with pytest.raises(eo.BrokerUnavailable):
        await consumer.receive(10, 1.0)
    again = await queue.take(consumer, 2)
    assert sorted((d.packet.body, d.attempt) for d in again) == [(b"0", 2), (b"1", 2)]


async def test_acks_whose_reply_is_lost_are_sent_again(queue: Queue, proxy: FaultProxy) -> None:
    """Reset before they arrive, and after: either way nothing is redelivered."""
    consumer = queue.consumer()
    await queue.publish(b"0", b"1")
    first, second = await queue.take(consumer, 2)
    await consumer.ack([first])
    proxy.reset()
    with pytest.raises(eo.BrokerUnavailable):
        await consumer.receive(1, 0.1)
    await consumer.receive(1, 0.0)
    await consumer.ack([second])
    proxy.drop_reply(to=b"XACK")
    with pytest.raises(eo.BrokerUnavailable):
        await consumer.receive(1, 0.1)
    await consumer.flush()
    pending: Any = queue.redis.xpending(queue.stream, "g")
    assert pending["pending"] == 0


async def test_what_was_acked_long_ago_is_not_taken_for_unsettled(queue: Queue) -> None:
    """A consumer that pauses for longer than the window between ack and receive does not get its own again."""
    consumer = queue.consumer()
    await queue.publish(b"x")
    await consumer.ack(await queue.take(consumer, 1))
    await asyncio.sleep(WINDOW * 1.2)
    assert not await consumer.receive(1, 0.1)


async def test_an_ack_after_the_window_is_proven(queue: Queue) -> None:
    """F54, F57: a buffered ack that is sent too late does not settle another's delivery."""
    slow, heir = queue.consumer(), queue.consumer()
    await queue.publish(b"x")
    late = await queue.take(slow, 1)
    assert list(await slow.ack(late)) == [True]  # in time, and kept back for the next receive
    (again,) = await queue.take(heir, 1)
    await slow.flush()
    assert list(await heir.extend([again], WINDOW)) == [True]
    assert list(await heir.nack([again])) == [True]


# -- a server in trouble


async def test_a_full_server_takes_all_of_a_batch_or_nothing(own: servers.Redis) -> None:
    """F44, and why `ordered_publish` is true: what stands behind a refused packet is refused too."""
    publisher = backend_at(own.url).publisher()
    own.execute("CONFIG", "SET", "maxmemory", "1")
    try:
        outcomes = await publisher.publish("full", [Packet(body=b"%d" % n) for n in range(5)])
        assert [type(outcome) for outcome in outcomes] == [eo.BrokerUnavailable] * 5
        (outcome,) = await publisher.publish("full", [Packet(body=b"1")])
        assert "out of memory" in str(outcome)
    finally:
        own.execute("CONFIG", "SET", "maxmemory", "0")
    assert list(await publisher.publish("full", [Packet(body=b"after")])) == [None]
    assert own.execute("XLEN", "eo:{full}") == 1
    await publisher.close()


async def test_consumers_of_a_full_server_go_on_and_make_room(own: servers.Redis) -> None:
    """What is due cannot be added again; what is there is delivered, acked and trimmed, and then it can."""
    backend = backend_at(own.url)
    publisher, consumer = backend.publisher(), backend.consumer("busy", group="g", prefetch=100)
    await publisher.publish("busy", [Packet(body=b"%d" % n) for n in range(50)])
    (first, *rest) = await consumer.receive(50, 1.0)
    await consumer.nack([first], 0.05)
    own.execute("CONFIG", "SET", "maxmemory", "1")
    try:
        await asyncio.sleep(0.2)
        await consumer.ack(rest)
        await publisher.close()
        async with asyncio.timeout(60):
            while own.execute("XLEN", "eo:{busy}"):
                assert not await consumer.receive(10, 0.1)
    finally:
        own.execute("CONFIG", "SET", "maxmemory", "0")
    async with asyncio.timeout(60):
        while not (found := await consumer.receive(10, 0.2)):
            pass
    assert [delivery.packet.body for delivery in found] == [b"0"]
    await consumer.close()


async def test_a_server_that_evicts_is_refused(own: servers.Redis) -> None:
    """F29."""
    own.execute("CONFIG", "SET", "maxmemory-policy", "allkeys-lru")
    try:
        with pytest.raises(eo.ConfigurationError, match="noeviction"):
            await backend_at(own.url).check("q", group="g")
        publisher = backend_at(own.url).publisher()
        with pytest.raises(eo.ConfigurationError, match="a whole queue"):
            await publisher.publish("q", [Packet(body=b"x")])
    finally:
        own.execute("CONFIG", "SET", "maxmemory-policy", "noeviction")


async def test_a_queue_that_was_deleted_is_there_again(queue: Queue) -> None:
    """FLUSHALL, DEL, a failover to a server without it: the group is made anew, from the start."""
    consumer = queue.consumer()
    await queue.publish(b"lost")
    await queue.take(consumer, 1)
    queue.redis.delete(queue.stream)
    await consumer.receive(1, 0.1)
    await queue.publish(b"new")
    assert (await queue.take(consumer, 1))[0].packet.body == b"new"


async def test_a_key_of_another_kind_is_a_configuration_error(queue: Queue) -> None:
    queue.redis.set(f"{queue.backend.namespace}:{{taken}}", "mine")
    (outcome,) = await queue.publisher.publish("taken", [Packet(body=b"x")])
    assert isinstance(outcome, eo.ConfigurationError)
    assert "namespace" in str(outcome)
    consumer = queue.backend.consumer("taken", group="g", prefetch=1)
    with pytest.raises(eo.ConfigurationError, match="another type"):
        await consumer.receive(1, 0.0)
    await consumer.close()


# -- what others write and read


async def test_an_entry_is_what_the_documentation_says(queue: Queue) -> None:
    packet = Packet(body=b"\0body", headers={"a": "ü"}, id="id-1", ordering_key="k")
    await queue.publisher.publish("q", [packet])
    ((_, fields),) = queue.redis.xrange(queue.stream)
    assert fields == {b"body": b"\0body", b"headers": '{"a":"ü"}'.encode(), b"id": b"id-1", b"key": b"k"}


@pytest.mark.parametrize(
    ("fields", "wanted"),
    [
        ({"order": "7", "note": "é"}, Packet(body='{"order":"7","note":"é"}'.encode())),
        ({"raw": b"\xff\x00"}, Packet(body=rb'{"raw":"\\xff\u0000"}')),
        ({"body": b"x", "headers": "{", "id": b"\xff"}, Packet(body=b"x", headers={"headers": "{"}, id=r"\xff")),
        ({"body": b"x", "headers": '{"a":1}', "id": "i"}, Packet(body=b"x", headers={"headers": '{"a":1}'}, id="i")),
        ({"body": b"x", "attempts": "many"}, Packet(body=b"x")),
    ],
)  # fmt: skip
async def test_what_another_program_added_is_delivered_as_far_as_it_can_be_read(
    queue: Queue, fields: Any, wanted: Packet
) -> None:
    """Never a crash loop: it goes to a handler, or to the dead letters."""
    queue.redis.xadd(queue.stream, fields)
    consumer = queue.consumer()
    (delivery,) = await queue.take(consumer, 1)
    assert delivery.packet == wanted
    assert await consumer.dead_letter(delivery, {"why": "x"})


# -- consumers


async def test_a_consumer_that_closes_leaves_no_name_behind(queue: Queue) -> None:
    consumer = queue.consumer()
    await queue.publish(b"x")
    await queue.take(consumer, 1)
    assert len(queue.redis.xinfo_consumers(queue.stream, "g")) == 1
    await consumer.close()
    assert queue.redis.xinfo_consumers(queue.stream, "g") == []


async def test_names_of_killed_consumers_are_forgotten(queue: Queue, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(redis_consumer, "FORGET_SILENT_AFTER_MS", 50)
    queue.redis.xgroup_createconsumer(queue.stream, "g", "killed")
    await queue.publish(b"x")
    queue.redis.xreadgroup("g", "holds-one", {queue.stream: ">"})
    await asyncio.sleep(0.1)
    await queue.consumer().receive(1, 0.0)
    names = [consumer["name"] for consumer in queue.redis.xinfo_consumers(queue.stream, "g")]
    assert b"killed" not in names
    assert b"holds-one" in names


async def test_acks_ride_with_the_next_read(queue: Queue, proxy: FaultProxy) -> None:
    consumer = queue.consumer()
    await queue.publish(*[b"x"] * 10)
    await consumer.receive(1, 0.0)
    before = proxy.requests
    for _ in range(3):
        await consumer.ack(await consumer.receive(3, 0.0))
    assert proxy.requests - before <= 4  # three reads, and perhaps one look after the others


@pytest.mark.parametrize(
    ("url", "hint"),
    [
        ("redis://localhost/queue", "number of a database"),
        ("redis://localhost/0?nope=1", "ack_window"),
        ("redis://localhost/0?ack_window=soon", "ack_window"),
        ("redis://localhost/0?namespace={x}", "braces"),
        ("redis://localhost/0?ca_file=x", "TLS"),
    ],
)
def test_a_wrong_option_is_refused(url: str, hint: str) -> None:
    with pytest.raises(eo.InvalidOption, match=hint):
        eo.connect_broker(url)
