"""Tables on DynamoDB local for the tests: their URLs, operations on them, and clocks to advance."""

import os
from typing import Any
from urllib.parse import urlsplit

from effectonce.backends.dynamodb.clock import ServerClock
from effectonce.backends.dynamodb.store import DynamoDBBackend
from effectonce.contracts import Port
from effectonce.core.run_sync import run_sync
from effectonce.keys import digest
from effectonce.record import Answer, Batchable, Claim, Look, Reply, Settlement
from effectonce.testing.clock import ManualClock
from effectonce.values.urls import Address

SECOND = 1_000_000
HOUR = 3600 * SECOND
FAR = 253_402_300_799


def table_url(url: str, table: str) -> str:
    return f"dynamodb://{table}?{urlsplit(url).query}"


class FixedClock(ServerClock):
    """The service's time as a test sets it, known exactly unless ``wrong`` is set."""

    is_known = True
    offset = 0
    wrong = 0

    def observe(self, sent: int, date: str) -> None:
        pass

    def uncertainty(self) -> int:
        return self.wrong


class TimelessBackend(DynamoDBBackend):
    """The real backend on a clock that tests advance, so that the contract's leases end without waiting.

    It starts in 2100, since DynamoDB deletes what has expired on a clock of its own.
    """

    migrated = False

    def __init__(self, address: Address) -> None:
        self.clock = ManualClock(4_102_444_800_000_000)
        super().__init__(address, clock=FixedClock(self.clock.now))

    def sync_port(self) -> Port:
        return self._prepared(super().sync_port())

    def async_port(self) -> Port:
        return self._prepared(super().async_port())

    def _prepared(self, port: Port) -> Port:
        """``port``, whose first call of `migrate` does nothing where another port has migrated: every case begins with
        one, and it takes three requests."""
        migrate = port.migrate

        async def unless_done() -> None:
            if not self.migrated or port._is_prepared:  # type: ignore[attr-defined]
                await migrate()
                self.migrated = True

        port.migrate = unless_done  # type: ignore[method-assign]
        return port


def raw_client(url: str) -> Any:
    from botocore.session import Session

    endpoint = url.partition("endpoint=")[2].partition("&")[0]
    return Session().create_client("dynamodb", region_name="us-east-1", endpoint_url=endpoint)


def make_claim(key: str, *, lease: int = 60 * SECOND, **options: Any) -> Claim:
    return Claim("scope", key, os.urandom(16), lease, HOUR, **options)


def complete(claim: Claim, token: int, result: bytes | None = None) -> Settlement:
    return Settlement(claim.scope, claim.key, claim.owner, token, "done", HOUR, result)


def run_one(port: Port, op: Batchable) -> Reply:
    (reply,) = run_sync(port.run([op]))
    return reply


def claim_answer(port: Port, op: Claim | Look) -> Answer:
    reply = run_one(port, op)
    assert isinstance(reply, Answer), reply
    return reply


def read_item(url: str, key: str) -> dict[str, Any]:
    item: dict[str, Any] = raw_client(url).get_item(
        TableName=urlsplit(url).netloc, Key={"id": {"B": digest("scope", key)}}, ConsistentRead=True
    )["Item"]
    return item


def set_numbers(url: str, key: str, **numbers: int) -> None:
    """Change attributes behind the store's back."""
    raw_client(url).update_item(
        TableName=urlsplit(url).netloc,
        Key={"id": {"B": digest("scope", key)}},
        UpdateExpression="SET " + ", ".join(f"#{name} = :{name}" for name in numbers),
        ExpressionAttributeNames={f"#{name}": name for name in numbers},
        ExpressionAttributeValues={f":{name}": {"N": str(value)} for name, value in numbers.items()},
    )


async def freeze_clock(backend: DynamoDBBackend, port: Port) -> None:
    """Learn no more about the service's time. In its first second the estimate may move back by more than a few
    calls take: records then look older than they are, and a token ahead of it takes a second write."""
    await port.now()
    backend.server_clock.observe = lambda sent, date: None  # type: ignore[method-assign]
