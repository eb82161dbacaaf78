"""DynamoDB: one item per record, every change one conditional write.

- A claim bets on what is usual, that the record may be taken, in one UpdateItem whose condition says all of when
  it may. A lost bet brings the item along (``ReturnValuesOnConditionCheckFailure``), and it says what to answer:
  a first claim, a duplicate and a completion are one request each. What a claim must change besides taking (a lapse
  into doubt, exhaustion, an expired record that DynamoDB has not deleted yet) is a second write, on the condition
  that the item is still that very version; losing that race begins again from the item that won.
- There is no clock in DynamoDB's expressions: see `connections.dynamodb_clock.ServerClock`.
- There is no conditional write of several items short of a transaction, which costs double: a batch is single
  calls, made concurrently.
- Expired records are deleted by DynamoDB itself, hours late, by the ``expires`` attribute (seconds; time to live).
  So every condition compares ``expires_at`` (microseconds).
- The index ``by_state`` holds all but the done records, under state and shard (a GSI partition takes 1,000 writes a
  second). It is what `list` and `sweep` read, and costs a claim and a completion one write unit each. It runs
  behind the table, so what is read there is only a hint: changes are conditional, listed records are read again.
"""

from __future__ import annotations

import base64
import json
from typing import Any

from effectonce.contracts import Capabilities, Port
from effectonce.values.urls import Address

from .clock import ServerClock
from .connection import AsyncWire, SyncWire, Target, parse, require, table_name
from .operations import META, SCHEMA
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
        require("botocore")
        self._set_up(parse(address), clock)

    def _set_up(self, target: Target, clock: ServerClock | None, given: Any = None, given_async: Any = None) -> None:
        self.target = target
        self.server_clock = clock or ServerClock()
        self._given = given
        self._given_async = given_async

    @classmethod
    def from_client(cls, client: Any, table: str) -> DynamoDBBackend:
        """A backend on the caller's client, of boto3 or of aiobotocore; who made it closes it.

        Ports of the other colour (leases are renewed by a sync one) are opened at the same endpoint and region,
        with the credentials that the SDK finds. An aiobotocore client serves the event loop that it was made in.
        """
        asynchronous = type(client).__module__.startswith("aiobotocore") or any(
            base.__module__.startswith("aiobotocore") for base in type(client).__mro__
        )
        target = Target(table=table_name(table), region=client.meta.region_name, endpoint=client.meta.endpoint_url)
        backend = cls.__new__(cls)
        backend._set_up(target, None, *((None, client) if asynchronous else (client, None)))
        return backend

    def sync_port(self) -> Port:
        return DynamoDBPort(SyncWire(self.target, self.server_clock, self._given), self.server_clock, self.target)

    def async_port(self) -> Port:
        require("aiobotocore")
        return DynamoDBPort(
            AsyncWire(self.target, self.server_clock, self._given_async), self.server_clock, self.target
        )

    def schema_sql(self) -> str:
        """The table as commands of the AWS command line."""
        table = json.dumps({"TableName": self.target.table, **TABLE})
        ttl = json.dumps({"TableName": self.target.table, "TimeToLiveSpecification": TTL})
        meta = json.dumps(
            {
                "TableName": self.target.table,
                "Item": {"id": {"B": base64.b64encode(META).decode()}, "schema": wrap(SCHEMA)},
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
