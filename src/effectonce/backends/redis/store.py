"""Records in Redis >= 6, Valkey or a Redis Cluster: one hash each, one Lua script for whatever is done to it.

What the keys and fields are called is said in `lua/records.lua`. Redis removes expired records by itself; the
sweeper moves lapsed leases into doubt and tidies the indexes. Redis may lose what it has confirmed (a failover,
a crash between two fsyncs): that is mode L's window, and `check` refuses a server that would also evict.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Any, Literal

import msgspec

from effectonce.contracts import Capabilities, ConnectionLost, Port
from effectonce.errors import CorruptRecord, InvalidOption, SchemaMismatch, StoreUnavailable
from effectonce.record import Answer, Batchable, Figures, Page, Query, Record, Reply, Resolution, Stats, Swept
from effectonce.values.urls import Address, flag

from .client import ClientWire, endpoint_of, is_async, is_cluster
from .cluster import ClusterWire, Node, nodes_in
from .connection import (
    EVICTION,
    Connection,
    Endpoint,
    NodeWire,
    ReplyError,
    Script,
    Wire,
    driver,
    endpoint_at,
    refuse_eviction,
    translate,
    unsafe,
)
from .record_format import (
    LETTERS,
    PACK,
    VERSION,
    Layout,
    answer,
    identity_of,
    pack_forget,
    pack_get,
    pack_resolution,
    record,
    uncursor,
)
from .server_info import figures
from .socket import AsyncConnection, SyncConnection

RECORDS = Script("common", "records")
INDEXES = Script("common", "indexes")
CAP = 100_000
#: Keys that one step of a SCAN looks at, and how many steps `list` and `stats` take at most.
STEP, LIST_STEPS, STATS_STEPS = 500, 100, 2_000

log = logging.getLogger("effectonce")


class RedisBackend:
    """Redis at ``redis://``, ``rediss://`` (TLS), ``redis+cluster://`` or ``redis+unix://``.

    Options: ``namespace`` (default ``eo``), ``timeout`` and ``connect_timeout`` (5 s each), ``ca_file``,
    ``cert_file`` and ``key_file`` for TLS; of a cluster also ``tls`` and ``nodes`` (``host:port,host:port``, asked
    where the first does not answer); of a Unix socket ``db``.
    """

    def __init__(self, address: Address) -> None:
        kind = address.scheme
        namespace = address.take("namespace", str, "eo")
        database = address.take("db", str, "0") if kind == "redis+unix" else None
        secure = kind == "rediss"
        self._seeds: list[Node] = []
        no_nodes: list[Node] = []
        if kind == "redis+cluster":
            secure = address.take("tls", flag, False)
            self._seeds = [
                (address.host or "localhost", address.port or 6379),
                *address.take("nodes", nodes_in, no_nodes),
            ]
        path = address.path if kind == "redis+unix" else None
        endpoint = endpoint_at(address, secure=secure, path=path, database=database)
        address.done()
        if kind == "redis+cluster" and endpoint.db:
            raise InvalidOption(f"a Redis Cluster has only database 0, got {address}")
        driver()
        self._client: Any = None
        self._endpoint: Endpoint | None = endpoint
        self._settle_on(namespace, str(address))

    @classmethod
    def from_client(cls, client: Any, namespace: str = "eo") -> RedisBackend:
        """Over a client of redis-py or valkey-py: `Redis`, `RedisCluster`, or their asyncio forms.

        Its own colour goes through ``client.execute_command``, and its owner closes it. The other colour gets
        connections of ours to the same server (heartbeats run on a thread, beside async clients too). Where the
        client does not say which server that is (Sentinel, a pool of one's own), asking a sync one for the async colour
        raises `SyncAsyncMismatch`, and an async one is refused here: its leases could not be kept.
        """
        if not callable(getattr(client, "execute_command", None)):
            raise InvalidOption(f"{type(client).__name__} is not a Redis client: it has no execute_command")
        driver()
        if is_async(client):
            endpoint_of(client)
        backend = cls.__new__(cls)
        backend._client = client
        backend._endpoint = None
        backend._seeds = []
        kind = type(client)
        backend._settle_on(namespace, f"{kind.__module__.partition('.')[0]}.{kind.__name__}")
        return backend

    def _settle_on(self, namespace: str, shown: str) -> None:
        self.shown = shown
        self.layout = Layout(namespace)
        self.verified = False  # whether some port of this process has found the server fit, and none has lost it since
        # Through a client of a cluster each operation of a batch is a round trip of its own.
        mixes = self._client is None or not is_cluster(self._client)
        self.capabilities = Capabilities(name="redis", lanes=3, mixes=mixes, notifies=True, expires_by_itself=True)

    def sync_port(self) -> Port:
        return RedisPort(self, self._wire("sync"))

    def async_port(self) -> Port:
        return RedisPort(self, self._wire("async"))

    def _wire(self, colour: Literal["sync", "async"]) -> Wire:
        client, endpoint, seeds = self._client, self._endpoint, self._seeds
        if client is not None:
            if is_async(client) == (colour == "async"):
                return ClientWire(client, self.shown, self.layout.companions)
            endpoint = endpoint_of(client)
            seeds = [(endpoint.host, endpoint.port)] if is_cluster(client) else []
        assert endpoint is not None
        connect: Callable[[Endpoint], Connection] = SyncConnection if colour == "sync" else AsyncConnection
        if seeds:
            return ClusterWire(connect, endpoint, seeds, self.layout.companions)
        return NodeWire(connect, endpoint)

    def schema_sql(self) -> str:
        return ""

    def __repr__(self) -> str:
        return self.shown


# The port


class RedisPort:
    """See `contracts.Port`. ``list`` is in no order, and may show a record twice if Redis grows its table
    between two pages; a page may be short, even empty, with a cursor that leads on."""

    def __init__(self, backend: RedisBackend, wire: Wire) -> None:
        self._backend = backend
        self._layout = backend.layout
        self._wire = wire
        self._lost = False  # whether a connection broke under part of a batch

    async def run(self, batch: Sequence[Batchable]) -> Sequence[Reply]:
        if not self._backend.verified:
            await self.check()
        name = self._layout.key
        keys: Sequence[bytes]
        args: Sequence[bytes]
        if len(batch) == 1:
            (op,) = batch
            keys, args = (name(op.scope, op.key),), (PACK[type(op)](op),)
        else:
            keys, args = [name(op.scope, op.key) for op in batch], [PACK[type(op)](op) for op in batch]
        try:
            items = await self._wire.batch(RECORDS, keys, args)
        except StoreUnavailable:
            self._backend.verified = False
            raise
        replies: list[Reply] = [
            (item == 1 if item < 2 else Answer("claimed", item, 1))
            if type(item) is int
            else answer(item)
            if type(item) is list
            else self._failed(item)
            for item in items
        ]
        if self._lost:
            await self._repeat_lost(batch, replies)
        return replies

    def _failed(self, item: Any) -> Exception:
        """Our exception for an item that failed alone."""
        error = translate(item, self._wire.shown) if isinstance(item, ReplyError) else item
        if isinstance(error, ConnectionLost):
            self._lost = True
        if not isinstance(error, Exception):
            return CorruptRecord(f"{self._wire.shown} answered something that effectonce did not ask for")
        return error

    async def _repeat_lost(self, batch: Sequence[Batchable], replies: list[Reply]) -> None:
        """Once more what a node of a cluster did not answer; where nothing was answered, that is up to the caller."""
        await self._drop()
        lost = [at for at, reply in enumerate(replies) if isinstance(reply, ConnectionLost)]
        problem = replies[lost[0]]
        if len(lost) == len(replies) and isinstance(problem, ConnectionLost):
            raise problem
        try:
            again = await self.run([batch[at] for at in lost])
        except Exception as error:
            again = [error] * len(lost)
        for at, reply in zip(lost, again, strict=True):
            replies[at] = reply

    async def _drop(self) -> None:
        self._lost = self._backend.verified = False
        await self._wire.drop()

    async def _each(self, script: Script, keys: Sequence[bytes], args: Sequence[bytes]) -> Sequence[Any]:
        """A batch off the hot path: the first failed item is raised."""
        if not self._backend.verified:
            await self.check()
        return await self._sound(await self._wire.batch(script, keys, args))

    async def _sound(self, items: Sequence[Any]) -> Sequence[Any]:
        for item in items:
            if isinstance(item, Exception):
                error = self._failed(item)
                if self._lost:
                    await self._drop()
                raise error
        return items

    async def _one(self, scope: str, key: str, arg: bytes) -> Any:
        return (await self._each(RECORDS, [self._layout.key(scope, key)], [arg]))[0]

    async def _meta(self, *words: str | int) -> Any:
        return (await self._each(INDEXES, [self._layout.meta], [msgspec.json.encode(words)]))[0]

    async def _buckets(self, *words: str | int) -> Sequence[Any]:
        indexes = self._layout.indexes()
        return await self._each(INDEXES, indexes, [msgspec.json.encode(words)] * len(indexes))

    async def get(self, scope: str, key: str) -> Record | None:
        fields = await self._one(scope, key, pack_get())
        return record(self._layout.key(scope, key), fields) if fields else None

    async def forget(self, scope: str, key: str, retention: int) -> bool:
        return bool(await self._one(scope, key, pack_forget(retention)))

    async def resolve(self, scope: str, key: str, resolution: Resolution) -> bool:
        return bool(await self._one(scope, key, pack_resolution(resolution)))

    # -- many records

    async def list(self, query: Query) -> Page:
        return await (self._list_doubt(query) if query.state == "in_doubt" else self._list_all(query))

    async def _list_doubt(self, query: Query) -> Page:
        """Bucket after bucket through the index, a bounded number of steps a page. A step is resumed after the last
        digest that was shown."""
        first, cursor, after = "0", "0", b""
        if query.cursor is not None:
            first, cursor, after, _ = uncursor(query.cursor, "i")
        sizes = await self._buckets("sizes")
        records: list[Record] = []
        steps = LIST_STEPS
        for number in range(int(first), len(sizes)):
            if number > int(first):
                cursor, after = "0", b""
            while sizes[number][0]:
                if steps == 0 or len(records) == query.limit:
                    return Page(records, f"i|{number}|{cursor}|{after.hex()}|")
                steps -= 1
                arg = msgspec.json.encode(("step", cursor, STEP, query.scope or ""))
                following, damaged, *found = (await self._each(INDEXES, [self._layout.indexes()[number]], [arg]))[0]
                for error in damaged:
                    _skip(translate(ReplyError(error.decode()), self._wire.shown))
                members = sorted(dict(zip(found[::2], found[1::2], strict=True)).items())
                for identity, fields in members:
                    if identity > after:
                        if len(records) == query.limit:
                            return Page(records, f"i|{number}|{cursor}|{after.hex()}|")
                        records += _readable(self._layout.buckets[number] + identity, fields)
                        after = identity
                cursor, after = following.decode(), b""
                if cursor == "0":
                    break
        return Page(records)

    async def _list_all(self, query: Query) -> Page:
        """SCAN, node after node, a bounded number of steps a page."""
        nodes = list(await self._wire.nodes())
        cursor, after = "0", b""
        if query.cursor is not None:
            _, cursor, after, node = uncursor(query.cursor, "s")
            if node not in nodes:
                raise InvalidOption("the cluster has changed since this cursor was made; start again without one")
            nodes = nodes[nodes.index(node) :]
        letter = LETTERS[query.state] if query.state is not None else ""
        arg = pack_get(letter, query.scope or "")
        records: list[Record] = []
        for _ in range(LIST_STEPS):
            following, found = await self._at(nodes[0], "scan", cursor, self._layout.pattern, STEP, letter)
            names = sorted(name for name in set(found) if name > after)
            for at in range(0, len(names), 128):
                chunk = names[at : at + 128]
                rows = await self._wire.batch(RECORDS, chunk, [arg] * len(chunk))
                for name, fields in zip(chunk, rows, strict=True):
                    if isinstance(fields, Exception):
                        error = self._failed(fields)
                        if not isinstance(error, CorruptRecord):
                            await self._sound([error])
                        _skip(error)
                    elif fields:
                        if len(records) == query.limit:
                            return Page(records, f"s||{cursor}|{after.hex()}|{nodes[0]}")
                        records += _readable(name, fields)
                    after = name
            cursor, after = following.decode(), b""
            if cursor == "0":
                nodes.pop(0)
                if not nodes:
                    return Page(records)
            if len(records) == query.limit:
                break
        return Page(records, f"s||{cursor}||{nodes[0]}")

    async def _at(self, node: str, *words: str | int) -> Any:
        return (await self._sound(await self._wire.batch_at(node, INDEXES, [msgspec.json.encode(words)])))[0]

    async def stats(self) -> Stats:
        """in_doubt is counted by its index; the others by a SCAN that ends at ``cap`` of each, or after a million keys
        of whatever kind: then what was not counted up to ``cap`` is approximate."""
        sizes = await self._buckets("sizes")
        counts = dict.fromkeys(("claimed", "done", "failed", "in_doubt", "free"), 0)
        counts["in_doubt"] = sum(s[0] for s in sizes)
        scanned = ("claimed", "done", "failed", "free")
        steps, cut = STATS_STEPS, False
        for node in await self._wire.nodes():
            cursor = "0"
            while min(counts[state] for state in scanned) < CAP:
                if steps == 0:
                    cut = True
                    break
                steps -= 1
                following, *found = await self._at(node, "count", cursor, self._layout.pattern, STEP)
                for state, count in zip(scanned, found, strict=True):
                    counts[state] += count
                cursor = following.decode()
                if cursor == "0":
                    break
        oldest = [int(float(s[1])) for s in sizes if s[1]]
        swept = await self._meta("swept_at")
        return Stats(
            counts={state: min(count, CAP) for state, count in counts.items()},
            cap=CAP,
            oldest_in_doubt=min(oldest, default=None),
            swept_at=int(swept) if swept else None,
            approximate=tuple(state for state in scanned if cut and counts[state] < CAP),
        )

    async def sweep(self, limit: int) -> Swept:
        """Redis itself deletes what has expired; ``deleted`` counts what was gone, and the index still named. What
        cannot be swept (a damaged record, a node that does not answer) is raised after the rest was; a damaged record
        once only."""
        if not self._backend.verified:
            await self.check()
        indexes = self._layout.indexes()
        sizes = await self._wire.batch(INDEXES, indexes, [msgspec.json.encode(("sizes",))] * len(indexes))
        problems = [size for size in sizes if isinstance(size, Exception)]
        damaged: list[bytes] = []
        deleted = lapsed = 0
        left, more = limit, False
        for index, size in zip(indexes, sizes, strict=True):
            due = 0 if isinstance(size, Exception) else size[2]
            if not due:
                continue
            if left <= 0:
                more = True
                break
            arg = msgspec.json.encode(("sweep", left))
            expired, doubted, seen, bad = (await self._each(INDEXES, [index], [arg]))[0]
            deleted, lapsed, left = deleted + expired, lapsed + doubted, left - seen
            more = more or seen < due
            damaged += bad
        await self._sound(problems)
        if not more:
            await self._meta("swept")
        await self._sound([ReplyError(f"{text.decode()} (and {len(damaged) - 1} more)") for text in damaged[:1]])
        return Swept(deleted, lapsed, more)

    async def figures(self, before: int) -> Figures:
        """Redis expires records by itself, so none is overdue."""
        return await figures(self._wire)

    # -- wake-ups, time, fitness

    async def changes(self, timeout: float) -> Sequence[tuple[str, str]]:
        return [identity_of(message) for message in await self._wire.listen(self._layout.channel, timeout)]

    async def now(self) -> int:
        return int(await self._meta("now"))

    async def check(self) -> None:
        for node in await self._wire.nodes():
            await self._refuse_eviction(node)
        await self.migrate()
        try:
            node = (await self._wire.nodes())[0]
            await self._wire.command(node, "PUBLISH", self._layout.channel, b"")
        except ReplyError as error:
            raise translate(error, self._wire.shown) from error
        self._backend.verified = True

    async def _refuse_eviction(self, node: str) -> None:
        for command in EVICTION:
            try:
                reply = await self._wire.command(node, *command)
            except ReplyError as error:
                if error.code in ("NOPERM", "ERR"):
                    continue
                raise translate(error, self._wire.shown) from error
            if refuse_eviction(reply, self._wire.shown):
                return
        raise unsafe("unknown", self._wire.shown)

    async def migrate(self) -> None:
        arg = msgspec.json.encode(("version", VERSION))
        items = await self._sound(await self._wire.batch(INDEXES, [self._layout.meta], [arg]))
        found = bytes(items[0]).decode("ascii", "replace")
        if found != str(VERSION):
            raise SchemaMismatch(
                f"the records in {self._wire.shown} are of format {found}, this release reads {VERSION}; upgrade "
                "effectonce, or use another namespace="
            )

    async def close(self) -> None:
        await self._wire.close()


def _readable(name: bytes, fields: list[bytes]) -> list[Record]:
    try:
        return [record(name, fields)]
    except CorruptRecord as error:
        _skip(error)
        return []


def _skip(error: Exception) -> None:
    """One damaged record must not hide the others. Whoever asks for it by its name is told."""
    log.warning("effectonce left a record out of a list: %s", error)
