"""Records in DynamoDB: a record is an item, and every change is one conditional write.

- A claim tries the usual case first, that the record may be taken: one UpdateItem, with the whole rule as its
  condition. Where the condition fails, the reply contains the item (``ReturnValuesOnConditionCheckFailure``), by which
  the claim is answered. So a first claim, a duplicate and a completion are one request each. Other changes (a lapse
  into doubt, exhaustion, an expired record that DynamoDB has not deleted yet) need a second write, on the condition
  that the item still has the same version; if it has not, the claim is decided again on the new item.
- DynamoDB's expressions cannot read a clock: see `clock.ServerClock`.
- Only a transaction can write several items conditionally, and it costs double. So a batch is single calls, made
  concurrently.
- DynamoDB itself deletes expired records, hours late, by the attribute ``expires`` (in seconds; its time to live). So
  every condition also compares ``expires_at`` (in microseconds).
- The index ``by_state`` has all records but the done ones, by state and shard (a partition of an index takes 1,000
  writes a second). `list` and `sweep` read it. It costs a claim and a completion one write unit each.
"""

from __future__ import annotations

from typing import Any

from effectonce.backends.common.aws_sdk import AWSTarget
from effectonce.backends.common.drivers import require_driver
from effectonce.contracts import Capabilities, Port
from effectonce.values.urls import Address

from .client import AsyncDynamoDBClient, SyncDynamoDBClient, parse_target, require_table_name
from .clock import ServerClock
from .port import DynamoDBPort
from .schema import schema_commands


class DynamoDBBackend:
    """A table at ``dynamodb://table?region=…&endpoint=…&profile=…&timeout=5s&connect_timeout=5s``.

    Credentials are found by the AWS SDK. The calls that a role needs: GetItem, BatchGetItem, PutItem, UpdateItem,
    Scan, and Query on the index; `check` and `migrate` also DescribeTable, DescribeTimeToLive, CreateTable and
    UpdateTimeToLive. Those for TLS, with an endpoint of your own: ``ca_file``, ``cert_file``, ``key_file``, ``verify``
    (yes, or no); ``tls`` is as the endpoint says, and there is no ``server_name``.
    """

    capabilities = Capabilities(name="dynamodb", batch=32, expires_by_itself=True, estimated_clock=True)

    def __init__(self, address: Address | AWSTarget, *, clock: ServerClock | None = None) -> None:
        require_driver("DynamoDB", "dynamodb", "botocore")
        self.target = parse_target(address) if isinstance(address, Address) else address
        self.server_clock = clock or ServerClock()
        self._client: Any = None  # the caller's own; None: a port opens one
        self._async_client: Any = None

    @classmethod
    def from_client(cls, client: Any, table: str) -> DynamoDBBackend:
        """A backend on the caller's client, of boto3 or of aiobotocore, which the caller closes.

        Async code beside a boto3 client, and heartbeats beside an aiobotocore one, get clients of our own at the same
        endpoint and region, with the credentials that the SDK finds. An aiobotocore client serves the event loop that
        it was made in.
        """
        region, endpoint = client.meta.region_name, client.meta.endpoint_url
        target = AWSTarget(service="dynamodb", table=require_table_name(table), region=region, endpoint=endpoint)
        backend = cls(target)
        if any(base.__module__.startswith("aiobotocore") for base in type(client).__mro__):
            backend._async_client = client
        else:
            backend._client = client
        return backend

    def sync_port(self) -> Port:
        return DynamoDBPort(SyncDynamoDBClient(self.target, self.server_clock, self._client))

    def async_port(self) -> Port:
        require_driver("DynamoDB", "dynamodb", "aiobotocore")
        return DynamoDBPort(AsyncDynamoDBClient(self.target, self.server_clock, self._async_client))

    def schema_sql(self) -> str:
        """The commands of the AWS command line that create the table: there is no SQL."""
        return schema_commands(self.target.table)

    def __repr__(self) -> str:
        return str(self.target)
