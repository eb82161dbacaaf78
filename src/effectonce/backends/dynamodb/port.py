"""The port of DynamoDB: what people ask of the store, the sweep, and the schema, over its operations."""

from __future__ import annotations

import base64
import binascii
import heapq
import json
from collections.abc import Sequence
from typing import Any

from effectonce.errors import (
    ConfigurationError,
    InvalidOption,
    SchemaMismatch,
    SchemaMissing,
    StoreUnavailable,
    UnsafeStore,
)
from effectonce.record import Page, Query, Record, Resolution, State, Stats, Swept
from effectonce.values.identity import digest

from .connection import ConditionFailed, InUse, Item
from .operations import META, SCHEMA, WORDS, Operations
from .records import SHARDS, Row, Value, bucket, decode, expressions, forget, live, resolve, wrap

INDEX = "by_state"
CAP = 100_000
SCAN = 1_000  # items looked at by one request of a filtered listing, of which a page makes up to SCANS
SCANS = 5
COUNTS = 400  # requests that one count may take, of 1 MB each

TABLE: dict[str, Any] = {
    "BillingMode": "PAY_PER_REQUEST",
    "AttributeDefinitions": [
        {"AttributeName": "id", "AttributeType": "B"},
        {"AttributeName": "bucket", "AttributeType": "S"},
        {"AttributeName": "rank", "AttributeType": "N"},
    ],
    "KeySchema": [{"AttributeName": "id", "KeyType": "HASH"}],
    "GlobalSecondaryIndexes": [
        {
            "IndexName": INDEX,
            "KeySchema": [
                {"AttributeName": "bucket", "KeyType": "HASH"},
                {"AttributeName": "rank", "KeyType": "RANGE"},
            ],
            "Projection": {"ProjectionType": "INCLUDE", "NonKeyAttributes": ["scope", "expires_at"]},
        }
    ],
}
TTL = {"Enabled": True, "AttributeName": "expires"}


#: Keys from the index, and where to go on (None: nowhere).
Keys = tuple[list[Item], Item | None]
_UNEXPIRED = "(attribute_not_exists(#expires_at) OR #expires_at > :past)"


