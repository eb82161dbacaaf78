"""A port on Redis whose connection fails: what is repeated, what is dropped, and which error comes out."""

from __future__ import annotations

from typing import Any

import pytest

from effectonce.backends.redis.errors import RedisErrors, ReplyError
from effectonce.backends.redis.port import RedisPort
from effectonce.backends.redis.store import RedisStoreBackend
from effectonce.contracts import ConnectionLost
from effectonce.core.run_sync import run_sync
from effectonce.errors import ConfigurationError, CorruptRecord, SchemaMismatch, StoreUnavailable, UnsafeStore
from effectonce.record import Answer, Claim, SweepResult
from effectonce.values.urls import Address

LOST = ConnectionLost("node b broke")


class Connection:
    """Answers batches by ``replies``, one after the other, and commands by ``commands``; an exception is raised."""

    def __init__(self, *replies: Any, commands: dict[str, Any] | None = None, is_cluster: bool = False) -> None:
        self.is_cluster = is_cluster
        self.errors = RedisErrors("redis://h")
        self.replies = list(replies)
        self.commands = commands or {}
        self.asked: list[Any] = []
        self.drops = 0

    async def batch(self, script: object, keys: Any, args: Any) -> Any:
        self.asked.append(len(keys))
        return self._answer(self.replies.pop(0))

    async def nodes(self) -> list[str]:
        return ["a", "b"]

    async def command(self, node: str, *words: Any) -> Any:
        self.asked.append((node, *words[:2]))
        return self._answer(self.commands[words[0]])

    async def drop(self) -> None:
        self.drops += 1

    def _answer(self, reply: Any) -> Any:
        if isinstance(reply, Exception):
            raise reply
        return reply


def port_on(connection: Connection, *, verified: bool = True) -> RedisPort:
    backend = RedisStoreBackend(Address("redis://h"))
    backend.verified = verified
    return RedisPort(backend, connection)  # type: ignore[arg-type]


def claim(port: RedisPort, *keys: str) -> list[Any]:
    return list(run_sync(port.run([Claim("s", key, b"o" * 16, lease_us=1, retention_us=1) for key in keys])))


KEEPS = [b"maxmemory-policy", b"noeviction"]
EVICTS = [b"maxmemory-policy", b"allkeys-lru"]
VERIFIED = {"CONFIG": KEEPS, "PUBLISH": 0}  # what a server answers that is verified again


# -- batches


@pytest.mark.parametrize("reply", [b"PONG", None, "x"])
def test_a_reply_that_is_no_answer_is_the_error_of_its_operation(reply: Any) -> None:
    """Of a proxy, or a server that only speaks like Redis."""
    granted, refused = claim(port_on(Connection([7, reply])), "a", "b")
    assert granted == Answer("claimed", 7, 1)
    assert isinstance(refused, CorruptRecord)
    assert "check that it is a Redis" in str(refused)


def test_an_error_reply_is_the_error_of_its_operation() -> None:
    granted, refused = claim(port_on(Connection([7, ReplyError("OOM command not allowed")])), "a", "b")
    assert granted == Answer("claimed", 7, 1)
    assert isinstance(refused, StoreUnavailable)
    assert "out of memory" in str(refused)


def test_what_a_lost_node_did_not_answer_is_repeated_once_and_nothing_else() -> None:
    """Of a cluster. It is not verified again, which would need all of its nodes, and one is away."""
    connection = Connection([7, LOST, 8, LOST], [9, 10], is_cluster=True)
    port = port_on(connection)
    assert claim(port, *"abcd") == [Answer("claimed", token, 1) for token in (7, 9, 8, 10)]
    assert (connection.asked, port._backend.verified) == ([4, 2], True)


def test_where_the_repetition_fails_as_well_the_others_keep_their_answers() -> None:
    away = StoreUnavailable("node b is away")
    granted, *failed = claim(port_on(Connection([7, LOST, LOST], away, is_cluster=True)), *"abc")
    assert granted == Answer("claimed", 7, 1)
    assert failed == [away, away]


def test_where_nothing_was_answered_the_caller_repeats_the_batch() -> None:
    connection = Connection([LOST, LOST])
    port = port_on(connection)
    with pytest.raises(ConnectionLost):
        claim(port, "a", "b")
    assert (connection.asked, connection.drops, port._backend.verified) == ([2], 1, False)


@pytest.mark.parametrize("is_cluster", [False, True])
def test_a_server_that_was_away_is_verified_again_and_a_cluster_is_not(is_cluster: bool) -> None:
    """It may be another one, after a failover. In a cluster, the greeting of each new connection verifies its node."""
    port = port_on(Connection(StoreUnavailable("away"), is_cluster=is_cluster))
    with pytest.raises(StoreUnavailable):
        claim(port, "a")
    assert port._backend.verified is is_cluster


