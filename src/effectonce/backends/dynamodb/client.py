"""Clients of DynamoDB, over an SDK client that is opened by address or the caller's own, with every error translated.

The sync and the async client have the same methods; those of `SyncDynamoDBClient` never suspend. An SDK client keeps a
pool of HTTP connections and drops a broken or cancelled one by itself, so we drop nothing after an error.
"""

from __future__ import annotations

import asyncio
import re
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Coroutine, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from typing import Any, Final, TypeVar

from msgspec.structs import replace

from effectonce.backends.common.aws_sdk import AWSTarget, error_code, reply_of, translate_error
from effectonce.backends.common.aws_sdk import parse_target as parse_aws_target
from effectonce.contracts import ConnectionLost
from effectonce.errors import (
    ConfigurationError,
    EffectOnceError,
    InvalidOption,
    SchemaMismatch,
    SchemaMissing,
    StoreUnavailable,
    show,
)
from effectonce.values.urls import Address

from .clock import ServerClock

A = TypeVar("A")
B = TypeVar("B")
Item = dict[str, Any]

#: How many calls one port has in flight at once: the SDK's own default for the size of its pool.
MAX_CONCURRENT_CALLS: Final = 10

_TABLE_NAME = re.compile(r"[A-Za-z0-9_.-]{3,255}", re.ASCII)


def parse_target(address: Address) -> AWSTarget:
    """Read the target from ``dynamodb://table?region=…&endpoint=…&profile=…&timeout=…&connect_timeout=…``."""
    target = parse_aws_target(address, table=require_table_name(address.netloc), timeout=5.0)
    target = replace(target, connect_timeout=address.seconds("connect_timeout", 5.0))
    address.refuse_unknown_options()
    if address.path not in ("", "/"):
        raise InvalidOption(f"dynamodb:// takes a table and options, but no path; got {address}")
    return target


def require_table_name(text: str) -> str:
    """Return ``text`` if it can be the name of a DynamoDB table; else raise `InvalidOption`."""
    if _TABLE_NAME.fullmatch(text) is None:
        raise InvalidOption(
            f"{show(text)!r} is not the name of a DynamoDB table; write dynamodb://table with 3 to 255 of A-Z a-z 0-9 "
            "_ . -"
        )
    return text


class ConditionFailed(Exception):
    """The condition of a write did not hold. ``item`` is the stored item; None: there is none."""

    def __init__(self, item: Item | None) -> None:
        super().__init__("the condition did not hold")
        self.item = item


class ItemTooLarge(EffectOnceError):
    """The record would be over DynamoDB's 400 KB for one item."""


class TableInUse(EffectOnceError):
    """The table is being created already."""


# -- clients


class DynamoDBClient(ABC):
    """A client of one table. It passes the date of every reply, also of a refusal, to ``clock``."""

    def __init__(self, target: AWSTarget, clock: ServerClock, client: Any = None) -> None:
        self.target = target
        self.clock = clock
        self._client = client
        self._is_callers = client is not None

    async def call(self, operation: str, **parameters: Any) -> dict[str, Any]:
        """Make one request about the table. Raises `ConditionFailed`, or one of our errors."""
        if "RequestItems" not in parameters:  # those of a batch name the table themselves
            parameters["TableName"] = self.target.table
        sent = self.clock.local()
        try:
            if self._client is None:
                self._client = await self._open()
                sent = self.clock.local()
            reply = await self._send(getattr(self._client, operation), parameters)
        except Exception as error:
            self._observe_date(sent, reply_of(error))  # a refusal carries a date as well
            raise translate(error, self.target) from error
        self._observe_date(sent, reply)
        return reply

    def _observe_date(self, sent: int, reply: dict[str, Any]) -> None:
        date = reply.get("ResponseMetadata", {}).get("HTTPHeaders", {}).get("date")
        if date:
            self.clock.observe(sent, date)

    async def close(self) -> None:
        """Close the client, unless it is the caller's own."""
        if not self._is_callers:
            client, self._client = self._client, None
            if client is not None:
                await self._close(client)

    @abstractmethod
    async def _open(self) -> Any: ...

    @abstractmethod
    async def _send(self, operation: Callable[..., Any], parameters: dict[str, Any]) -> dict[str, Any]: ...

    @abstractmethod
    async def _close(self, client: Any) -> None: ...

    @abstractmethod
    async def gather(self, work: Callable[[A], Coroutine[Any, Any, B]], items: Sequence[A]) -> list[B]:
        """Call ``work`` for every item, concurrently, and return the results. An error is raised after all have ended.
        ``work`` must not call `gather` itself: its threads could all wait for each other."""

    @abstractmethod
    async def pause(self, seconds: float) -> None: ...


