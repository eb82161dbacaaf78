"""Slots, redirections and failing nodes of a Redis Cluster, with stand-ins for the sockets; and keys and cursors."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import hiredis
import pytest

from effectonce.backends.redis import slots as slots_module
from effectonce.backends.redis.cluster import RedisClusterConnection
from effectonce.backends.redis.connection import RedisNodeConnection, Subscription, run_script
from effectonce.backends.redis.endpoint import Node, RedisEndpoint, parse_nodes
from effectonce.backends.redis.errors import RedisErrors, ReplyError
from effectonce.backends.redis.record_format import Layout, index_keys, parse_answer, parse_change, parse_record
from effectonce.backends.redis.slots import CLUSTER_SLOTS, DOWN_NODE_CONNECT_S, DOWN_NODE_PAUSE_S, slot_of
from effectonce.backends.redis.store import RedisClientStoreBackend, RedisStoreBackend
from effectonce.contracts import ConnectionLost
from effectonce.errors import ConfigurationError, CorruptRecord, InvalidOption, StoreUnavailable, UnsafeStore
from effectonce.record import EXHAUSTED_ERROR
from effectonce.values.urls import Address

A, B = Node("a", 1), Node("b", 2)
SCRIPT: Any = SimpleNamespace(sha=b"sha", source=b"source")


def test_a_slot_is_that_of_the_hash_tag() -> None:
    assert slot_of(b"123456789") == 0x31C3 % CLUSTER_SLOTS  # the example of the specification
    assert slot_of(b"{user1000}.following") == slot_of(b"{user1000}.followers") == slot_of(b"user1000")
    assert slot_of(b"foo{}{bar}") == slot_of(b"foo{}{bar}") != slot_of(b"bar")
    assert slot_of(b"foo{{bar}}zap") == slot_of(b"{bar")
    assert slot_of(b"foo{bar}{zap}") == slot_of(b"bar")
    assert slot_of(b"x{a}") == slot_of(b"a")
    assert slot_of(b"}a{") != slot_of(b"a")


def test_nodes_are_listed_with_their_ports() -> None:
    assert parse_nodes("a:1,b,[::1]:7,[::2]") == [Node("a", 1), Node("b", 6379), Node("::1", 7), Node("::2", 6379)]
    assert [str(node) for node in parse_nodes("a:1,[::1]:7")] == ["a:1", "[::1]:7"]


# -- batches


class Socket:
    """A node. ``answers`` are the replies to its next scripts; every other command is answered by OK."""

    def __init__(self, endpoint: RedisEndpoint) -> None:
        self.endpoint = endpoint
        self.answers: list[Any] = []
        self.slots: Any = [[0, CLUSTER_SLOTS - 1, [b"a", 1, b"id"], [b"", 2, b"id"]]]
        self.commands: list[tuple[bytes, ...]] = []
        self.pauses: list[float] = []
        self.drops = 0
        self.sends = 0
        self.error: Exception | None = None
        self._pending: list[Any] = []

    async def send(self, data: bytes) -> None:
        self.sends += 1
        if self.error is not None:
            raise self.error
        reader = hiredis.Reader()
        reader.feed(data)
        while (command := reader.gets()) is not False:
            self.commands.append(tuple(command))
            if command[0] == b"CLUSTER":
                self._pending.append(self.slots)
            else:
                is_script = command[0] == b"EVALSHA"
                self._pending.append(self.answers.pop(0) if is_script and self.answers else [b"done"])

    async def receive(self, count: int, within: float | None = None) -> list[Any]:
        replies, self._pending = self._pending[:count], self._pending[count:]
        for reply in replies:
            if isinstance(reply, (StoreUnavailable, asyncio.CancelledError)):
                raise reply
        return replies

    async def pause(self, seconds: float) -> None:
        self.pauses.append(seconds)

    def drop(self) -> None:
        self.drops += 1

    def names(self) -> list[str]:
        return [command[0].decode() for command in self.commands]


class Cluster:
    def __init__(self) -> None:
        self.connection = RedisClusterConnection(self._connect, RedisEndpoint(shown="r", cluster=[A]))
        self.sockets: dict[str, Socket] = {}
        self.a, self.b = self._socket("a"), self._socket("b")

    def _socket(self, host: str) -> Socket:
        return self.sockets.setdefault(host, Socket(RedisEndpoint()))

    def _connect(self, endpoint: RedisEndpoint) -> Any:
        return self._socket(endpoint.host)

    async def batch(self, *keys: bytes) -> list[Any]:
        return list(await self.connection.batch(SCRIPT, keys, [b""] * len(keys)))


@pytest.fixture
def cluster() -> Cluster:
    return Cluster()


async def test_slots_are_read_once_and_scripts_name_the_indexes_of_their_key(cluster: Cluster) -> None:
    assert await cluster.batch(b"eo:{n/00}:k") == [b"done"]
    assert await cluster.batch(b"eo:{n/00}:k") == [b"done"]
    assert cluster.a.names() == ["CLUSTER", "EVALSHA", "EVALSHA"]
    assert cluster.a.commands[1][1:-1] == (b"sha", b"3", b"eo:{n/00}:k", b"eo:{n/00}:open", b"eo:{n/00}:doubt")


async def test_a_script_that_a_node_does_not_know_is_loaded_once_for_all_items(cluster: Cluster) -> None:
    cluster.a.answers = [ReplyError("NOSCRIPT x")] * 2
    assert await cluster.batch(b"k1", b"k2") == [b"done"] * 2
    assert cluster.a.names() == ["CLUSTER", "EVALSHA", "EVALSHA", "SCRIPT", "EVALSHA", "EVALSHA"]


async def test_a_slot_that_has_moved_is_followed_and_remembered(cluster: Cluster) -> None:
    cluster.a.answers = [ReplyError("MOVED 1 b:2")]
    assert await cluster.batch(b"k") == [b"done"]
    assert cluster.b.names() == ["EVALSHA"]
    await cluster.batch(b"k")
    assert cluster.a.names() == ["CLUSTER", "EVALSHA", "CLUSTER", "EVALSHA"]  # the map was read again


async def test_a_slot_that_is_moving_is_asked_for_at_the_other_node_this_time_only(cluster: Cluster) -> None:
    cluster.a.answers = [ReplyError("ASK 1 b:2")]
    assert await cluster.batch(b"k") == [b"done"]
    assert cluster.b.names() == ["ASKING", "EVALSHA"]
    await cluster.batch(b"k")
    assert cluster.a.names() == ["CLUSTER", "EVALSHA", "EVALSHA"]


async def test_a_redirection_without_a_host_is_to_the_node_that_was_asked(cluster: Cluster) -> None:
    cluster.a.answers = [ReplyError("MOVED 1 :7")]
    assert await cluster.batch(b"k") == [b"done"]
    assert cluster.a.names() == ["CLUSTER", "EVALSHA", "EVALSHA"]


async def test_a_key_that_is_moving_now_is_tried_again_with_growing_pauses(cluster: Cluster) -> None:
    cluster.a.answers = [ReplyError("TRYAGAIN x")] * 3
    assert await cluster.batch(b"k") == [b"done"]
    assert cluster.a.pauses == [0.01, 0.02, 0.04]
    cluster.a.answers = [ReplyError("TRYAGAIN x")] * 8
    (reply,) = await cluster.batch(b"k")
    assert isinstance(reply, StoreUnavailable)
    assert "is moving this key" in str(reply)


async def test_f36_a_node_that_fails_fails_its_own_items_only(cluster: Cluster) -> None:
    half = CLUSTER_SLOTS // 2
    cluster.a.slots = [[0, half - 1, [b"a", 1, b"id"]], [half, CLUSTER_SLOTS - 1, [b"b", 2, b"id"]]]
    keys = [b"%d" % n for n in range(20)]
    cluster.b.error = ConnectionLost("gone")
    replies = await cluster.batch(*keys)
    for key, reply in zip(keys, replies, strict=True):
        assert isinstance(reply, ConnectionLost) == (slot_of(key) >= half)
    cluster.b.error = None
    cluster.b.answers = [StoreUnavailable("late")]
    assert {type(reply) for reply in await cluster.batch(*keys)} == {bytes, StoreUnavailable}


async def test_a_slot_without_a_node_fails_its_items_and_the_map_is_read_again(cluster: Cluster) -> None:
    cluster.a.slots = [[0, 0, [b"a", 1, b"id"]]]
    (reply,) = await cluster.batch(b"k")
    assert "has no node for this key's slot" in str(reply)
    cluster.a.slots = [[0, CLUSTER_SLOTS - 1, [b"a", 1, b"id"]]]
    assert await cluster.batch(b"k") == [b"done"]


def halves(first: bytes, second: bytes) -> list[Any]:
    half = CLUSTER_SLOTS // 2
    return [[0, half - 1, [first, 1, b"id"]], [half, CLUSTER_SLOTS - 1, [second, 2, b"id"]]]


KEYS = [b"%d" % n for n in range(20)]


async def test_f36_a_node_that_does_not_answer_is_left_alone_for_a_moment_and_delays_no_other(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = 100.0
    monkeypatch.setattr(slots_module.time, "monotonic", lambda: now)
    cluster.a.slots = halves(b"a", b"b")
    await cluster.batch(*KEYS)
    cluster.b.error = StoreUnavailable("did not answer")
    for _ in range(3):
        replies = await cluster.batch(*KEYS)
        assert {type(reply) for reply in replies} == {bytes, StoreUnavailable}
    assert cluster.b.sends == 1 + 1  # before it failed, and once since
    assert "did not answer a moment ago" in str(next(r for r in replies if isinstance(r, StoreUnavailable)))
    now += 2 * DOWN_NODE_PAUSE_S
    await cluster.batch(*KEYS)
    assert cluster.b.sends == 3
    assert cluster.b.endpoint.connect_timeout == DOWN_NODE_CONNECT_S  # it is given less time than others
    cluster.b.error = None
    now += 2 * DOWN_NODE_PAUSE_S
    assert set(await cluster.batch(*KEYS)) == {b"done"}
    assert cluster.b.endpoint.connect_timeout == 5.0


async def test_a_node_whose_connection_broke_is_asked_again_at_once(cluster: Cluster) -> None:
    cluster.a.slots = halves(b"a", b"b")
    cluster.b.error = ConnectionLost("reset")
    await cluster.batch(*KEYS)
    cluster.b.error = None
    assert set(await cluster.batch(*KEYS)) == {b"done"}


async def test_the_map_is_asked_of_the_nodes_that_answer(cluster: Cluster) -> None:
    cluster.a.slots = cluster.b.slots = halves(b"a", b"b")
    await cluster.batch(*KEYS)
    cluster.a.error = StoreUnavailable("did not answer")
    await cluster.batch(*KEYS)
    asked, sends = cluster.b.names().count("CLUSTER"), cluster.a.sends
    await cluster.batch(*KEYS)
    assert cluster.b.names().count("CLUSTER") == asked + 1
    assert cluster.a.sends == sends


@pytest.mark.parametrize(
    ("server", "node"),
    [
        ([None, 7, b"id"], Node("asked", 7)),
        ([b"", 7, b"id"], Node("asked", 7)),
        ([b"?", 7, b"id"], Node("asked", 7)),
        ([b"?", 7, b"id", [b"ip", b"10.0.0.1"]], Node("10.0.0.1", 7)),
        ([b"::1", 7, b"id", []], Node("::1", 7)),
        ([b"redis.example", 7, b"id", [b"ip", b"10.0.0.1"]], Node("redis.example", 7)),
    ],
)
def test_a_node_that_the_cluster_has_no_name_for_is_found(server: list[Any], node: Node) -> None:
    assert slots_module._read_server(server, Node("asked", 1)) == node


@pytest.mark.parametrize(
    ("place", "node"), [("?:2", B), ("?:9", Node("a", 9)), ("::1:7", Node("::1", 7)), (":7", Node("a", 7))]
)
async def test_a_redirection_may_name_an_ipv6_address_or_no_host_that_is_known(
    cluster: Cluster, place: str, node: Node
) -> None:
    cluster.a.slots = halves(b"a", b"b")
    await cluster.batch(*KEYS)
    assert cluster.connection._nodes.redirection(ReplyError(f"ASK 1 {place}"), A) == node


@pytest.mark.parametrize(("code", "is_stale"), [("READONLY", True), ("CLUSTERDOWN", True), ("OOM", False)])
async def test_an_error_of_a_node_is_that_of_its_item(cluster: Cluster, code: str, is_stale: bool) -> None:
    cluster.a.answers = [ReplyError(f"{code} x")]
    (reply,) = await cluster.batch(b"k")
    assert isinstance(reply, ReplyError)
    await cluster.batch(b"k")
    assert cluster.a.names().count("CLUSTER") == (2 if is_stale else 1)


async def test_a_connection_that_was_closed_and_is_used_again_reads_the_map_of_slots_again(cluster: Cluster) -> None:
    await cluster.batch(b"k")
    await cluster.connection.close()
    assert cluster.a.drops == 1
    cluster.a.slots = [[0, CLUSTER_SLOTS - 1, [b"b", 2, b"id"]]]
    await cluster.batch(b"k")
    assert (cluster.a.names().count("CLUSTER"), cluster.b.names()) == (2, ["EVALSHA"])


async def test_a_cancelled_batch_drops_the_connections_with_replies_under_way(cluster: Cluster) -> None:
    cluster.a.answers = [asyncio.CancelledError()]
    with pytest.raises(asyncio.CancelledError):
        await cluster.batch(b"k")
    assert cluster.a.drops == 1


async def test_another_node_is_asked_for_the_slots_where_one_does_not_answer(cluster: Cluster) -> None:
    await cluster.batch(b"k")  # names the replica, too, without a host: it is where the node is that was asked
    assert list(cluster.connection._nodes._known) == [A, Node("a", 2)]
    other = RedisClusterConnection(cluster._connect, RedisEndpoint(shown="r", cluster=[B, A]))
    for error in (StoreUnavailable("down"), UnsafeStore("evicts")):
        cluster.b.error = error
        assert list(await other.nodes()) == ["a:1"]


@pytest.mark.parametrize(
    ("reply", "kind", "said"),
    [
        (ReplyError("ERR This instance has cluster support disabled"), ConfigurationError, "not a Redis Cluster"),
        (ReplyError("LOADING x"), StoreUnavailable, "is loading"),
        ([], StoreUnavailable, "not assigned its slots"),
    ],
)
async def test_a_server_that_has_no_slots_says_why(
    cluster: Cluster, reply: Any, kind: type[Exception], said: str
) -> None:
    cluster.a.slots = reply
    with pytest.raises(kind, match=said):
        await cluster.connection.nodes()


async def test_a_script_is_loaded_where_the_server_does_not_know_it() -> None:
    class Connection:
        errors = RedisErrors("r")

        def __init__(self, *replies: Any) -> None:
            self.replies, self.commands = list(replies), []

        async def command(self, node: str, *words: Any) -> Any:
            self.commands.append(words[0])
            reply = self.replies.pop(0)
            if isinstance(reply, Exception):
                raise reply
            return reply

    connection: Any = Connection(ReplyError("NOSCRIPT x"), b"sha", [b"done"])
    assert await run_script(connection, "", SCRIPT, [b"k"], []) == [b"done"]
    assert connection.commands == ["EVALSHA", "SCRIPT", "EVALSHA"]
    for text, kind in (("OOM x", StoreUnavailable), ("WRONGTYPE x", CorruptRecord)):
        with pytest.raises(kind):
            await run_script(Connection(ReplyError(text)), "", SCRIPT, [b"k"], [])  # type: ignore[arg-type]


# -- subscriptions


class Pushing(Socket):
    """A server that pushes messages."""

    pushed: list[list[Any]]

    async def receive(self, count: int | None, within: float | None = None) -> list[Any]:
        if count is not None:
            return [[b"subscribe"]]
        return self.pushed.pop(0) if self.pushed else []


async def test_a_subscription_returns_messages_and_notices_a_silent_server() -> None:
    socket = Pushing(RedisEndpoint(timeout=0.01))
    socket.pushed = [[[b"pong", b""], [b"message", b"c", b""], [b"message", b"c", b"x"], [b"message", b"c", b"y"]]]
    subscription = Subscription(socket)  # type: ignore[arg-type]
    assert await subscription.listen("c", 5.0) == [b"x", b"y"]
    assert socket.names() == ["SUBSCRIBE"]
    assert await subscription.listen("c", 0.0) == []
    assert socket.names() == ["SUBSCRIBE", "PING"]
    await asyncio.sleep(0.02)
    socket.pushed = [[[b"pong", b""]]]
    assert await subscription.listen("c", 0.0) == []  # it has answered, and is pinged again
    assert socket.names()[2:] == ["PING"]
    await asyncio.sleep(0.02)
    drops = socket.drops
    with pytest.raises(StoreUnavailable, match="did not answer"):
        await subscription.listen("c", 0.0)
    assert socket.drops == drops + 1
    await subscription.listen("c", 0.0)
    assert socket.names()[3] == "SUBSCRIBE"


# -- keys, answers and cursors


@pytest.mark.parametrize("namespace", ["", "a b", "a{", "é", "n" * 65])
def test_a_namespace_is_a_plain_name(namespace: str) -> None:
    assert Layout("n" * 64).meta == b"eo:{%b}:meta" % (b"n" * 64)
    with pytest.raises(InvalidOption, match="namespace"):
        Layout(namespace)


def test_a_record_and_its_indexes_are_on_one_node() -> None:
    layout = Layout("shop")
    key = layout.key("scope", "key")
    assert {slot_of(name) for name in (key, *index_keys(key))} == {slot_of(key)}
    assert len(index_keys(key)) == 2
    assert index_keys(layout.meta) == ()


@pytest.mark.parametrize(
    ("item", "expected"),
    [
        (
            [b"claimed", 7, 2, 1, 1, None],
            {"kind": "claimed", "token": 7, "attempts": 2, "generation": 1, "lapsed": True, "error": None},
        ),
        ([b"claimed", 7, 2, 1, 0, b"e"], {"kind": "claimed", "lapsed": False, "error": b"e"}),
        ([b"done", 7, 2, 1, b"r"], {"kind": "done", "result": b"r"}),
        ([b"in_progress", 7, 2, 1, 1_500_000], {"kind": "in_progress", "retry_after": 1.5}),
        ([b"failed", 7, 2, 1, b"e"], {"kind": "failed", "error": b"e"}),
        ([b"failed", 7, 2, 1, EXHAUSTED_ERROR], {"kind": "exhausted", "error": EXHAUSTED_ERROR}),
        ([b"failed", 7, 2, 1, EXHAUSTED_ERROR + b"e"], {"kind": "exhausted", "error": EXHAUSTED_ERROR + b"e"}),
        ([b"in_doubt", 7, 2, 1, None], {"kind": "in_doubt", "token": 7, "attempts": 2}),
    ],
)
def test_an_answer_has_what_its_kind_needs(item: list[Any], expected: dict[str, Any]) -> None:
    answer = parse_answer(item)
    assert {name: getattr(answer, name) for name in expected} == expected


@pytest.mark.parametrize("fields", [[], [b"h", b"short", b"S", b"s", b"K", b"k"]])
def test_a_hash_of_another_program_is_corrupt(fields: list[bytes]) -> None:
    with pytest.raises(CorruptRecord, match="HGETALL"):
        parse_record(b"name", fields)


def test_a_change_names_the_scope_and_the_key() -> None:
    assert parse_change(b"3:a:bkey") == ("a:b", "key")
    assert parse_change("2:ék".encode()) == ("é", "k")


# -- the store


def seeds_of(url: str) -> list[Node]:
    return list(RedisStoreBackend(Address(url))._endpoint.cluster)


def test_a_cluster_is_asked_at_the_nodes_of_its_url() -> None:
    assert seeds_of("redis+cluster://") == [Node("localhost", 6379)]
    assert seeds_of("redis+cluster://h:7000?nodes=i:7001,j") == [Node("h", 7000), Node("i", 7001), Node("j", 6379)]
    assert seeds_of("redis+cluster://h:7000,[::1]:7001") == [Node("h", 7000), Node("::1", 7001)]
    assert seeds_of("redis://h") == []
    with pytest.raises(InvalidOption, match="only database 0"):
        seeds_of("redis+cluster://h/1")


def test_a_batch_through_a_cluster_client_is_a_round_trip_for_each_operation() -> None:
    class Client:
        def execute_command(self) -> None: ...

    class ClusterClient(Client):
        def get_primaries(self) -> None: ...

    assert RedisClientStoreBackend(Client()).capabilities.mixed_batches
    assert not RedisClientStoreBackend(ClusterClient()).capabilities.mixed_batches
    assert repr(RedisClientStoreBackend(Client())) == "tests.Client"
    with pytest.raises(InvalidOption, match="not a Redis client"):
        RedisClientStoreBackend(object())


# -- connections that fail


async def test_a_node_that_does_not_answer_a_command_makes_the_map_of_slots_be_read_again(cluster: Cluster) -> None:
    await cluster.batch(b"k")
    cluster.a.error = StoreUnavailable("away")
    with pytest.raises(StoreUnavailable):
        await cluster.connection.command("a:1", "INFO")
    cluster.a.error = None
    await cluster.batch(b"k")
    assert cluster.a.names().count("CLUSTER") == 2


async def test_an_error_reply_to_a_command_is_raised_as_it_is(cluster: Cluster) -> None:
    await cluster.batch(b"k")

    async def refuse(count: int, within: float | None = None) -> list[Any]:
        return [ReplyError("NOPERM info")]

    cluster.a.receive = refuse  # type: ignore[method-assign]
    with pytest.raises(ReplyError, match="NOPERM"):
        await cluster.connection.command("a:1", "INFO")


async def test_a_subscription_that_broke_is_made_again(cluster: Cluster) -> None:
    class Breaking:
        async def listen(self, channel: str, timeout: float) -> list[bytes]:
            raise StoreUnavailable("broke")

        def drop(self) -> None: ...

    cluster.connection._subscription = Breaking()  # type: ignore[assignment]
    with pytest.raises(StoreUnavailable):
        await cluster.connection.listen("changes", 0.1)
    assert cluster.connection._subscription is None


@pytest.mark.parametrize(
    ("text", "is_dropped"), [("READONLY You can't write", True), ("OOM command not allowed", False)]
)
async def test_a_connection_to_what_is_a_replica_now_is_dropped(text: str, is_dropped: bool) -> None:
    """The next one goes to the new primary."""
    endpoint = RedisEndpoint(shown="r")
    connection = RedisNodeConnection(Socket, endpoint)  # type: ignore[arg-type]
    socket: Any = connection._socket
    socket.answers = [ReplyError(text)]
    with pytest.raises(StoreUnavailable):
        await connection.batch(SCRIPT, [b"k"], [b""])
    assert bool(socket.drops) is is_dropped


async def test_a_subscription_that_is_refused_says_why() -> None:
    class Refusing(Socket):
        async def receive(self, count: int | None, within: float | None = None) -> list[Any]:  # type: ignore[override]
            return [ReplyError("NOPERM subscribe")]

    with pytest.raises(ConfigurationError, match="does not let this user do that"):
        await Subscription(Refusing(RedisEndpoint(shown="r"))).listen("changes", 0.1)  # type: ignore[arg-type]