# -- what operators ask for


def test_an_error_of_one_item_is_raised_and_a_broken_connection_is_dropped() -> None:
    connection = Connection([ReplyError("NOAUTH x")], [LOST])
    port = port_on(connection)
    with pytest.raises(ConfigurationError, match="asks for a password"):
        run_sync(port.get("s", "k"))
    assert connection.drops == 0
    with pytest.raises(ConnectionLost):
        run_sync(port.get("s", "k"))
    assert connection.drops == 1


# -- checks


@pytest.mark.parametrize(
    ("config", "info", "kind", "said"),
    [
        (KEEPS, b"", None, ""),
        (EVICTS, b"", UnsafeStore, "maxmemory-policy allkeys-lru"),
        (ReplyError("NOPERM config"), b"maxmemory_policy:noeviction", None, ""),
        (ReplyError("ERR unknown command"), b"maxmemory_policy:volatile-ttl", UnsafeStore, "policy volatile-ttl"),
        (ReplyError("NOPERM config"), ReplyError("NOPERM info"), UnsafeStore, "policy unknown"),
        (ReplyError("LOADING x"), b"", StoreUnavailable, "loading"),
    ],
)
def test_every_node_is_asked_whether_it_evicts_records(config: Any, info: Any, kind: Any, said: str) -> None:
    connection = Connection([b"1"], commands={"CONFIG": config, "INFO": info, "PUBLISH": 0})
    port = port_on(connection, verified=False)
    if kind is None:
        run_sync(port.check())
        assert {node for node, *_ in (asked for asked in connection.asked if asked != 1)} == {"a", "b"}
        assert port._backend.verified
    else:
        with pytest.raises(kind, match=said):
            run_sync(port.check())
        assert not port._backend.verified


def test_a_user_that_may_not_publish_is_refused() -> None:
    """Waiters would poll, and wait longer than they need."""
    commands = {"CONFIG": KEEPS, "PUBLISH": ReplyError("NOPERM publish")}
    port = port_on(Connection([b"1"], commands=commands), verified=False)
    with pytest.raises(ConfigurationError, match="does not let this user do that"):
        run_sync(port.check())
    assert not port._backend.verified


@pytest.mark.parametrize("version", [b"2", b"0", b"\xff"])
def test_records_of_another_format_are_refused(version: bytes) -> None:
    port = port_on(Connection([version], commands=VERIFIED), verified=False)
    with pytest.raises(SchemaMismatch, match="another namespace="):
        run_sync(port.check())


# -- sweeps


def test_a_sweep_adds_up_its_buckets_and_stops_at_its_limit() -> None:
    """A bucket has a size: records in doubt, the oldest of them, and how many are due."""
    due = {0: 3, 2: 4, 5: 9}
    buckets = len(RedisStoreBackend(Address("redis://h")).layout.indexes())
    sizes = [[0, False, due.get(bucket, 0)] for bucket in range(buckets)]
    # Each sweep answers: expired, moved to in doubt, visited, damaged.
    connection = Connection(sizes, [[2, 1, 3, []]], [[1, 3, 4, []]], [[0, 3, 3, []]])
    assert run_sync(port_on(connection).sweep(10)) == SweepResult(3, 7, True)
    connection = Connection(sizes, [[2, 1, 3, []]], [[1, 3, 4, []]], [[0, 9, 9, []]], [[1]])
    assert run_sync(port_on(connection).sweep(16)) == SweepResult(3, 13, False)
    connection = Connection(sizes, [[2, 1, 3, []]])
    assert run_sync(port_on(connection).sweep(3)) == SweepResult(2, 1, True)


def test_a_sweep_goes_on_behind_a_node_that_fails_and_a_record_that_is_damaged_and_then_says_so() -> None:
    buckets = len(RedisStoreBackend(Address("redis://h")).layout.indexes())
    sizes: list[Any] = [[0, False, 0] for _ in range(buckets)]
    sizes[1], sizes[3] = StoreUnavailable("node b is away"), [0, False, 2]
    connection = Connection(sizes, [[0, 2, 2, []]])
    with pytest.raises(StoreUnavailable, match="node b is away"):
        run_sync(port_on(connection).sweep(10))
    assert connection.replies == [], "the other bucket was swept"
    sizes[1] = [0, False, 0]
    connection = Connection(sizes, [[0, 1, 2, [b"CORRUPT eo:x", b"CORRUPT eo:y"]]], [[1]])
    with pytest.raises(CorruptRecord, match=r"and 1 more"):
        run_sync(port_on(connection).sweep(10))
