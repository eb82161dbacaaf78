"""DynamoDB: one item per record, every change one conditional write.

- A claim tries the usual case first, that the record may be taken, in one UpdateItem with the whole rule as its
  condition. Where the condition fails, the reply brings the item along (``ReturnValuesOnConditionCheckFailure``), from
  which the claim is answered: a first claim, a duplicate and a completion are one request each. Other changes (a lapse
  into doubt, exhaustion, an expired record that DynamoDB has not deleted yet) are a second write, on the condition
  that the item still has the same version; where that race is lost, it starts again from the item that won.
- DynamoDB's expressions cannot read a clock: see `clock.ServerClock`.
- There is no conditional write of several items short of a transaction, which costs double: a batch is single
  calls, made concurrently.
- Expired records are deleted by DynamoDB itself, hours late, by the ``expires`` attribute (seconds; time to live).
  So every condition compares ``expires_at`` (microseconds).
- The index ``by_state`` holds all but the done records, under state and shard (a GSI partition takes 1,000 writes a
  second). `list` and `sweep` read it; it costs a claim and a completion one write unit each. It lags behind the table,
  so what is read there is only a hint: changes are conditional, and listed records are read again from the table.
"""

from __future__ import annotations

import base64
import json
from typing import Any

from effectonce.contracts import Capabilities, Port
from effectonce.values.urls import Address

from .clock import ServerClock
from .connection import AsyncDynamoDBClient, DynamoDBTarget, SyncDynamoDBClient, parse_target, require_sdk, table_name
from .operations import META_ID, SCHEMA_VERSION
from .port import TABLE, TTL, DynamoDBPort
from .records import wrap

__all__ = ["DynamoDBBackend"]


class DynamoDBBackend:
    """A table at ``dynamodb://table?region=…&endpoint=…&profile=…&timeout=5s&connect_timeout=5s``.

    Credentials are found by the AWS SDK. The calls that a role needs: GetItem, BatchGetItem, PutItem, UpdateItem,
    Scan, and Query on the index; `check` and `migrate` also DescribeTable, DescribeTimeToLive, CreateTable and
    UpdateTimeToLive.
    """

    capabilities = Capabilities(name="dynamodb", lanes=3, batch=32, expires_by_itself=True, estimated_clock=True)

    def __init__(self, address: Address, *, clock: ServerClock | None = None) -> None:
        require_sdk("botocore")
        self._set_up(parse_target(address), clock)

    def _set_up(
        self, target: DynamoDBTarget, clock: ServerClock | None, client: Any = None, async_client: Any = None
    ) -> None:
        self.target = target
        self.server_clock = clock or ServerClock()
        self._client = client  # the caller's; None: open one
        self._async_client = async_client

    @classmethod
    def from_client(cls, client: Any, table: str) -> DynamoDBBackend:
        """A backend on the caller's client, of boto3 or of aiobotocore, which the caller closes.

        Async code beside a boto3 client, and heartbeats beside an aiobotocore one, get clients of our own at the same
        endpoint and region, with the credentials that the SDK finds. An aiobotocore client serves the event loop that
        it was made in.
        """
        asynchronous = type(client).__module__.startswith("aiobotocore") or any(
            base.__module__.startswith("aiobotocore") for base in type(client).__mro__
        )
        target = DynamoDBTarget(
            table=table_name(table), region=client.meta.region_name, endpoint=client.meta.endpoint_url
        )
        backend = cls.__new__(cls)
        backend._set_up(target, None, *((None, client) if asynchronous else (client, None)))
        return backend

    def sync_port(self) -> Port:
        return DynamoDBPort(
            SyncDynamoDBClient(self.target, self.server_clock, self._client), self.server_clock, self.target
        )

    def async_port(self) -> Port:
        require_sdk("aiobotocore")
        return DynamoDBPort(
            AsyncDynamoDBClient(self.target, self.server_clock, self._async_client), self.server_clock, self.target
        )

    def schema_sql(self) -> str:
        """The table as commands of the AWS command line."""
        table = json.dumps({"TableName": self.target.table, **TABLE})
        ttl = json.dumps({"TableName": self.target.table, "TimeToLiveSpecification": TTL})
        meta = json.dumps(
            {
                "TableName": self.target.table,
                "Item": {"id": {"B": base64.b64encode(META_ID).decode()}, "schema": wrap(SCHEMA_VERSION)},
            }
        )
        return (
            f"aws dynamodb create-table --cli-input-json '{table}'\n"
            f"aws dynamodb wait table-exists --table-name {self.target.table}\n"
            f"aws dynamodb update-time-to-live --cli-input-json '{ttl}'\n"
            f"aws dynamodb put-item --cli-input-json '{meta}'\n"
        )

    def __repr__(self) -> str:
        return str(self.target)
