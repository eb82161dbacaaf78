"""The connection of a broker to a Redis Cluster, with stand-ins for its nodes: which node is asked, and when again."""

from __future__ import annotations

from typing import Any

import pytest

from effectonce.backends.redis import broker_connection as module
from effectonce.backends.redis.broker_connection import MAX_REDIRECTS, RedisBrokerConnection, open_connection
from effectonce.backends.redis.endpoint import RedisEndpoint
from effectonce.backends.redis.errors import BrokerConnectionLost, RedisBrokerErrors, ReplyError
from effectonce.backends.redis.slots import CLUSTER_SLOTS
from effectonce.errors import BrokerUnavailable

from .test_routing import A, Socket

ALL_AT_B = [[0, CLUSTER_SLOTS - 1, [b"b", 2, b"id"]]]


class Node(Socket):
    """A node whose ``answers`` are those to its next commands, of whatever kind."""

    async def receive(self, count: int, within: float | None = None) -> list[Any]:
        replies = await super().receive(count, within)
        return [self.answers.pop(0) if reply == [b"done"] and self.answers else reply for reply in replies]


class Cluster:
    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.nodes: dict[str, Node] = {}
        monkeypatch.setattr(module, "AsyncRedisSocket", self._connect)
        self.a, self.b = self._connect(RedisEndpoint(host="a")), self._connect(RedisEndpoint(host="b"))
        endpoint = RedisEndpoint(shown="r", cluster=[A], error_kind=RedisBrokerErrors)
        self.connection: RedisBrokerConnection = open_connection(endpoint).of_queue("q")

    def _connect(self, endpoint: RedisEndpoint) -> Any:
        return self.nodes.setdefault(endpoint.host, Node(endpoint))

    def reads_of_slots(self) -> int:
        return sum(node.names().count("CLUSTER") for node in self.nodes.values())


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> Cluster:
    return Cluster(monkeypatch)


async def test_the_map_of_slots_is_read_once(cluster: Cluster) -> None:
    for _ in range(3):
        assert await cluster.connection.call("XLEN", "q") == [b"done"]
    assert cluster.a.names() == ["CLUSTER", "XLEN", "XLEN", "XLEN"]


async def test_all_commands_go_to_the_node_to_which_the_slot_has_moved(cluster: Cluster) -> None:
    cluster.a.answers = [[b"done"], ReplyError("MOVED 1 b:2")]
    assert await cluster.connection.exchange(("XADD", "q"), ("XLEN", "q")) == [[b"done"], [b"done"]]
    assert cluster.b.names() == ["XADD", "XLEN"]


async def test_while_the_slot_is_migrated_the_new_node_is_asked_for_this_once(cluster: Cluster) -> None:
    cluster.a.answers = [ReplyError("ASK 1 b:2")]
    assert await cluster.connection.exchange(("XLEN", "q")) == [[b"done"]], "without the reply to ASKING"
    assert cluster.b.names() == ["ASKING", "XLEN"]
    await cluster.connection.call("XLEN", "q")
    assert cluster.b.names() == ["ASKING", "XLEN"], "the slot is still at the first node"


async def test_a_queue_that_is_moved_on_and_on_is_tried_again_later(cluster: Cluster) -> None:
    cluster.a.answers = cluster.b.answers = [ReplyError("MOVED 1 b:2")] * (MAX_REDIRECTS + 1)
    with pytest.raises(BrokerUnavailable, match="moving this queue"):
        await cluster.connection.call("XLEN", "q")
    assert len(cluster.a.names()) + len(cluster.b.names()) == 1 + MAX_REDIRECTS


async def test_keys_that_are_moved_now_are_waited_for_a_little_longer_each_time(cluster: Cluster) -> None:
    cluster.a.answers = [ReplyError("TRYAGAIN x")] * 3
    assert await cluster.connection.call("XLEN", "q") == [b"done"]
    assert cluster.a.pauses == [0.01, 0.02, 0.04]


@pytest.mark.parametrize(
    ("answer", "raised"),
    [
        (ReplyError("READONLY x"), BrokerConnectionLost),
        (ReplyError("CLUSTERDOWN x"), BrokerUnavailable),
        (BrokerUnavailable("no answer"), BrokerUnavailable),
    ],
)
async def test_after_a_failure_of_its_node_the_map_of_slots_is_read_again(
    cluster: Cluster, answer: Exception, raised: type[Exception]
) -> None:
    """A replica may be the primary by now."""
    await cluster.connection.call("XLEN", "q")
    if isinstance(answer, ReplyError):
        cluster.a.answers = [answer]
    else:
        cluster.a.error = answer
    with pytest.raises(raised):
        await cluster.connection.call("XLEN", "q")
    cluster.a.slots, cluster.a.error = ALL_AT_B, None
    cluster.b.slots = ALL_AT_B
    await cluster.connection.call("XLEN", "q")
    assert (cluster.reads_of_slots(), cluster.b.names()[-1]) == (2, "XLEN")


async def test_an_error_that_says_nothing_about_the_cluster_leaves_the_map_as_it_is(cluster: Cluster) -> None:
    cluster.a.answers = [ReplyError("NOGROUP x")]
    with pytest.raises(Exception, match="NOGROUP"):
        await cluster.connection.call("XREADGROUP", "q")
    await cluster.connection.call("XLEN", "q")
    assert cluster.reads_of_slots() == 1


async def test_an_error_reply_is_returned_to_who_asks_for_it(cluster: Cluster) -> None:
    cluster.a.answers = [ReplyError("BUSYGROUP x")]
    (reply,) = await cluster.connection.exchange(("XGROUP", "q"), check=False)
    assert isinstance(reply, ReplyError)


async def test_a_slot_without_a_node_is_an_outage_and_is_looked_for_again(cluster: Cluster) -> None:
    cluster.a.slots = [[0, 0, [b"a", 1, b"id"]]]
    with pytest.raises(BrokerUnavailable, match="no node for this queue's slot"):
        await cluster.connection.call("XLEN", "q")
    cluster.a.slots = ALL_AT_B
    assert await cluster.connection.call("XLEN", "q") == [b"done"]


async def test_a_closed_connection_drops_the_sockets_of_all_nodes(cluster: Cluster) -> None:
    cluster.a.answers = [ReplyError("MOVED 1 b:2")]
    await cluster.connection.call("XLEN", "q")
    await cluster.connection.close()
    assert (cluster.a.drops, cluster.b.drops) == (1, 1)