class DynamoDBPort(Operations):
    """See `contracts.Port`."""

    async def get(self, scope: str, key: str) -> Record | None:
        await self._greet()
        row = decode(await self._read(digest(scope, key)))
        return live(row, self._clock.read().past)

    async def forget(self, scope: str, key: str, retention: int) -> bool:
        await self._greet()
        item = await self._read(digest(scope, key))
        return await self._change(lambda row, time: forget(retention, row, time), item) is True

    async def resolve(self, scope: str, key: str, resolution: Resolution) -> bool:
        await self._greet()
        item = await self._read(digest(scope, key))
        return await self._change(lambda row, time: resolve(resolution, row, time), item) is True

    # -- listing

    async def list(self, query: Query) -> Page:
        """Newest change first, by the index; done records, or all, in no order: those are a scan of the table.

        A renewal is no change here. But claims that lapse into doubt are kept in the order in which they will, which
        a renewal does change: they come after the other claims, the next to lapse first, so that one that is
        renewed meanwhile is met again rather than missed.
        """
        await self._greet()
        if query.state is None or query.state == "done":
            return await self._scanned(query)
        return await self._indexed(query, query.state)

    async def _scanned(self, query: Query) -> Page:
        values: dict[str, Value] = {}
        wanted = ["attribute_exists(#version)"]
        for name in ("state", "scope"):
            value = getattr(query, name)
            if value is not None:
                wanted.append(f"#{name} = :{name}")
                values[name] = value
        options = expressions(values, FilterExpression=" AND ".join(wanted))
        start = None if query.cursor is None else {"id": wrap(_bytes(_read_cursor(query.cursor, str)))}
        records: list[Record] = []
        for _ in range(SCANS):
            if start is not None:
                options["ExclusiveStartKey"] = start
            limit = query.limit + 1 if len(wanted) == 1 else SCAN
            reply = await self._wire.call("scan", ConsistentRead=True, Limit=limit, **options)
            start = reply.get("LastEvaluatedKey")
            past = self._clock.read().past
            found = [(item, record) for item in reply["Items"] if (record := live(decode(item), past)) is not None]
            room = query.limit - len(records)
            records += [record for _, record in found[:room]]
            if len(found) > room:  # a scan goes on after any item, not just after the last that it looked at
                start = {"id": found[room - 1][0]["id"]}
            if start is None or len(records) == query.limit:
                break
        return Page(records, None if start is None else _cursor(_text(start["id"]["B"])))

    async def _indexed(self, query: Query, state: State) -> Page:
        """The shards of ``state``, merged. The cursor holds how far each was read (None: to its end)."""
        shards = _shards(state)
        positions: list[Any] = ["start"] * len(shards)
        if query.cursor is not None:
            positions = _read_cursor(query.cursor, list)
            if len(positions) != len(shards):
                raise _bad_cursor()

        async def read(n: int) -> Keys:
            if positions[n] is None:
                return [], None
            start = None if positions[n] == "start" else _position(shards[n], positions[n])
            newest = not _doubtful(shards[n])
            return await self._shard(shards[n], query.limit, newest=newest, start=start, scope=query.scope)

        def order(n: int, item: Item) -> int:
            return int(item["rank"]["N"]) * (1 if _doubtful(shards[n]) else -1)

        pages = await self._wire.each(read, range(len(shards)))
        merged = heapq.merge(
            *([(order(n, item), n, item) for item in items] for n, (items, _) in enumerate(pages)),
            key=lambda entry: entry[:2],
        )
        chosen: list[bytes] = []
        used = [0] * len(shards)
        for _, n, item in merged:
            if len(chosen) == query.limit:
                break
            chosen.append(item["id"]["B"])
            used[n] += 1
            positions[n] = [int(item["rank"]["N"]), _text(item["id"]["B"])]
        for n, (items, last) in enumerate(pages):
            if used[n] == len(items):  # all of it was used: on from where the index stopped looking
                positions[n] = None if last is None else [int(last["rank"]["N"]), _text(last["id"]["B"])]
        rows = await self._fetch(chosen)
        past = self._clock.read().past
        records = [
            record
            for identity in chosen
            if (record := live(rows.get(identity), past)) is not None and record.state == state
        ]
        more = any(position is not None for position in positions)
        return Page(records, _cursor(positions) if more else None)

    async def _shard(
        self,
        shard: str,
        limit: int,
        *,
        newest: bool = False,
        until: int | None = None,
        start: Item | None = None,
        scope: str | None = None,
    ) -> Keys:
        """Unexpired records in one shard of the index."""
        texts = {"KeyConditionExpression": "#bucket = :bucket" + ("" if until is None else " AND #rank <= :until")}
        wanted = [] if _doubtful(shard) else [_UNEXPIRED]
        values: dict[str, Value] = {"bucket": shard, "past": self._clock.read().past}
        if until is not None:
            values["until"] = until
        if scope is not None:
            wanted.append("#scope = :scope")
            values["scope"] = scope
        if wanted:
            texts["FilterExpression"] = " AND ".join(wanted)
        options = expressions(values, **texts)
        if start is not None:
            options["ExclusiveStartKey"] = start
        reply = await self._wire.call("query", IndexName=INDEX, Limit=limit, ScanIndexForward=not newest, **options)
        return reply["Items"], reply.get("LastEvaluatedKey")

    async def _fetch(self, identities: Sequence[bytes]) -> dict[bytes, Row]:
        """The records themselves, read from the table."""
        rows: dict[bytes, Row] = {}
        keys = [{"id": wrap(identity)} for identity in identities]
        for _ in range(1_000):
            if not keys:
                return rows
            ask = {self._target.table: {"Keys": keys[:100], "ConsistentRead": True}}
            reply = await self._wire.call("batch_get_item", RequestItems=ask)
            for item in reply["Responses"].get(self._target.table, []):
                row = decode(item)
                if row is not None:
                    rows[item["id"]["B"]] = row
            left = reply.get("UnprocessedKeys", {}).get(self._target.table, {}).get("Keys", [])
            if len(left) == len(keys[:100]):
                await self._wire.pause(0.05)
            keys = keys[100:] + left
        raise StoreUnavailable(f"{self._target} keeps putting off a batch of reads; it may be throttled")

    # -- counting and sweeping

    async def stats(self) -> Stats:
        """Open, failed and free records are counted in the index, the done ones by a scan. A count that would take
        more than 400 MB of reading (by shard, in the index) stops there and is called approximate."""
        await self._greet()
        meta = await self._read(META)
        counts: dict[str, int] = {}
        approximate: list[str] = []
        states: tuple[State, ...] = ("claimed", "failed", "in_doubt", "free", "done")
        for state in states:
            found = (
                [await self._count_done()] if state == "done" else await self._wire.each(self._count, _shards(state))
            )
            counts[state] = min(CAP, sum(count for count, _ in found))
            if counts[state] < CAP and not all(ended for _, ended in found):
                approximate.append(state)

        async def oldest(shard: str) -> list[int]:
            items, _ = await self._shard(shard, 1)
            return [int(item["rank"]["N"]) for item in items]

        doubts = [at for found in await self._wire.each(oldest, _shards("in_doubt")) for at in found]
        swept = (meta or {}).get("swept_at", {}).get("N")
        return Stats(
            counts=counts,
            cap=CAP,
            oldest_in_doubt=min(doubts, default=None),
            swept_at=None if swept is None else int(swept),
            approximate=tuple(approximate),
        )

    async def _count(self, shard: str) -> tuple[int, bool]:
        values: dict[str, Value] = {"bucket": shard, "past": self._clock.read().past}
        texts = {"KeyConditionExpression": "#bucket = :bucket"}
        if not _doubtful(shard):
            texts["FilterExpression"] = _UNEXPIRED
        return await self._counted("query", IndexName=INDEX, **expressions(values, **texts))

    async def _count_done(self) -> tuple[int, bool]:
        values: dict[str, Value] = {"past": self._clock.read().past, "done": "done"}
        texts = {"FilterExpression": "#state = :done AND #expires_at > :past"}
        return await self._counted("scan", **expressions(values, **texts))

    async def _counted(self, operation: str, **options: Any) -> tuple[int, bool]:
        """How many, and whether those are all."""
        count = 0
        for _ in range(COUNTS):
            reply = await self._wire.call(operation, Select="COUNT", **options)
            count += reply["Count"]
            last = reply.get("LastEvaluatedKey")
            if last is None or count >= CAP:
                return count, last is None
            options["ExclusiveStartKey"] = last
        return count, False

    async def sweep(self, limit: int) -> Swept:
        """Move lapsed claims to in_doubt; expired records are deleted by DynamoDB."""
        await self._greet()
        now, past = self._clock.read()

        async def read(shard: str) -> Keys:  # one over the limit, which tells whether there is more
            return await self._shard(shard, limit + 1, until=past)

        pages = await self._wire.each(read, [f"claimed?/{n}" for n in range(SHARDS)])
        found = [item["id"]["B"] for items, _ in pages for item in items]

        async def lapse(identity: bytes) -> bool:
            values: dict[str, Value] = {**WORDS, "now": now, "past": past, "bucket": bucket("in_doubt", True, identity)}
            try:
                await self._update(
                    identity,
                    "SET #state = :in_doubt, #changed = :now, #rank = :now, #bucket = :bucket,"
                    " #version = #version + :one REMOVE #lease_until, #expires_at, #expires, #keep, #was",
                    "#state = :claimed AND #doubt = :yes AND #lease_until <= :past",
                    values,
                )
            except ConditionFailed:
                return False
            return True

        lapsed = sum(await self._wire.each(lapse, found[:limit]))
        more = len(found) > limit or any(last is not None for _, last in pages)
        if not more:
            swept = expressions({"now": now}, UpdateExpression="SET #swept_at = :now")
            await self._wire.call("update_item", Key={"id": wrap(META)}, **swept)
        return Swept(0, lapsed, more)

    async def changes(self, timeout: float) -> Sequence[tuple[str, str]]:
        return ()

    async def now(self) -> int:
        await self._greet()
        return self._clock.now()

    async def close(self) -> None:
        await self._wire.close()

    # -- schema

    async def check(self) -> None:
        await self._greet()
        await self._table()
        if await self._ttl() not in ("ENABLED", "ENABLING"):
            raise SchemaMissing(
                f"time to live is off on {self._target}, so expired records would pile up; "
                f"run: effectonce migrate '{self._target}'"
            )

    async def migrate(self) -> None:
        for _ in range(240):
            try:
                if (await self._table())["TableStatus"] == "ACTIVE":
                    break
            except SchemaMismatch:
                raise
            except SchemaMissing:
                try:
                    await self._wire.call("create_table", **TABLE)
                except InUse:
                    pass  # another process is creating it, or it cannot be seen yet
                continue
            await self._wire.pause(0.5)
        else:
            raise StoreUnavailable(f"the table of {self._target} is not ready after two minutes; migrate again")
        if await self._ttl() not in ("ENABLED", "ENABLING"):
            try:
                await self._wire.call("update_time_to_live", TimeToLiveSpecification=TTL)
            except ConfigurationError:
                if await self._ttl() not in ("ENABLED", "ENABLING"):  # else another process was faster
                    raise
        try:  # last, so that a table with a version is complete
            await self._wire.call(
                "put_item",
                Item={"id": wrap(META), "schema": wrap(SCHEMA)},
                ReturnValuesOnConditionCheckFailure="ALL_OLD",
                **expressions({}, ConditionExpression="attribute_not_exists(#id)"),
            )
        except ConditionFailed as lost:
            self._versioned(lost.item)

    async def _table(self) -> dict[str, Any]:
        """Its description; `SchemaMismatch` where it is a table of something else, `UnsafeStore` where it is one
        of several in a global table."""
        table: dict[str, Any] = (await self._wire.call("describe_table"))["Table"]
        indexes = {index["IndexName"]: index["KeySchema"] for index in table.get("GlobalSecondaryIndexes", [])}
        ours = TABLE["GlobalSecondaryIndexes"][0]["KeySchema"]
        if table["KeySchema"] != TABLE["KeySchema"] or indexes.get(INDEX) != ours:
            raise SchemaMismatch(
                f"the table of {self._target} has other keys, or no index {INDEX}: it was not made by effectonce; "
                "name a table that does not exist yet"
            )
        if table.get("Replicas"):
            raise UnsafeStore(
                f"the table of {self._target} is replicated to other regions, where the last of two writes wins "
                "whatever their conditions: both of two claims would be granted; name a table without replicas"
            )
        return table

    async def _ttl(self) -> str:
        reply = await self._wire.call("describe_time_to_live")
        found: dict[str, str] = reply["TimeToLiveDescription"]
        return found["TimeToLiveStatus"] if found.get("AttributeName") == TTL["AttributeName"] else "DISABLED"