class SyncDynamoDBClient(DynamoDBClient):
    """A botocore client (boto3's are the same), with a few threads for several calls at once."""

    _pool: ThreadPoolExecutor | None = None

    async def _open(self) -> Any:
        from botocore.config import Config
        from botocore.session import Session

        return self.target.create_client(Session, Config, connections=MAX_CONCURRENT_CALLS)

    async def _send(self, operation: Callable[..., Any], parameters: dict[str, Any]) -> dict[str, Any]:
        reply: dict[str, Any] = operation(**parameters)
        return reply

    async def gather(self, work: Callable[[A], Coroutine[Any, Any, B]], items: Sequence[A]) -> list[B]:
        if len(items) < 2:
            return [await work(item) for item in items]
        if self._pool is None:
            self._pool = ThreadPoolExecutor(MAX_CONCURRENT_CALLS, thread_name_prefix="effectonce-dynamodb")
        futures = [self._pool.submit(_run_sync, work, item) for item in items]
        try:
            wait(futures)
        except BaseException:  # Ctrl-C: cancel the calls that have not started; the others recognise their repetition
            for future in futures:
                future.cancel()
            raise
        return [future.result() for future in futures]

    async def pause(self, seconds: float) -> None:
        time.sleep(seconds)  # noqa: ASYNC251  (a sync port never suspends)

    async def _close(self, client: Any) -> None:
        client.close()

    async def close(self) -> None:
        pool, self._pool = self._pool, None
        if pool is not None:
            pool.shutdown(wait=False)
        await super().close()


def _run_sync(work: Callable[[A], Coroutine[Any, Any, B]], item: A) -> B:
    """The result of ``work`` over a sync client, which never suspends."""
    try:
        work(item).send(None)
    except StopIteration as stop:
        result: B = stop.value
        return result
    raise RuntimeError("a sync client suspended")


class AsyncDynamoDBClient(DynamoDBClient):
    """An aiobotocore client of the running event loop."""

    async def _open(self) -> Any:
        from aiobotocore.config import AioConfig
        from aiobotocore.session import AioSession

        client = self.target.create_client(AioSession, AioConfig, connections=MAX_CONCURRENT_CALLS)
        return await client.__aenter__()

    async def _send(self, operation: Callable[..., Any], parameters: dict[str, Any]) -> dict[str, Any]:
        reply: dict[str, Any] = await operation(**parameters)
        return reply

    async def gather(self, work: Callable[[A], Coroutine[Any, Any, B]], items: Sequence[A]) -> list[B]:
        if len(items) < 2:
            return [await work(item) for item in items]
        errors: list[Exception] = []

        async def collect(item: A) -> B | None:
            try:
                return await work(item)
            except Exception as error:
                errors.append(error)
                return None

        results = await asyncio.gather(*map(collect, items))
        if errors:
            raise errors[0]
        return results  # type: ignore[return-value]

    async def pause(self, seconds: float) -> None:
        await asyncio.sleep(seconds)

    async def _close(self, client: Any) -> None:
        await client.__aexit__(None, None, None)


# -- errors


def translate(error: Exception, target: AWSTarget) -> Exception:
    """Return our error for an error of the SDK. Any other exception is a bug of ours, and returned as it is."""
    code, text = error_code(error)
    if code == "ConditionalCheckFailedException":
        return ConditionFailed(reply_of(error).get("Item") or None)
    if code == "ResourceInUseException":
        return TableInUse(f"{target} is being created or changed; retry in a moment")
    if code in ("ResourceNotFoundException", "TableNotFoundException"):
        return SchemaMissing(f"there is no table at {target}; create it with: effectonce migrate --store '{target}'")
    if code == "ValidationException" and "size" in text and "exceeded" in text:
        return ItemTooLarge(f"the record would exceed DynamoDB's 400 KB: {show(text)}")
    if code == "ValidationException" and any(word in text for word in ("schema", "index", "required keys")):
        return SchemaMismatch(
            f"{target} was not made by effectonce ({show(text)}); give it a table of its own and run: "
            f"effectonce migrate --store '{target}'"
        )
    return translate_error(
        error, target, unavailable=StoreUnavailable, broken=ConnectionLost, refused=ConfigurationError
    )
