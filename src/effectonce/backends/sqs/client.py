"""A client of SQS, opened by address: its calls, and the translation of its errors."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any, Final

from effectonce.backends.common.aws_sdk import AWSTarget, error_code, parse_target, translate_error
from effectonce.backends.common.drivers import require_driver
from effectonce.errors import BrokerUnavailable, ConfigurationError, InvalidOption
from effectonce.values.urls import Address

#: The most entries in one batch call.
MAX_BATCH_ENTRIES: Final = 10
#: The longest that one receive call waits.
MAX_POLL_S: Final = 20
#: How many calls are in flight at once on one client.
MAX_CONNECTIONS: Final = 20


def parse_account(address: Address) -> AWSTarget:
    """Read the account from ``sqs://?region=…&endpoint=…&profile=…&timeout=…``."""
    require_driver("SQS", "sqs", "aiobotocore", "botocore")
    account = parse_target(address, timeout=10.0)
    if address.netloc or address.path not in ("", "/"):
        raise InvalidOption(f"sqs:// has options only, as in sqs://?region=eu-west-1; got {address}")
    return account


class MissingSQSQueue(ConfigurationError):
    """There is no queue of that name."""


class SQSRefusal(ConfigurationError):
    """SQS does not accept the request."""


class SQSClient:
    """The SDK's client for one event loop, opened when first used. It keeps a pool of connections, and replaces a
    broken one by itself."""

    def __init__(self, account: AWSTarget) -> None:
        self.account = account
        self._sdk: Any = None
        self._opening = asyncio.Lock()
        self._urls: dict[str, str] = {}

    async def call(self, operation: str, queue: str = "", **parameters: Any) -> dict[str, Any]:
        """Make one request, about ``queue`` where that is named. Returns the reply, or raises one of our errors."""
        try:
            sdk = await self._open()
            if queue:
                if queue not in self._urls:
                    self._urls[queue] = (await sdk.get_queue_url(QueueName=queue))["QueueUrl"]
                parameters["QueueUrl"] = self._urls[queue]
            reply: dict[str, Any] = await getattr(sdk, operation)(**parameters)
        except Exception as error:
            raise translate(error, self.account, queue) from error
        return reply

    async def _open(self) -> Any:
        async with self._opening:
            if self._sdk is None:
                from aiobotocore.config import AioConfig
                from aiobotocore.session import AioSession

                client = self.account.create_client(
                    AioSession, AioConfig, connections=MAX_CONNECTIONS, longest_wait=MAX_POLL_S
                )
                self._sdk = await client.__aenter__()
            return self._sdk

    async def receive(self, queue: str, limit: int, *, wait: int, visibility_timeout: int) -> list[dict[str, Any]]:
        """Receive up to ``limit`` messages (ten at most), within ``wait`` seconds."""
        reply = await self.call(
            "receive_message",
            queue,
            MaxNumberOfMessages=min(limit, MAX_BATCH_ENTRIES),
            WaitTimeSeconds=wait,
            VisibilityTimeout=visibility_timeout,
            MessageAttributeNames=["All"],
            MessageSystemAttributeNames=["ApproximateReceiveCount", "SentTimestamp"],
        )
        return reply.get("Messages") or []

    async def send_entries(
        self, operation: str, queue: str, entries: Sequence[dict[str, Any]]
    ) -> list[Exception | None]:
        """Send any number of entries, ten at a time, concurrently. Returns the outcome of each.

        A batch may fail in part (F44).
        """
        chunks = [entries[start : start + MAX_BATCH_ENTRIES] for start in range(0, len(entries), MAX_BATCH_ENTRIES)]
        outcomes = await asyncio.gather(*(self.send_chunk(operation, queue, chunk) for chunk in chunks))
        return [outcome for chunk in outcomes for outcome in chunk]

    async def send_chunk(self, operation: str, queue: str, entries: Sequence[dict[str, Any]]) -> list[Exception | None]:
        """Send up to ten entries in one call. Where SQS refuses the call as a whole, send each entry alone."""
        named = [{**entry, "Id": str(index)} for index, entry in enumerate(entries)]
        try:
            reply = await self.call(operation, queue, Entries=named)
        except SQSRefusal as error:
            if len(entries) == 1:
                return [error]
            return [(await self.send_chunk(operation, queue, [entry]))[0] for entry in entries]
        except BrokerUnavailable as error:
            return [error] * len(entries)
        succeeded = {entry["Id"] for entry in reply.get("Successful", ())}
        failed = {entry["Id"]: _translate_failure(entry, operation, self.account) for entry in reply.get("Failed", ())}
        unknown = BrokerUnavailable(f"{self.account} did not report the outcome of an entry; send it again")
        return [None if entry["Id"] in succeeded else failed.get(entry["Id"], unknown) for entry in named]

    async def close(self) -> None:
        sdk, self._sdk = self._sdk, None
        if sdk is not None:
            await sdk.__aexit__(None, None, None)


def translate(error: Exception, account: AWSTarget, queue: str = "") -> Exception:
    """Return our error for an error of the SDK. Any other exception is a bug of ours, and returned as it is."""
    code, _ = error_code(error)
    if code.endswith(("NonExistentQueue", "QueueDoesNotExist")):
        return MissingSQSQueue(
            f"there is no queue {queue} at {account}; create it, for example with connect_broker(…).declare(queue)"
        )
    return translate_error(error, account, unavailable=BrokerUnavailable, broken=BrokerUnavailable, refused=SQSRefusal)


def _translate_failure(entry: dict[str, Any], operation: str, account: AWSTarget) -> Exception:
    """Return our error for one entry of a batch. SQS reports it as it would refuse a request with that entry alone."""
    from botocore.exceptions import ClientError

    status = 400 if entry.get("SenderFault") else 500
    reply: Any = {"Error": entry, "ResponseMetadata": {"HTTPStatusCode": status}}
    return translate(ClientError(reply, operation), account)
