"""Queues on a Redis Cluster, over a Unix socket, and on the server of the caller's own client."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import redis

import effectonce as eo
from effectonce.backends.redis.broker import RedisBrokerBackend
from effectonce.backends.redis.broker_connection import RedisClusterBrokerConnection, _with_asking
from effectonce.backends.redis.endpoint import Node, RedisEndpoint
from effectonce.backends.redis.errors import RedisBrokerErrors, ReplyError
from effectonce.backends.redis.slots import CLUSTER_SLOTS
from effectonce.errors import BrokerUnavailable, InvalidOption
from effectonce.testing.suites import Site, broker_suite
from effectonce.values.urls import Address
from tests.backends.queue_under_test import QueueUnderTest, receive
from tests.backends.redis.test_routing import Socket
from tests.harness import servers
from tests.harness.redis_cluster import RedisCluster, redis_cluster


class TestContractOnACluster(broker_suite()):  # type: ignore[misc]
    """Each case has a queue of its own, so their slots are on all nodes."""

    pytestmark = pytest.mark.long

    @pytest.fixture
    def site(self, redis_cluster_url: str, unique_name: str, request: pytest.FixtureRequest) -> Site:
        needs = request.node.name
        if any(word in needs for word in ("restart", "unreachable", "credentials", "cut", "connection")):
            pytest.skip("of the connection, and the same as on one server")
        return Site(backend=RedisBrokerBackend(Address(f"{redis_cluster_url}?namespace={unique_name}&ack_window=0.6")))


async def test_queues_of_all_nodes_are_served_through_one_publisher(redis_cluster_url: str, unique_name: str) -> None:
    backend = RedisBrokerBackend(Address(f"{redis_cluster_url}?namespace={unique_name}"))
    queues = [QueueUnderTest(backend, f"orders{n}") for n in range(6)]
    for queue in queues:
        queue.publisher = queues[0].publisher
        consumer = await queue.consumer()
        await queue.publish(b"1", b"2")  # a transaction
        await queue.publish(b"3")
        arrived = await receive(consumer, 3)
        assert [delivery.packet.body for delivery in arrived] == [b"1", b"2", b"3"]
        assert await consumer.ack(arrived[:1]) == [True]
        assert await consumer.nack(arrived[1:2]) == [True]
        assert await consumer.dead_letter(arrived[2], {"why": "test"})
        assert await queue.dead_letters().count() == 1
    for queue in queues:
        await queue.close()


@pytest.mark.chaos
async def test_f59_a_queue_goes_on_at_the_node_that_its_slot_has_moved_to(unique_name: str) -> None:
    with redis_cluster() as cluster:
        backend = RedisBrokerBackend(Address(f"{cluster.url}?namespace={unique_name}&ack_window=1s"))
        queue = QueueUnderTest(backend, "orders")
        consumer = await queue.consumer()
        await queue.publish(b"1", b"2")
        first = await receive(consumer, 2)
        await asyncio.to_thread(move_slot, cluster, f"{unique_name}:{{orders}}")
        assert await consumer.ack(first) == [True, True]
        await consumer.flush()
        await queue.publish(b"3", b"4")
        await queue.publish(b"5")
        assert [d.packet.body for d in await receive(consumer, 3)] == [b"3", b"4", b"5"]
        await queue.close()


def move_slot(cluster: RedisCluster, key: str) -> None:
    """Move the slot of ``key`` to another node, and stop half-way for a moment: with its keys there, and the slot not
    assigned yet."""
    slot = int(cluster.nodes[0].execute("CLUSTER", "KEYSLOT", key))
    ids = [str(node.execute("CLUSTER", "MYID")) for node in cluster.nodes]
    source = next(n for n, node in enumerate(cluster.nodes) if node.execute("CLUSTER", "COUNTKEYSINSLOT", slot))
    target = (source + 1) % 3
    cluster.nodes[target].execute("CLUSTER", "SETSLOT", slot, "IMPORTING", ids[source])
    cluster.nodes[source].execute("CLUSTER", "SETSLOT", slot, "MIGRATING", ids[target])
    while keys := cluster.nodes[source].execute("CLUSTER", "GETKEYSINSLOT", slot, 100):
        port = cluster.nodes[target].port
        cluster.nodes[source].execute("MIGRATE", "127.0.0.1", port, "", 0, 5000, "KEYS", *keys)
    for node in (target, source, (source + 2) % 3):
        cluster.nodes[node].execute("CLUSTER", "SETSLOT", slot, "NODE", ids[target])


# -- redirections, with stand-ins for the nodes

A, B = Node("a", 1), Node("b", 2)


class ClusterConnection(RedisClusterBrokerConnection):
    def __init__(self) -> None:
        super().__init__(RedisEndpoint(shown="r", cluster=[A], error_kind=RedisBrokerErrors))
        self.made: dict[str, Socket] = {}
        self._nodes._connect = self._stand_in

    def _stand_in(self, endpoint: RedisEndpoint) -> Any:
        return self.made.setdefault(endpoint.host, Socket(endpoint))


async def test_a_queue_whose_slot_has_moved_is_followed_and_one_that_is_moving_is_asked_for() -> None:
    connection = ClusterConnection().of_queue("eo:{orders}")
    await connection.exchange(("EVALSHA",))
    a = connection.made["a"]
    a.answers = [ReplyError("ASK 1 b:2")]
    assert await connection.exchange(("EVALSHA",)) == [[b"done"]]
    b = connection.made["b"]
    assert b.names() == ["ASKING", "EVALSHA"]
    a.answers = [ReplyError("MOVED 1 b:2")]
    assert await connection.exchange(("EVALSHA",)) == [[b"done"]]
    assert b.names() == ["ASKING", "EVALSHA", "EVALSHA"]
    a.answers = [ReplyError("TRYAGAIN x"), ReplyError("TRYAGAIN x")]
    assert await connection.exchange(("EVALSHA",)) == [[b"done"]]
    assert a.pauses == [0.01, 0.02]


async def test_f59_a_queue_that_never_stops_moving_is_unavailable() -> None:
    connection = ClusterConnection().of_queue("eo:{orders}")
    await connection.exchange(("EVALSHA",))
    connection.made["a"].answers = [ReplyError("ASK 1 a:1")] * 20
    with pytest.raises(BrokerUnavailable, match="is moving this queue"):
        await connection.exchange(("EVALSHA",))


async def test_a_queue_without_a_node_is_unavailable_and_the_slots_are_read_again() -> None:
    connection = ClusterConnection().of_queue("eo:{orders}")
    connection._nodes.new_socket(A)
    connection.made["a"].slots = [[0, 0, [b"a", 1, b"id"]]]
    with pytest.raises(BrokerUnavailable, match="no node for this queue's slot"):
        await connection.exchange(("EVALSHA",))
    connection.made["a"].slots = [[0, CLUSTER_SLOTS - 1, [b"a", 1, b"id"]]]
    assert await connection.exchange(("EVALSHA",)) == [[b"done"]]


def test_asking_stands_before_each_command_and_once_before_a_transaction() -> None:
    assert _with_asking((("XACK",), ("XREADGROUP",))) == (("ASKING",), ("XACK",), ("ASKING",), ("XREADGROUP",))
    assert _with_asking((("MULTI",), ("XADD",), ("EXEC",))) == (("ASKING",), ("MULTI",), ("XADD",), ("EXEC",))


# -- Unix sockets, and the caller's own client


@pytest.fixture(scope="module")
def on_socket(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    path = tmp_path_factory.mktemp("redis") / "s"
    with servers.redis("--unixsocket", str(path)):
        yield path


def round_trip(broker: eo.Broker) -> list[bytes]:
    async def publish_and_receive() -> list[bytes]:
        queue = QueueUnderTest(broker.backend, "orders")
        consumer = await queue.consumer()
        await queue.publish(b"1")
        arrived = await receive(consumer, 1)
        await consumer.ack(arrived)
        await queue.close()
        return [delivery.packet.body for delivery in arrived]

    return asyncio.run(publish_and_receive())


@pytest.mark.parametrize("scheme", ["unix", "redis+unix"])
def test_a_unix_socket_serves_queues(on_socket: Path, scheme: str, unique_name: str) -> None:
    assert round_trip(eo.connect_broker(f"{scheme}://{on_socket}?db=1&namespace={unique_name}")) == [b"1"]


@pytest.mark.parametrize("scheme", ["valkey", "redis"])
def test_valkeys_scheme_is_that_of_redis(redis_url: str, scheme: str, unique_name: str) -> None:
    url = redis_url.replace("redis://", f"{scheme}://")
    assert round_trip(eo.connect_broker(f"{url}?namespace={unique_name}")) == [b"1"]
    with eo.connect(f"{url}?namespace={unique_name}") as store:
        store.check()


@pytest.mark.parametrize("library", ["sync", "async"])
def test_the_callers_own_client_says_where_the_queues_are(redis_url: str, library: str, unique_name: str) -> None:
    kind: Any = redis.Redis if library == "sync" else redis.asyncio.Redis
    broker = eo.RedisBroker(client=kind.from_url(redis_url), namespace=unique_name, ack_window="2s")
    assert broker.capabilities.ack_window_s == 2.0
    assert round_trip(broker) == [b"1"]


def test_a_cluster_client_says_where_the_queues_are(redis_cluster_url: str, unique_name: str) -> None:
    client = redis.RedisCluster.from_url(redis_cluster_url.replace("redis+cluster", "redis"))
    assert round_trip(eo.RedisBroker(client=client, namespace=unique_name)) == [b"1"]
    client.close()


def test_a_client_that_does_not_say_where_its_server_is_names_the_remedy() -> None:
    with pytest.raises(InvalidOption, match=r"make the broker from a URL: eo\.connect_broker"):
        eo.RedisBroker(client=object())
