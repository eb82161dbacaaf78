"""The port of DynamoDB: records and lists for operators, the sweep, and the schema, over its operations."""

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

from .connection import ConditionFailed, Item, TableInUse
from .operations import CONSTANT_VALUES, META_ID, SCHEMA_VERSION, Operations
from .records import (
    SHARDS,
    StoredItem,
    Value,
    bucket,
    decide_forget,
    decide_resolve,
    decode,
    expressions,
    unexpired,
    wrap,
)

INDEX = "by_state"
MAX_COUNT = 100_000  # the most that `stats` reports of one state
SCAN_ITEMS = 1_000  # items that one request of a filtered list reads ...
MAX_PAGE_SCANS = 5  # ... and the most requests of one page
MAX_COUNT_REQUESTS = 400  # requests that one count may take, of 1 MB each
MAX_BATCH_GET = 100  # items of one BatchGetItem, DynamoDB's limit
MAX_BATCH_GET_ROUNDS = 1_000
TABLE_POLL_S = 0.5  # between two looks at a table that is being created ...
MAX_TABLE_POLLS = 240  # ... for two minutes

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


#: Keys from the index, and the position of the next page (None: there is none).
Keys = tuple[list[Item], Item | None]
_UNEXPIRED = "(attribute_not_exists(#expires_at) OR #expires_at > :past)"