# -- the index's shards, and cursors -----------------------------------------------------------------------------


def _doubtful(shard: str) -> bool:
    """Whether it is of claims that lapse into doubt, and never expire."""
    return "?" in shard


def _shards(state: State) -> list[str]:
    kinds = ("claimed", "claimed?") if state == "claimed" else (state,)
    return [f"{kind}/{n}" for kind in kinds for n in range(SHARDS)]


def _position(shard: str, position: Any) -> Item:
    try:
        rank, identity = position
        return {"bucket": wrap(shard), "rank": wrap(int(rank)), "id": wrap(_bytes(identity))}
    except (TypeError, ValueError):
        raise _bad_cursor() from None


def _cursor(position: object) -> str:
    return _text(json.dumps(position, separators=(",", ":")).encode())


def _read_cursor(cursor: str, kind: type) -> Any:
    try:
        position = json.loads(_bytes(cursor))
    except ValueError:
        position = None
    if not isinstance(position, kind):
        raise _bad_cursor()
    return position


def _text(value: bytes) -> str:
    return base64.urlsafe_b64encode(value).decode()


def _bytes(text: str) -> bytes:
    try:
        return base64.urlsafe_b64decode(text)
    except (binascii.Error, ValueError):
        raise _bad_cursor() from None


def _bad_cursor() -> InvalidOption:
    return InvalidOption("this cursor was not made by this listing; start again without one")
