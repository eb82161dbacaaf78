"""The port of Redis: operations on records, each a hash, through one Lua script for all of them.

Redis removes expired records by itself; the sweeper moves lapsed claims to in doubt and cleans the indexes. Redis may
lose what it has confirmed (in a failover, in a crash between two fsyncs): that is the window of mode L. `check` refuses
a server that would also evict records.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from effectonce.contracts import ConnectionLost
from effectonce.errors import CorruptRecord, InvalidOption, SchemaMismatch, StoreUnavailable
from effectonce.record import Answer, Batchable, Figures, Page, Query, Record, Reply, Resolution, Stats, SweepResult
from effectonce.values.cursors import read_cursor, write_cursor

from .connection import RedisConnection, Script, run_script
from .endpoint import EVICTION_COMMANDS, refuse_eviction
from .errors import ReplyError
from .newest_first import READ_BATCH, SCAN_STEP_KEYS, list_newest_first
from .record_format import (
    FORMAT_VERSION,
    PACKERS,
    STATE_LETTERS,
    ListKind,
    ListPosition,
    log_skipped,
    pack_forget,
    pack_get,
    pack_resolution,
    parse_answer,
    parse_change,
    parse_if_intact,
    parse_record,
)
from .server_info import read_figures

if TYPE_CHECKING:
    from .store import RedisStoreBackend

RECORDS_SCRIPT = Script("common", "records")
INDEXES_SCRIPT = Script("common", "indexes")
MAX_COUNT = 100_000  # the most that `stats` reports of one state
MAX_LIST_STEPS = 100  # the most steps of a SCAN for one page of `list` ...
MAX_STATS_STEPS = 2_000  # ... and for `stats`

#: One step of `list`: the next cursor of SCAN, and the records that it has read: the key of each, and its fields.
_ListStep = tuple[bytes, Sequence[tuple[bytes, Any]]]
_Rows = list[tuple[bytes, Any]]
_Places = list[str]  # the buckets (by number) or nodes that a list reads; inside of the port, `list` is a method


class RedisPort:
    """See `contracts.Port`. ``list`` has no order, and may show a record twice if Redis grows its table between two
    pages; a page may be short, even empty, and still have a cursor."""

    def __init__(self, backend: RedisStoreBackend, connection: RedisConnection) -> None:
        self._backend = backend
        self.layout = backend.layout
        self.connection = connection

    async def run(self, batch: Sequence[Batchable]) -> Sequence[Reply]:
        if not self._backend.verified:
            await self.check()
        keys = [self.layout.key(op.scope, op.key) for op in batch]
        args = [PACKERS[type(op)](op) for op in batch]
        try:
            items = await self.connection.batch(RECORDS_SCRIPT, keys, args)
        except StoreUnavailable:
            self._require_check()
            raise
        replies: list[Reply] = []
        lost: list[int] = []
        for item in items:
            if type(item) is int:  # 0 or 1: a settlement's answer; more: the token of a claim of a new record
                replies.append(item == 1 if item < 2 else Answer("claimed", item, 1))
            elif type(item) is list:
                replies.append(parse_answer(item))
            else:
                error = self._translate_item(item)
                if isinstance(error, ConnectionLost):
                    lost.append(len(replies))
                replies.append(error)
        if lost:
            await self._repeat_lost(batch, replies, lost)
        return replies

    def _translate_item(self, item: Any) -> Exception:
        """Return our exception for an item that failed alone."""
        if isinstance(item, ReplyError):
            return self.connection.errors.translate(item)
        if isinstance(item, Exception):
            return item
        return CorruptRecord(
            f"{self.connection.errors.shown} sent a reply that effectonce cannot read; check that it is a Redis server"
        )

    async def _repeat_lost(self, batch: Sequence[Batchable], replies: list[Reply], lost: Sequence[int]) -> None:
        """Repeat the operations at the positions ``lost``, which a node of a cluster did not answer, once. Where none
        was answered, raise: then the caller repeats the batch."""
        await self._drop()
        first_error = replies[lost[0]]
        if len(lost) == len(replies) and isinstance(first_error, ConnectionLost):
            raise first_error
        try:
            repeated = await self.run([batch[position] for position in lost])
        except Exception as error:
            repeated = [error] * len(lost)
        for position, reply in zip(lost, repeated, strict=True):
            replies[position] = reply

    async def _drop(self) -> None:
        self._require_check()
        await self.connection.drop()

    def _require_check(self) -> None:
        """Check the server again before the next operation. Not so a cluster: `check` needs all of its nodes, and while
        one is down the others go on. There the greeting of each new connection refuses a node that evicts."""
        if not self.connection.is_cluster:
            self._backend.verified = False

    # -- off the hot path: the error of the first item that failed is raised

    async def _run_checked(self, script: Script, keys: Sequence[bytes], args: Sequence[bytes]) -> Sequence[Any]:
        if not self._backend.verified:
            await self.check()
        return await self._raise_failed(await self.connection.batch(script, keys, args))

    async def _raise_failed(self, items: Sequence[Any]) -> Sequence[Any]:
        for item in items:
            if isinstance(item, Exception):
                error = self._translate_item(item)
                if isinstance(error, ConnectionLost):
                    await self._drop()
                raise error
        return items

    async def _run_on_record(self, scope: str, key: str, arg: bytes) -> Any:
        return (await self._run_checked(RECORDS_SCRIPT, [self.layout.key(scope, key)], [arg]))[0]

    async def run_on_indexes(self, keys: Sequence[bytes], *words: str | int) -> Sequence[Any]:
        return await self._run_checked(INDEXES_SCRIPT, keys, [msgspec.json.encode(words)] * len(keys))

    async def _run_on_meta(self, *words: str | int) -> Any:
        return (await self.run_on_indexes([self.layout.meta], *words))[0]

    async def run_on_node(self, node: str, *words: str | int) -> Any:
        items = await run_script(self.connection, node, INDEXES_SCRIPT, (), [msgspec.json.encode(words)])
        return (await self._raise_failed(items))[0]

    async def get(self, scope: str, key: str) -> Record | None:
        fields = await self._run_on_record(scope, key, pack_get())
        return parse_record(self.layout.key(scope, key), fields) if fields else None

    async def forget(self, scope: str, key: str, retention_us: int) -> bool:
        return bool(await self._run_on_record(scope, key, pack_forget(retention_us)))

    async def resolve(self, scope: str, key: str, resolution: Resolution) -> bool:
        return bool(await self._run_on_record(scope, key, pack_resolution(resolution)))

    # -- many records

    async def list(self, query: Query) -> Page:
        """Records in doubt are read from their index, bucket after bucket; all others by a SCAN of node after node.

        A page is a bounded number of steps. The next page resumes behind the last record that was shown.
        """
        if query.newest_first:
            return await list_newest_first(self, query)
        kind: ListKind = "index" if query.state == "in_doubt" else "scan"
        read_step = self._read_index_step if kind == "index" else self._read_scan_step
        position = None if query.cursor is None else read_cursor(query.cursor, kind, ListPosition)
        places = await self._list_places(kind, position)  # the first is read now
        scan, after = ("0", b"") if position is None else (position.scan, position.after)
        records: list[Record] = []
        for _ in range(MAX_LIST_STEPS):
            if not places:
                return Page(records)
            if len(records) == query.limit:
                break
            next_scan, rows = await read_step(query, places[0], scan, after, query.limit - len(records))
            for name, fields in rows:
                if len(records) == query.limit:
                    return Page(records, write_cursor(kind, ListPosition(places[0], scan, after)))
                records += parse_if_intact(name, fields)
                after = name
            scan, after = next_scan.decode(), b""
            if scan == "0":
                places.pop(0)
        return Page(records, write_cursor(kind, ListPosition(places[0], scan, b"")) if places else None)

    async def _list_places(self, kind: ListKind, position: ListPosition | None) -> _Places:
        """The places that are still to be read, from that of ``position`` on."""
        start = None if position is None else position.place
        places: Sequence[str]
        if kind == "index":
            sizes = await self.run_on_indexes(self.layout.indexes(), "sizes")
            places = [str(bucket) for bucket, size in enumerate(sizes) if size[0] or str(bucket) == start]
        else:
            places = await self.connection.nodes()
        if start is not None and start not in places:
            raise InvalidOption("the cluster has changed since this cursor was made; start again without one")
        return list(places) if start is None else list(places[places.index(start) :])

    async def _read_index_step(self, query: Query, place: str, scan: str, after: bytes, room: int) -> _ListStep:
        """Read one step through the index of the bucket ``place``: the records in doubt whose keys are behind
        ``after``."""
        index, prefix = self.layout.indexes()[int(place)], self.layout.buckets[int(place)]
        step = ("step", scan, SCAN_STEP_KEYS, query.scope or "")
        ((next_scan, damaged, *members),) = await self.run_on_indexes([index], *step)
        for error in damaged:
            log_skipped(self._translate_item(ReplyError(error.decode())))
        rows = {prefix + identity: fields for identity, fields in zip(members[::2], members[1::2], strict=True)}
        return next_scan, sorted(row for row in rows.items() if row[0] > after)

    async def _read_scan_step(self, query: Query, place: str, scan: str, after: bytes, room: int) -> _ListStep:
        """As `_read_index_step`, on the node ``place``. Where there are more than ``room`` records, not all of them are
        read."""
        letter = STATE_LETTERS[query.state] if query.state is not None else ""
        arg = pack_get(letter, query.scope or "")
        next_scan, visited = await self.run_on_node(place, "scan", scan, self.layout.pattern, SCAN_STEP_KEYS, letter)
        names = sorted(name for name in set(visited) if name > after)
        rows: _Rows = []
        while names and len(rows) <= room:
            chunk, names = names[:READ_BATCH], names[READ_BATCH:]
            rows += await self.read_fields(chunk, arg)
        return next_scan, rows

    async def read_fields(self, names: Sequence[bytes], arg: bytes) -> _Rows:
        """Read up to `READ_BATCH` records by the names of their keys: each name with its fields. ``arg`` is what
        `pack_get` packed. Damaged records are logged and left out."""
        rows: _Rows = []
        replies = await self.connection.batch(RECORDS_SCRIPT, names, [arg] * len(names))
        for name, fields in zip(names, replies, strict=True):
            if isinstance(fields, Exception):
                error = self._translate_item(fields)
                if not isinstance(error, CorruptRecord):
                    await self._raise_failed([error])
                log_skipped(error)
            elif fields:
                rows.append((name, fields))
        return rows

    async def stats(self) -> Stats:
        """``in_doubt`` is counted by its index; the others by a SCAN that ends at ``cap`` of each state, or after a
        million keys of any kind: then the states below ``cap`` are approximate."""
        sizes = await self.run_on_indexes(self.layout.indexes(), "sizes")
        counts = dict.fromkeys(("claimed", "done", "failed", "in_doubt", "free"), 0)
        counts["in_doubt"] = sum(size[0] for size in sizes)
        scanned = ("claimed", "done", "failed", "free")  # as `count` in indexes.lua returns them
        steps, is_cut_short = MAX_STATS_STEPS, False
        for node in await self.connection.nodes():
            cursor = "0"
            while min(counts[state] for state in scanned) < MAX_COUNT:
                if steps == 0:
                    is_cut_short = True
                    break
                steps -= 1
                next_cursor, *step_counts = await self.run_on_node(
                    node, "count", cursor, self.layout.pattern, SCAN_STEP_KEYS
                )
                for state, count in zip(scanned, step_counts, strict=True):
                    counts[state] += count
                cursor = next_cursor.decode()
                if cursor == "0":
                    break
        oldest = [int(float(size[1])) for size in sizes if size[1]]
        swept = await self._run_on_meta("swept_at")
        return Stats(
            counts={state: min(count, MAX_COUNT) for state, count in counts.items()},
            cap=MAX_COUNT,
            oldest_in_doubt=min(oldest, default=None),
            swept_at=int(swept) if swept else None,
            approximate=tuple(state for state in scanned if is_cut_short and counts[state] < MAX_COUNT),
        )

    async def sweep(self, limit: int) -> SweepResult:
        """Redis itself deletes expired records; ``deleted`` counts those that an index still named.

        Problems (a damaged record, a node that does not answer) are raised after the rest is swept. A damaged record is
        raised only once, since the script drops it from its index.
        """
        if not self._backend.verified:
            await self.check()
        indexes = self.layout.indexes()
        sizes = await self.connection.batch(INDEXES_SCRIPT, indexes, [msgspec.json.encode(("sizes",))] * len(indexes))
        problems = [size for size in sizes if isinstance(size, Exception)]
        damaged: list[bytes] = []
        deleted = lapsed = 0
        remaining, more = limit, False
        for index, size in zip(indexes, sizes, strict=True):
            due = 0 if isinstance(size, Exception) else size[2]
            if not due:
                continue
            if remaining <= 0:
                more = True
                break
            ((expired, moved, visited, newly_damaged),) = await self.run_on_indexes([index], "sweep", remaining)
            deleted, lapsed, remaining = deleted + expired, lapsed + moved, remaining - visited
            more = more or visited < due
            damaged += newly_damaged
        await self._raise_failed(problems)
        if not more:
            await self._run_on_meta("swept")
        await self._raise_failed([ReplyError(f"{text.decode()} (and {len(damaged) - 1} more)") for text in damaged[:1]])
        return SweepResult(deleted, lapsed, more)

    async def figures(self, before: int) -> Figures:
        """Redis expires records by itself, so none is overdue."""
        return await read_figures(self.connection)

    # -- wake-ups, time, checks

    async def changes(self, timeout: float) -> Sequence[tuple[str, str]]:
        return [parse_change(message) for message in await self.connection.listen(self.layout.channel, timeout)]

    async def now(self) -> int:
        return int(await self._run_on_meta("now"))

    async def check(self) -> None:
        for node in await self.connection.nodes():
            await self._refuse_eviction(node)
        await self.migrate()
        try:
            node = (await self.connection.nodes())[0]
            await self.connection.command(node, "PUBLISH", self.layout.channel, b"")
        except ReplyError as error:
            raise self.connection.errors.translate(error) from error
        self._backend.verified = True

    async def _refuse_eviction(self, node: str) -> None:
        for command in EVICTION_COMMANDS:
            try:
                reply = await self.connection.command(node, *command)
            except ReplyError as error:
                if error.code in ("NOPERM", "ERR"):
                    continue
                raise self.connection.errors.translate(error) from error
            if refuse_eviction(reply, self.connection.errors):
                return
        raise self.connection.errors.eviction_error("unknown")

    async def migrate(self) -> None:
        arg = msgspec.json.encode(("version", FORMAT_VERSION))
        items = await self._raise_failed(await self.connection.batch(INDEXES_SCRIPT, [self.layout.meta], [arg]))
        version = bytes(items[0]).decode("ascii", "replace")
        if version != str(FORMAT_VERSION):
            raise SchemaMismatch(
                f"the records in {self.connection.errors.shown} are of format {version}, this release reads "
                f"{FORMAT_VERSION}; upgrade effectonce, or use another namespace="
            )

    async def close(self) -> None:
        await self.connection.close()
