"""The port of DynamoDB: what operators and the sweep need, added to `operations`.

Each method first calls `_prepare`: no other request is right before the table's version and the service's time are
known (`test_requests.py` calls every method on a table that is not prepared). A list is read from the index and then,
record by record, from the table, since the index may be late.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any, Final, get_args

from effectonce.contracts import Port
from effectonce.errors import StoreUnavailable
from effectonce.record import Page, Query, Record, Resolution, State, Stats, SweepResult
from effectonce.values.cursors import CursorDigest, CursorNumber, read_cursor, write_cursor
from effectonce.values.identity import digest

from .client import ConditionFailed
from .decisions import decide_forget, decide_resolve, drop_expired
from .index import MAX_COUNT, count_state, list_identities, read_shard
from .items import AttributeValue, StoredItem, bucket, decode, doubtful_shard_names, expressions, shard_names, wrap
from .operations import Operations
from .schema import META_ID, check_table, migrate_table

SCAN_ITEMS: Final = 1_000  # items that one request of a filtered list reads ...
MAX_PAGE_SCANS: Final = 5  # ... and the most requests of one page
MAX_SORTED_SCANS: Final = 20  # ... and of one that is sorted
_SCAN: Final = "records"
_NEWEST: Final = "records by change"

MAX_BATCH_GET: Final = 100  # items of one BatchGetItem, DynamoDB's limit
MAX_BATCH_GET_ROUNDS: Final = 1_000


class DynamoDBPort(Operations, Port):
    """See `contracts.Port`."""

    async def get(self, scope: str, key: str) -> Record | None:
        await self._prepare()
        record = drop_expired(decode(await self._read(digest(scope, key))), self._clock.read().past)
        return None if record is None else record.to_record()

    async def forget(self, scope: str, key: str, retention_us: int) -> bool:
        await self._prepare()
        item = await self._read(digest(scope, key))
        return await self._change(partial(decide_forget, retention_us), item) is True

    async def resolve(self, scope: str, key: str, resolution: Resolution) -> bool:
        await self._prepare()
        item = await self._read(digest(scope, key))
        return await self._change(partial(decide_resolve, resolution), item) is True

    # -- listing

    async def list(self, query: Query) -> Page:
        """Newest change first, read from the index. Done records, or all records, come from a scan of the table: in no
        order, unless the query wants the newest first. Then a bounded number of them is sorted.

        A renewal does not count as a change. But claims that lapse into doubt are ordered by the end of their lease,
        which a renewal moves: they come after the other claims, the next to lapse first, so that one that is renewed
        between two pages is shown again rather than missed.
        """
        await self._prepare()
        if query.state is not None and query.state != "done":
            return await self._list_by_index(query, query.state)
        return await (self._list_sorted(query) if query.newest_first else self._list_by_scan(query))

    async def _list_sorted(self, query: Query) -> Page:
        before = None if query.cursor is None else read_cursor(query.cursor, _NEWEST, tuple[CursorNumber, CursorDigest])
        options = _scan_options(query)
        found: list[tuple[int, bytes, StoredItem]] = []
        last = None
        for _ in range(MAX_SORTED_SCANS):
            reply = await self._dynamodb.call("scan", ConsistentRead=True, Limit=SCAN_ITEMS, **options)
            past = self._clock.read().past
            for item in reply["Items"]:
                record = drop_expired(decode(item), past)
                if record is not None and (before is None or (record.changed_at, item["id"]["B"]) < before):
                    found.append((record.changed_at, item["id"]["B"], record))
            last = reply.get("LastEvaluatedKey")
            if last is None:
                break
            options["ExclusiveStartKey"] = last
        found.sort(key=lambda place: place[:2], reverse=True)
        shown = found[: query.limit]
        cursor = write_cursor(_NEWEST, shown[-1][:2]) if len(found) > query.limit else None
        return Page([record.to_record() for _, _, record in shown], cursor, partial=last is not None)

    async def _list_by_scan(self, query: Query) -> Page:
        options = _scan_options(query)
        start = None if query.cursor is None else {"id": wrap(read_cursor(query.cursor, _SCAN, CursorDigest))}
        records: list[StoredItem] = []
        for _ in range(MAX_PAGE_SCANS):
            if start is not None:
                options["ExclusiveStartKey"] = start
            limit = query.limit + 1 if query.state is None and query.scope is None else SCAN_ITEMS
            reply = await self._dynamodb.call("scan", ConsistentRead=True, Limit=limit, **options)
            start = reply.get("LastEvaluatedKey")
            past = self._clock.read().past
            listed = [record for item in reply["Items"] if (record := drop_expired(decode(item), past)) is not None]
            room = query.limit - len(records)
            records += listed[:room]
            if len(listed) > room:  # a scan can resume after any item, not only after the last that it read
                start = {"id": wrap(digest(records[-1].scope, records[-1].key))}
            if start is None or len(records) == query.limit:
                break
        cursor = None if start is None else write_cursor(_SCAN, start["id"]["B"])
        return Page([record.to_record() for record in records], cursor)

    async def _list_by_index(self, query: Query, state: State) -> Page:
        identities, cursor = await list_identities(self._dynamodb, query, state)
        records = await self._fetch(identities)
        past = self._clock.read().past
        listed = [drop_expired(records.get(identity), past) for identity in identities]
        wanted = [record for record in listed if record and record.state == state and query.key_contains in record.key]
        return Page([record.to_record() for record in wanted], cursor)

    async def _fetch(self, identities: Sequence[bytes]) -> dict[bytes, StoredItem]:
        """Read the records with these digests from the table."""
        records: dict[bytes, StoredItem] = {}
        keys = [{"id": wrap(identity)} for identity in identities]
        for _ in range(MAX_BATCH_GET_ROUNDS):
            if not keys:
                return records
            request = {self._target.table: {"Keys": keys[:MAX_BATCH_GET], "ConsistentRead": True}}
            reply = await self._dynamodb.call("batch_get_item", RequestItems=request)
            for item in reply["Responses"].get(self._target.table, []):
                if (record := decode(item)) is not None:
                    records[item["id"]["B"]] = record
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
        meta = await self._read(META_ID) or {}
        counted = {state: await count_state(self._dynamodb, state) for state in get_args(State)}
        oldest = await self._dynamodb.gather(
            lambda shard: read_shard(self._dynamodb, shard, 1), shard_names("in_doubt")
        )
        swept_at = meta.get("swept_at", {}).get("N")
        return Stats(
            counts={state: count for state, (count, _) in counted.items()},
            cap=MAX_COUNT,
            oldest_in_doubt=min((int(item["rank"]["N"]) for page in oldest for item in page.items), default=None),
            swept_at=None if swept_at is None else int(swept_at),
            approximate=tuple(state for state, (_, is_exact) in counted.items() if not is_exact),
        )

    async def sweep(self, limit: int) -> SweepResult:
        """Move lapsed claims to in_doubt; expired records are deleted by DynamoDB."""
        await self._prepare()
        now, past = self._clock.read()

        async def lapse(identity: bytes) -> bool:
            try:
                await self._update(
                    identity,
                    "SET #state = :in_doubt, #changed_at = :now, #rank = :now, #bucket = :bucket,"
                    " #version = #version + :one REMOVE #lease_until, #expires_at, #expires, #keep, #was",
                    "#state = :claimed AND #doubt_on_lapse = :yes AND #lease_until <= :past",
                    {"now": now, "past": past, "bucket": bucket("in_doubt", False, identity)},
                )
            except ConditionFailed:
                return False
            return True

        pages = await self._dynamodb.gather(  # one over the limit, which tells whether there is more
            lambda shard: read_shard(self._dynamodb, shard, limit + 1, until=past), doubtful_shard_names()
        )
        identities = [item["id"]["B"] for page in pages for item in page.items]
        lapsed = sum(await self._dynamodb.gather(lapse, identities[:limit]))
        more = len(identities) > limit or any(page.last is not None for page in pages)
        if not more:
            swept = expressions({"now": now}, UpdateExpression="SET #swept_at = :now")
            await self._dynamodb.call("update_item", Key={"id": wrap(META_ID)}, **swept)
        return SweepResult(0, lapsed, more)

    async def now(self) -> int:
        await self._prepare()
        return self._clock.now()

    async def close(self) -> None:
        await self._dynamodb.close()

    async def check(self) -> None:
        await self._prepare()
        await check_table(self._dynamodb)

    async def migrate(self) -> None:
        await migrate_table(self._dynamodb)


def _scan_options(query: Query) -> dict[str, Any]:
    """Make the filter of a scan for the records that ``query`` wants."""
    values: dict[str, AttributeValue] = {}
    filters = ["attribute_exists(#version)"]
    for name in ("state", "scope"):
        value = getattr(query, name)
        if value is not None:
            filters.append(f"#{name} = :{name}")
            values[name] = value
    if query.key_contains:
        filters.append("contains(#key, :key_contains)")
        values["key_contains"] = query.key_contains
    return expressions(values, FilterExpression=" AND ".join(filters))