class DynamoDBPort(Operations):
    """See `contracts.Port`."""

    async def get(self, scope: str, key: str) -> Record | None:
        await self._prepare()
        row = decode(await self._read(digest(scope, key)))
        return unexpired(row, self._clock.read().past)

    async def forget(self, scope: str, key: str, retention: int) -> bool:
        await self._prepare()
        item = await self._read(digest(scope, key))
        return await self._change(lambda stored, time: decide_forget(retention, stored, time), item) is True

    async def resolve(self, scope: str, key: str, resolution: Resolution) -> bool:
        await self._prepare()
        item = await self._read(digest(scope, key))
        return await self._change(lambda stored, time: decide_resolve(resolution, stored, time), item) is True

    # -- listing

    async def list(self, query: Query) -> Page:
        """Newest change first, read from the index. Done records, or all records, come from a scan of the table, in no
        order.

        A renewal does not count as a change. But claims that lapse into doubt are ordered by the end of their lease,
        which a renewal moves: they come after the other claims, the next to lapse first, so that one that is renewed
        between two pages is shown again rather than missed.
        """
        await self._prepare()
        if query.state is None or query.state == "done":
            return await self._list_by_scan(query)
        return await self._list_by_index(query, query.state)

    async def _list_by_scan(self, query: Query) -> Page:
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
        for _ in range(MAX_PAGE_SCANS):
            if start is not None:
                options["ExclusiveStartKey"] = start
            limit = query.limit + 1 if len(wanted) == 1 else SCAN_ITEMS
            reply = await self._dynamodb.call("scan", ConsistentRead=True, Limit=limit, **options)
            start = reply.get("LastEvaluatedKey")
            past = self._clock.read().past
            found = [(item, record) for item in reply["Items"] if (record := unexpired(decode(item), past)) is not None]
            room = query.limit - len(records)
            records += [record for _, record in found[:room]]
            if len(found) > room:  # a scan can resume after any item, not only after the last that it read
                start = {"id": found[room - 1][0]["id"]}
            if start is None or len(records) == query.limit:
                break
        return Page(records, None if start is None else _cursor(_text(start["id"]["B"])))

    async def _list_by_index(self, query: Query, state: State) -> Page:
        """Merge the shards of ``state``. The cursor holds how far each was read (None: to its end)."""
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
            newest = not _lapses_to_doubt(shards[n])
            return await self._query_shard(shards[n], query.limit, newest=newest, start=start, scope=query.scope)

        def order(n: int, item: Item) -> int:
            return int(item["rank"]["N"]) * (1 if _lapses_to_doubt(shards[n]) else -1)

        pages = await self._dynamodb.each(read, range(len(shards)))
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
            if used[n] == len(items):  # all were used: continue where the index stopped reading
                positions[n] = None if last is None else [int(last["rank"]["N"]), _text(last["id"]["B"])]
        rows = await self._fetch(chosen)
        past = self._clock.read().past
        records = [
            record
            for identity in chosen
            if (record := unexpired(rows.get(identity), past)) is not None and record.state == state
        ]
        more = any(position is not None for position in positions)
        return Page(records, _cursor(positions) if more else None)

    async def _query_shard(
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
        wanted = [] if _lapses_to_doubt(shard) else [_UNEXPIRED]
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
        reply = await self._dynamodb.call("query", IndexName=INDEX, Limit=limit, ScanIndexForward=not newest, **options)
        return reply["Items"], reply.get("LastEvaluatedKey")

    async def _fetch(self, identities: Sequence[bytes]) -> dict[bytes, StoredItem]:
        """The records themselves, read from the table."""
        rows: dict[bytes, StoredItem] = {}
        keys = [{"id": wrap(identity)} for identity in identities]
        for _ in range(MAX_BATCH_GET_ROUNDS):
            if not keys:
                return rows
            ask = {self._target.table: {"Keys": keys[:MAX_BATCH_GET], "ConsistentRead": True}}
            reply = await self._dynamodb.call("batch_get_item", RequestItems=ask)
            for item in reply["Responses"].get(self._target.table, []):
                row = decode(item)
                if row is not None:
                    rows[item["id"]["B"]] = row
            unprocessed = reply.get("UnprocessedKeys", {}).get(self._target.table, {}).get("Keys", [])
            if len(unprocessed) == len(keys[:MAX_BATCH_GET]):
                await self._dynamodb.pause(0.05)
            keys = keys[MAX_BATCH_GET:] + unprocessed
        raise StoreUnavailable(
            f"{self._target} keeps postponing a batch of reads; it may be throttled: raise its capacity, or retry later"
        )

    # -- counting and sweeping

    async def stats(self) -> Stats:
        """Done records are counted by a scan, the others in the index. A count that would read more than 400 MB (per
        shard, in the index) stops there, and is reported as approximate."""
        await self._prepare()
        meta = await self._read(META_ID)
        counts: dict[str, int] = {}
        approximate: list[str] = []
        states: tuple[State, ...] = ("claimed", "failed", "in_doubt", "free", "done")
        for state in states:
            found = (
                [await self._count_done()]
                if state == "done"
                else await self._dynamodb.each(self._count, _shards(state))
            )
            counts[state] = min(MAX_COUNT, sum(count for count, _ in found))
            if counts[state] < MAX_COUNT and not all(ended for _, ended in found):
                approximate.append(state)

        async def oldest(shard: str) -> list[int]:
            items, _ = await self._query_shard(shard, 1)
            return [int(item["rank"]["N"]) for item in items]

        doubts = [at for found in await self._dynamodb.each(oldest, _shards("in_doubt")) for at in found]
        swept = (meta or {}).get("swept_at", {}).get("N")
        return Stats(
            counts=counts,
            cap=MAX_COUNT,
            oldest_in_doubt=min(doubts, default=None),
            swept_at=None if swept is None else int(swept),
            approximate=tuple(approximate),
        )

    async def _count(self, shard: str) -> tuple[int, bool]:
        values: dict[str, Value] = {"bucket": shard, "past": self._clock.read().past}
        texts = {"KeyConditionExpression": "#bucket = :bucket"}
        if not _lapses_to_doubt(shard):
            texts["FilterExpression"] = _UNEXPIRED
        return await self._count_pages("query", IndexName=INDEX, **expressions(values, **texts))

    async def _count_done(self) -> tuple[int, bool]:
        values: dict[str, Value] = {"past": self._clock.read().past, "done": "done"}
        texts = {"FilterExpression": "#state = :done AND #expires_at > :past"}
        return await self._count_pages("scan", **expressions(values, **texts))

    async def _count_pages(self, operation: str, **options: Any) -> tuple[int, bool]:
        """The count of all pages, and whether it is complete."""
        count = 0
        for _ in range(MAX_COUNT_REQUESTS):
            reply = await self._dynamodb.call(operation, Select="COUNT", **options)
            count += reply["Count"]
            last = reply.get("LastEvaluatedKey")
            if last is None or count >= MAX_COUNT:
                return count, last is None
            options["ExclusiveStartKey"] = last
        return count, False

    async def sweep(self, limit: int) -> Swept:
        """Move lapsed claims to in_doubt; expired records are deleted by DynamoDB."""
        await self._prepare()
        now, past = self._clock.read()

        async def read(shard: str) -> Keys:  # one over the limit, which tells whether there is more
            return await self._query_shard(shard, limit + 1, until=past)

        pages = await self._dynamodb.each(read, [f"claimed?/{n}" for n in range(SHARDS)])
        found = [item["id"]["B"] for items, _ in pages for item in items]

        async def lapse(identity: bytes) -> bool:
            values: dict[str, Value] = {
                **CONSTANT_VALUES,
                "now": now,
                "past": past,
                "bucket": bucket("in_doubt", True, identity),
            }
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

        lapsed = sum(await self._dynamodb.each(lapse, found[:limit]))
        more = len(found) > limit or any(last is not None for _, last in pages)
        if not more:
            swept = expressions({"now": now}, UpdateExpression="SET #swept_at = :now")
            await self._dynamodb.call("update_item", Key={"id": wrap(META_ID)}, **swept)
        return Swept(0, lapsed, more)

    async def changes(self, timeout: float) -> Sequence[tuple[str, str]]:
        return ()

    async def now(self) -> int:
        await self._prepare()
        return self._clock.now()

    async def close(self) -> None:
        await self._dynamodb.close()

    # -- schema

    async def check(self) -> None:
        await self._prepare()
        await self._describe_table()
        if await self._ttl_status() not in ("ENABLED", "ENABLING"):
            raise SchemaMissing(
                f"time to live is off on {self._target}, so expired records would pile up; "
                f"run: effectonce migrate '{self._target}'"
            )

    async def migrate(self) -> None:
        for _ in range(MAX_TABLE_POLLS):
            try:
                if (await self._describe_table())["TableStatus"] == "ACTIVE":
                    break
            except SchemaMismatch:
                raise
            except SchemaMissing:
                try:
                    await self._dynamodb.call("create_table", **TABLE)
                except TableInUse:
                    pass  # another process is creating it, or it is not visible yet
                continue
            await self._dynamodb.pause(TABLE_POLL_S)
        else:
            raise StoreUnavailable(f"the table of {self._target} is not ready after two minutes; migrate again")
        if await self._ttl_status() not in ("ENABLED", "ENABLING"):
            try:
                await self._dynamodb.call("update_time_to_live", TimeToLiveSpecification=TTL)
            except ConfigurationError:
                if await self._ttl_status() not in ("ENABLED", "ENABLING"):  # else another process was faster
                    raise
        try:  # last, so that a table with a version is complete
            await self._dynamodb.call(
                "put_item",
                Item={"id": wrap(META_ID), "schema": wrap(SCHEMA_VERSION)},
                ReturnValuesOnConditionCheckFailure="ALL_OLD",
                **expressions({}, ConditionExpression="attribute_not_exists(#id)"),
            )
        except ConditionFailed as lost:
            self._check_version(lost.item)

    async def _describe_table(self) -> dict[str, Any]:
        """The description of the table; `SchemaMismatch` where effectonce did not make it, `UnsafeStore` where it is
        part of a global table."""
        table: dict[str, Any] = (await self._dynamodb.call("describe_table"))["Table"]
        indexes = {index["IndexName"]: index["KeySchema"] for index in table.get("GlobalSecondaryIndexes", [])}
        index_keys = TABLE["GlobalSecondaryIndexes"][0]["KeySchema"]
        if table["KeySchema"] != TABLE["KeySchema"] or indexes.get(INDEX) != index_keys:
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

    async def _ttl_status(self) -> str:
        reply = await self._dynamodb.call("describe_time_to_live")
        ttl: dict[str, str] = reply["TimeToLiveDescription"]
        return ttl["TimeToLiveStatus"] if ttl.get("AttributeName") == TTL["AttributeName"] else "DISABLED"


# -- the index's shards, and cursors -----------------------------------------------------------------------------


def _lapses_to_doubt(shard: str) -> bool:
    """Whether the shard holds claims that lapse into doubt, which never expire."""
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
