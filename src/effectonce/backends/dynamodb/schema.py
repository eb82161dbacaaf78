"""The table and its index: creating them where they are missing, and checking that they can keep the promises.

Several processes may migrate at once: every step takes "it is there already" for success.
"""

from __future__ import annotations

import base64
import json
from typing import Any, Final

from effectonce.errors import ConfigurationError, SchemaMismatch, SchemaMissing, StoreUnavailable, UnsafeStore

from .client import ConditionFailed, DynamoDBClient, Item, TableInUse
from .items import expressions, wrap

SCHEMA_VERSION: Final = 1
#: The id of the one item that is not a record: the schema's version, and the time of the last sweep.
META_ID: Final = b"effectonce"
INDEX_NAME: Final = "by_state"
TABLE_POLL_S: Final = 0.5  # between two looks at a table that is being created ...
MAX_TABLE_POLLS: Final = 240  # ... for two minutes

TABLE_DEFINITION: Final[dict[str, Any]] = {
    "BillingMode": "PAY_PER_REQUEST",
    "AttributeDefinitions": [
        {"AttributeName": "id", "AttributeType": "B"},
        {"AttributeName": "bucket", "AttributeType": "S"},
        {"AttributeName": "rank", "AttributeType": "N"},
    ],
    "KeySchema": [{"AttributeName": "id", "KeyType": "HASH"}],
    "GlobalSecondaryIndexes": [
        {
            "IndexName": INDEX_NAME,
            "KeySchema": [
                {"AttributeName": "bucket", "KeyType": "HASH"},
                {"AttributeName": "rank", "KeyType": "RANGE"},
            ],
            "Projection": {"ProjectionType": "INCLUDE", "NonKeyAttributes": ["scope", "expires_at"]},
        }
    ],
}
TIME_TO_LIVE: Final = {"Enabled": True, "AttributeName": "expires"}


def schema_commands(table: str) -> str:
    """The commands of the AWS command line that create the table."""
    create = json.dumps({"TableName": table, **TABLE_DEFINITION})
    time_to_live = json.dumps({"TableName": table, "TimeToLiveSpecification": TIME_TO_LIVE})
    meta = {"id": {"B": base64.b64encode(META_ID).decode()}, "schema": wrap(SCHEMA_VERSION)}
    put_meta = json.dumps({"TableName": table, "Item": meta})
    return (
        f"aws dynamodb create-table --cli-input-json '{create}'\n"
        f"aws dynamodb wait table-exists --table-name {table}\n"
        f"aws dynamodb update-time-to-live --cli-input-json '{time_to_live}'\n"
        f"aws dynamodb put-item --cli-input-json '{put_meta}'\n"
    )


def require_version(meta: Item | None, client: DynamoDBClient) -> None:
    """Raise `SchemaMissing` or `SchemaMismatch`, unless ``meta``, the item `META_ID`, has the version that we read."""
    migrate = f"run: effectonce migrate --store '{client.target}'"
    if meta is None:
        raise SchemaMissing(f"the table of {client.target} is not prepared for effectonce; {migrate}")
    version = int(meta.get("schema", {}).get("N", 0))
    if version != SCHEMA_VERSION:
        raise SchemaMismatch(
            f"the table of {client.target} has schema {version}, this release reads {SCHEMA_VERSION}; "
            + (migrate if version < SCHEMA_VERSION else "upgrade effectonce")
        )


async def check_table(client: DynamoDBClient) -> None:
    """Raise where the table was not made by effectonce, or does not delete expired records."""
    await _describe_table(client)
    if not await _has_time_to_live(client):
        raise SchemaMissing(
            f"time to live is off on {client.target}, so expired records would pile up; "
            f"run: effectonce migrate --store '{client.target}'"
        )


async def migrate_table(client: DynamoDBClient) -> None:
    """Create what is missing of the table. Its version is written last: a table that has one is complete."""
    await _create_table(client)
    if not await _has_time_to_live(client):
        try:
            await client.call("update_time_to_live", TimeToLiveSpecification=TIME_TO_LIVE)
        except ConfigurationError:
            if not await _has_time_to_live(client):  # else another process was faster
                raise
    try:
        await client.call(
            "put_item",
            Item={"id": wrap(META_ID), "schema": wrap(SCHEMA_VERSION)},
            ReturnValuesOnConditionCheckFailure="ALL_OLD",
            **expressions({}, ConditionExpression="attribute_not_exists(#id)"),
        )
    except ConditionFailed as lost:
        require_version(lost.item, client)


async def _create_table(client: DynamoDBClient) -> None:
    """Create the table where it is missing, and wait until it is active."""
    for _ in range(MAX_TABLE_POLLS):
        try:
            if (await _describe_table(client))["TableStatus"] == "ACTIVE":
                return
        except SchemaMismatch:
            raise
        except SchemaMissing:
            try:
                await client.call("create_table", **TABLE_DEFINITION)
            except TableInUse:
                pass  # another process is creating it, or it is not visible yet
            continue
        await client.pause(TABLE_POLL_S)
    raise StoreUnavailable(f"the table of {client.target} is not ready after two minutes; migrate again")


async def _describe_table(client: DynamoDBClient) -> dict[str, Any]:
    """Return the description of the table. Raises `SchemaMismatch` where effectonce did not make it, and `UnsafeStore`
    where it is part of a global table."""
    table: dict[str, Any] = (await client.call("describe_table"))["Table"]
    indexes = {index["IndexName"]: index["KeySchema"] for index in table.get("GlobalSecondaryIndexes", [])}
    index_keys = TABLE_DEFINITION["GlobalSecondaryIndexes"][0]["KeySchema"]
    if table["KeySchema"] != TABLE_DEFINITION["KeySchema"] or indexes.get(INDEX_NAME) != index_keys:
        raise SchemaMismatch(
            f"the table of {client.target} has other keys, or no index {INDEX_NAME}: it was not made by effectonce; "
            "name a table that does not exist yet"
        )
    if table.get("Replicas"):
        raise UnsafeStore(
            f"the table of {client.target} is replicated to other regions, where the last write wins whatever its "
            "condition: two workers could both be granted a claim; use a table without replicas"
        )
    return table


async def _has_time_to_live(client: DynamoDBClient) -> bool:
    reply = await client.call("describe_time_to_live")
    ttl: dict[str, str] = reply["TimeToLiveDescription"]
    return ttl.get("AttributeName") == TIME_TO_LIVE["AttributeName"] and ttl["TimeToLiveStatus"] in (
        "ENABLED",
        "ENABLING",
    )
