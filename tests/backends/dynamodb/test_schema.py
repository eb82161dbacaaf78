"""The table of the DynamoDB store: created, checked and printed."""

import asyncio
import json
from urllib.parse import urlsplit

import pytest

from effectonce.backends.dynamodb.store import DynamoDBBackend
from effectonce.core.run_sync import run_sync
from effectonce.errors import SchemaMismatch, SchemaMissing, UnsafeStore
from effectonce.values.urls import Address

from .table import raw_client, table_url

pytest.importorskip("botocore.session", reason="pip install 'effectonce[dynamodb]'")

pytestmark = pytest.mark.quick_on("async")


def test_migrations_at_the_same_time_agree(dynamodb_url: str, unique_name: str) -> None:
    backend = DynamoDBBackend(Address(table_url(dynamodb_url, unique_name)))

    async def race() -> None:
        ports = [backend.async_port() for _ in range(5)]
        await asyncio.gather(*(port.migrate() for port in ports))
        await ports[0].check()
        await asyncio.gather(*(port.close() for port in ports))

    asyncio.run(race())


def test_a_table_of_something_else_is_refused(dynamodb_url: str, unique_name: str) -> None:
    raw_client(dynamodb_url).create_table(
        TableName=unique_name,
        BillingMode="PAY_PER_REQUEST",
        AttributeDefinitions=[{"AttributeName": "pk", "AttributeType": "S"}],
        KeySchema=[{"AttributeName": "pk", "KeyType": "HASH"}],
    )
    port = DynamoDBBackend(Address(table_url(dynamodb_url, unique_name))).sync_port()
    for work in (port.migrate, port.check, port.now):
        with pytest.raises(SchemaMismatch):
            run_sync(work())


def test_a_newer_schema_and_a_switched_off_time_to_live_are_found(dynamodb_url: str, unique_name: str) -> None:
    backend = DynamoDBBackend(Address(table_url(dynamodb_url, unique_name)))
    port = backend.sync_port()
    run_sync(port.migrate())
    run_sync(port.check())
    client = raw_client(dynamodb_url)
    client.update_time_to_live(
        TableName=unique_name, TimeToLiveSpecification={"Enabled": False, "AttributeName": "expires"}
    )
    with pytest.raises(SchemaMissing, match="time to live"):
        run_sync(port.check())
    client.put_item(TableName=unique_name, Item={"id": {"B": b"effectonce"}, "schema": {"N": "99"}})
    for work in (backend.sync_port().now, backend.sync_port().migrate):
        with pytest.raises(SchemaMismatch, match="upgrade effectonce"):
            run_sync(work())


def test_a_table_replicated_to_other_regions_is_refused(table: str) -> None:
    """The last of two writes wins there, so that conditions hold nothing."""
    client = raw_client(table)
    replicas = [{"RegionName": "eu-west-1", "ReplicaStatus": "ACTIVE"}]
    client.meta.events.register(
        "after-call.dynamodb.DescribeTable", lambda parsed, **_: parsed["Table"].update(Replicas=replicas)
    )
    port = DynamoDBBackend.from_client(client, urlsplit(table).netloc).sync_port()
    for work in (port.check, port.migrate):
        with pytest.raises(UnsafeStore, match="replicas"):
            run_sync(work())


def test_the_printed_schema_makes_the_table_that_migrate_makes(dynamodb_url: str, unique_name: str) -> None:
    backend = DynamoDBBackend(Address(table_url(dynamodb_url, unique_name)))
    client = raw_client(dynamodb_url)
    for line in backend.schema_sql().splitlines():
        command, _, rest = line.partition(" --cli-input-json ")
        if rest:
            options = json.loads(rest.strip("'"))
            if "Item" in options:  # the command line reads base64
                options["Item"]["id"] = {"B": b"effectonce"}
            getattr(client, command.removeprefix("aws dynamodb ").replace("-", "_"))(**options)
    run_sync(backend.sync_port().check())
