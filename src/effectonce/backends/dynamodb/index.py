"""Reading the index ``by_state``, which has all records but the done ones, by state and shard, in the order of `rank`.

The index lags behind the table, so what is read here is only a hint: a change is conditional, and a listed record is
read again from the table.
"""

from __future__ import annotations

from typing import Annotated, Any, Final, Literal, NamedTuple

from msgspec import Meta

from effectonce.record import Query, State
from effectonce.values.cursors import CursorDigest, CursorNumber, read_cursor, write_cursor

from .client import DynamoDBClient, Item
from .items import AttributeValue, expressions, lapses_to_doubt, shard_names, wrap
from .schema import INDEX_NAME

MAX_COUNT: Final = 100_000  # the most that `stats` reports of one state
MAX_COUNT_REQUESTS: Final = 400  # requests that one count may take, of 1 MB each

_UNEXPIRED_CONDITION: Final = "(attribute_not_exists(#expires_at) OR #expires_at > :past)"


_ShardPosition = tuple[CursorNumber, CursorDigest]
"""The last record of a shard before a page: its rank and its digest."""


class ShardPage(NamedTuple):
    """Keys from one shard of the index."""

    items: list[Item]
    last: Item | None  # the key behind which the next page begins; None: there is no next page


def _shard_query(shard: str, past: int, *, until: int | None = None, scope: str | None = None) -> dict[str, Any]:
    """Make the parameters of a query for unexpired records of ``shard``, up to the rank ``until``."""
    texts = {"KeyConditionExpression": "#bucket = :bucket"}
    values: dict[str, AttributeValue] = {"bucket": shard, "past": past}
    filters = [] if lapses_to_doubt(shard) else [_UNEXPIRED_CONDITION]
    if until is not None:
        texts["KeyConditionExpression"] += " AND #rank <= :until"
        values["until"] = until
    if scope is not None:
        filters.append("#scope = :scope")
        values["scope"] = scope
    if filters:
        texts["FilterExpression"] = " AND ".join(filters)
    return {"IndexName": INDEX_NAME, **expressions(values, **texts)}


async def read_shard(
    client: DynamoDBClient,
    shard: str,
    limit: int,
    *,
    newest: bool = False,
    until: int | None = None,
    start: Item | None = None,
    scope: str | None = None,
) -> ShardPage:
    """Read keys of unexpired records in one shard, up to the rank ``until``, behind the key ``start``."""
    parameters = _shard_query(shard, client.clock.read().past, until=until, scope=scope)
    if start is not None:
        parameters["ExclusiveStartKey"] = start
    reply = await client.call("query", Limit=limit, ScanIndexForward=not newest, **parameters)
    return ShardPage(reply["Items"], reply.get("LastEvaluatedKey"))


async def list_identities(client: DynamoDBClient, query: Query, state: State) -> tuple[list[bytes], str | None]:
    """List a page of records in ``state``, merged from its shards. Returns their digests, and the next page's cursor.

    The cursor holds a position for each shard: the rank and id of the last key that was shown of it; "start": none was;
    None: it was shown to its end.
    """
    shards = shard_names(state)
    positions: list[_ShardPosition | Literal["start"] | None] = ["start"] * len(shards)
    listing = f"records that are {state}"
    if query.cursor is not None:
        every_shard = Meta(min_length=len(shards), max_length=len(shards))
        position_type = Annotated[list[_ShardPosition | Literal["start"] | None], every_shard]
        positions = read_cursor(query.cursor, listing, position_type)

    async def read(n: int) -> ShardPage:
        position = positions[n]
        if position is None:
            return ShardPage([], None)
        start = None if position == "start" else _start_key(shards[n], position)
        newest = not lapses_to_doubt(shards[n])
        return await read_shard(client, shards[n], query.limit, newest=newest, start=start, scope=query.scope)

    def order(n: int, item: Item) -> int:
        return int(item["rank"]["N"]) * (1 if lapses_to_doubt(shards[n]) else -1)

    pages = await client.gather(read, range(len(shards)))
    merged = sorted(
        ((order(n, item), n, item) for n, page in enumerate(pages) for item in page.items),
        key=lambda entry: entry[:2],
    )[: query.limit]
    shown = [0] * len(shards)  # how many keys of each shard are on this page
    for _, n, item in merged:
        shown[n] += 1
        positions[n] = _position(item)
    for n, page in enumerate(pages):
        if shown[n] == len(page.items):  # all that were read: continue where the reading stopped
            positions[n] = None if page.last is None else _position(page.last)
    more = any(position is not None for position in positions)
    return [item["id"]["B"] for _, _, item in merged], write_cursor(listing, positions) if more else None


async def count_state(client: DynamoDBClient, state: State) -> tuple[int, bool]:
    """Count the unexpired records in ``state``, up to `MAX_COUNT`. Returns the count, and whether it is exact. Done
    records, which the index does not have, are counted by a scan of the table."""
    past = client.clock.read().past
    if state == "done":
        texts = {"FilterExpression": "#state = :done AND #expires_at > :past"}
        counted = [await _count_pages(client, "scan", **expressions({"past": past}, **texts))]
    else:
        counted = await client.gather(
            lambda shard: _count_pages(client, "query", **_shard_query(shard, past)), shard_names(state)
        )
    count = sum(count for count, _ in counted)
    return min(count, MAX_COUNT), count >= MAX_COUNT or all(is_complete for _, is_complete in counted)


async def _count_pages(client: DynamoDBClient, operation: str, **parameters: Any) -> tuple[int, bool]:
    """Count all pages of a query or scan. Returns the count, and whether it is complete."""
    count = 0
    for _ in range(MAX_COUNT_REQUESTS):
        reply = await client.call(operation, Select="COUNT", **parameters)
        count += reply["Count"]
        last = reply.get("LastEvaluatedKey")
        if last is None or count >= MAX_COUNT:
            return count, last is None
        parameters["ExclusiveStartKey"] = last
    return count, False


def _position(key: Item) -> _ShardPosition:
    return int(key["rank"]["N"]), key["id"]["B"]


def _start_key(shard: str, position: _ShardPosition) -> Item:
    rank, identity = position
    return {"bucket": wrap(shard), "rank": wrap(rank), "id": wrap(identity)}
