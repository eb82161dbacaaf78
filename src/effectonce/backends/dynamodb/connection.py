"""Clients of DynamoDB: opened by address or the caller's own, with the SDK's errors translated.

The sync and the async client have the same methods; those of `SyncDynamoDBClient` never suspend. The AWS SDK is
imported when a client first opens. An SDK client keeps a pool of HTTP connections and drops a broken or cancelled one
by itself, so there is nothing to drop after an error.
"""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Callable, Coroutine, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache
from importlib.util import find_spec
from typing import Any, Protocol, TypeVar
from urllib.parse import urlsplit

from msgspec import Struct

from effectonce.contracts import ConnectionLost
from effectonce.errors import (
    ConfigurationError,
    EffectOnceError,
    InvalidOption,
    MissingDriver,
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

#: How often the SDK tries one call. Every write recognises its repetition, so a resend is harmless.
SDK_ATTEMPTS = 2
#: Calls in flight at once on one port; the SDK's own default for the size of its pool.
MAX_CONCURRENT_CALLS = 10

_TABLE = re.compile(r"[A-Za-z0-9_.-]{3,255}", re.ASCII)


# -- where -------------------------------------------------------------------------------------------------------


class DynamoDBTarget(Struct, frozen=True, kw_only=True):
    """A table and how to reach it. Credentials come from the SDK's own chain, never from here."""

    table: str
    region: str | None = None
    endpoint: str | None = None
    profile: str | None = None
    timeout: float = 5.0
    connect_timeout: float = 5.0

    def __str__(self) -> str:
        options = {"region": self.region, "endpoint": self.endpoint, "profile": self.profile}
        shown = "&".join(f"{name}={value}" for name, value in options.items() if value)
        return f"dynamodb://{self.table}" + (f"?{shown}" if shown else "")


def parse_target(address: Address) -> DynamoDBTarget:
    """The target of ``dynamodb://table?region=…&endpoint=…&profile=…&timeout=…&connect_timeout=…``."""
    if address.user is not None or address.password is not None:
        raise InvalidOption(
            "dynamodb:// takes no credentials in its URL; the AWS SDK finds them itself: in the environment "
            "(AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY), a profile (?profile=name) or the machine's role"
        )
    endpoint = address.take("endpoint", str, "")
    if endpoint:
        parts = urlsplit(endpoint)
        if parts.scheme not in ("http", "https") or not parts.hostname or "@" in parts.netloc:
            raise InvalidOption("option endpoint of dynamodb:// must look like http://127.0.0.1:8000, without a user")
    target = DynamoDBTarget(
        table=table_name(address.netloc),
        region=address.take("region", str, "") or None,
        endpoint=endpoint or None,
        profile=address.take("profile", str, "") or None,
        timeout=address.seconds("timeout", 5.0),
        connect_timeout=address.seconds("connect_timeout", 5.0),
    )
    address.done()
    if address.path not in ("", "/"):
        raise InvalidOption(f"dynamodb:// takes a table and options, but no path; got {address}")
    return target


def table_name(text: str) -> str:
    """``text``, which must be a valid name of a DynamoDB table."""
    if _TABLE.fullmatch(text) is None:
        raise InvalidOption(
            f"{show(text)!r} is not the name of a DynamoDB table; write dynamodb://table with 3 to 255 of A-Z a-z 0-9 "
            "_ . -"
        )
    return text


def require_sdk(module: str) -> None:
    """`MissingDriver` where this SDK is not installed. Imports nothing."""
    if find_spec(module) is None:
        raise MissingDriver(f"DynamoDB needs {module}; install it with: pip install 'effectonce[dynamodb]'")


# -- clients -----------------------------------------------------------------------------------------------------


class ConditionFailed(Exception):
    """The condition of a write did not hold. ``item`` is the item that is there; None: there is none."""

    def __init__(self, item: Item | None) -> None:
        super().__init__("the condition did not hold")
        self.item = item


class ItemTooLarge(EffectOnceError):
    """The record would be over DynamoDB's 400 KB for one item."""


class TableInUse(EffectOnceError):
    """The table is being created already."""


class DynamoDBClient(Protocol):
    """A sync or an async client of one table."""

    async def call(self, operation: str, **parameters: Any) -> dict[str, Any]:
        """Make one request about the table. Raises `ConditionFailed`, or one of our errors."""
        ...

    async def each(self, work: Callable[[A], Coroutine[Any, Any, B]], items: Sequence[A]) -> list[B]:
        """Call ``work`` for every item, concurrently. Raises the first error after all have ended. ``work`` must not
        call this itself."""
        ...

    async def pause(self, seconds: float) -> None: ...

    async def close(self) -> None: ...


class _ClientBase:
    """What the sync and the async client share: everything before and after the call itself."""

    def __init__(self, target: DynamoDBTarget, clock: ServerClock, client: Any = None) -> None:
        self._target = target
        self._clock = clock
        self._client = client
        self._is_callers = client is not None

    def _parameters(self, parameters: dict[str, Any]) -> dict[str, Any]:
        if "RequestItems" not in parameters:  # those of a batch name the table themselves
            parameters["TableName"] = self._target.table
        return parameters

    def _observe_date(self, sent: int, reply: dict[str, Any]) -> dict[str, Any]:
        date = reply.get("ResponseMetadata", {}).get("HTTPHeaders", {}).get("date")
        if date:
            self._clock.observe(sent, date)
        return reply

    def _translate(self, sent: int, error: Exception) -> Exception:
        """The error to raise for ``error`` of the SDK. A refusal carries a date as well."""
        reply = getattr(error, "response", None)
        if isinstance(reply, dict):
            self._observe_date(sent, reply)
            if reply.get("Error", {}).get("Code") == "ConditionalCheckFailedException":
                return ConditionFailed(reply.get("Item") or None)
        return translate(error, self._target)


class SyncDynamoDBClient(_ClientBase):
    """A botocore client (boto3's are the same), with a few threads for several calls at once."""

    _pool: ThreadPoolExecutor | None = None

    async def call(self, operation: str, **parameters: Any) -> dict[str, Any]:
        sent = self._clock.local()
        try:
            if self._client is None:
                self._client = self._open()
                sent = self._clock.local()
            reply = getattr(self._client, operation)(**self._parameters(parameters))
        except Exception as error:
            raise self._translate(sent, error) from error
        return self._observe_date(sent, reply)

    def _open(self) -> Any:
        from botocore.config import Config
        from botocore.session import Session

        return _client(Session, Config, self._target)

    async def each(self, work: Callable[[A], Coroutine[Any, Any, B]], items: Sequence[A]) -> list[B]:
        if len(items) < 2:
            return [await work(item) for item in items]
        if self._pool is None:
            self._pool = ThreadPoolExecutor(MAX_CONCURRENT_CALLS, thread_name_prefix="effectonce-dynamodb")
        futures = [self._pool.submit(_run_sync, work, item) for item in items]
        try:
            errors = [future.exception() for future in futures]
        except BaseException:  # Ctrl-C: calls that have not started are cancelled; writes recognise their repetition
            for future in futures:
                future.cancel()
            raise
        for error in errors:
            if error is not None:
                raise error
        return [future.result() for future in futures]

    async def pause(self, seconds: float) -> None:
        time.sleep(seconds)  # noqa: ASYNC251  (a sync port never suspends)

    async def close(self) -> None:
        pool, self._pool = self._pool, None
        if pool is not None:
            pool.shutdown(wait=False)
        if not self._is_callers:
            client, self._client = self._client, None
            if client is not None:
                client.close()


def _run_sync(work: Callable[[A], Coroutine[Any, Any, B]], item: A) -> B:
    """The result of ``work`` over a sync client, which never suspends."""
    try:
        work(item).send(None)
    except StopIteration as stop:
        result: B = stop.value
        return result
    raise RuntimeError("a sync client suspended")


class AsyncDynamoDBClient(_ClientBase):
    """An aiobotocore client of the running event loop."""

    async def call(self, operation: str, **parameters: Any) -> dict[str, Any]:
        sent = self._clock.local()
        try:
            if self._client is None:
                self._client = await self._open()
                sent = self._clock.local()
            reply = await getattr(self._client, operation)(**self._parameters(parameters))
        except Exception as error:
            raise self._translate(sent, error) from error
        return self._observe_date(sent, reply)

    async def _open(self) -> Any:
        from aiobotocore.config import AioConfig
        from aiobotocore.session import AioSession

        return await _client(AioSession, AioConfig, self._target).__aenter__()

    async def each(self, work: Callable[[A], Coroutine[Any, Any, B]], items: Sequence[A]) -> list[B]:
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

    async def close(self) -> None:
        if not self._is_callers:
            client, self._client = self._client, None
            if client is not None:
                await client.__aexit__(None, None, None)


def _client(session_class: Any, config_class: Any, target: DynamoDBTarget) -> Any:
    """An SDK client (of aiobotocore: a context manager of one) that answers or fails within the timeouts."""
    session = session_class(profile=target.profile)
    session.register_component("data_loader", _loader())
    config = config_class(
        # Each attempt has its share, so that the option bounds the call as a whole.
        connect_timeout=target.connect_timeout / SDK_ATTEMPTS,
        read_timeout=target.timeout / SDK_ATTEMPTS,
        retries={"mode": "standard", "total_max_attempts": SDK_ATTEMPTS},
        max_pool_connections=MAX_CONCURRENT_CALLS,
        parameter_validation=False,  # the parameters are ours
        tcp_keepalive=True,
    )
    return session.create_client("dynamodb", region_name=target.region, endpoint_url=target.endpoint, config=config)


@lru_cache(maxsize=1)
def _loader() -> Any:
    """The SDK's description of DynamoDB, read once: reading it is most of the time to open a client."""
    from botocore.loaders import create_loader

    return create_loader()


# -- errors ------------------------------------------------------------------------------------------------------

_THROTTLED = {
    "LimitExceededException",
    "ProvisionedThroughputExceededException",
    "RequestLimitExceeded",
    "ThrottledException",
    "Throttling",
    "ThrottlingException",
    "TransactionConflictException",
}
_REFUSED = {
    "AccessDeniedException",
    "ExpiredToken",
    "ExpiredTokenException",
    "IncompleteSignature",
    "IncompleteSignatureException",
    "InvalidClientTokenId",
    "InvalidSignatureException",
    "MissingAuthenticationToken",
    "MissingAuthenticationTokenException",
    "OptInRequired",
    "UnrecognizedClientException",
}


def translate(error: Exception, target: DynamoDBTarget) -> Exception:
    """``error`` of the SDK as one of ours; any other error (a bug of ours) as it is."""
    from botocore import exceptions as sdk

    if isinstance(error, sdk.ClientError):
        return _refusal(error, target)
    if isinstance(error, sdk.NoRegionError):
        return ConfigurationError(f"{target} names no region; add ?region=eu-west-1, or set AWS_DEFAULT_REGION")
    if isinstance(error, sdk.ProfileNotFound):
        return ConfigurationError(f"the AWS profile of {target} is not in ~/.aws/config; name one that is")
    if isinstance(
        error, sdk.ConnectTimeoutError | sdk.EndpointConnectionError | sdk.ProxyConnectionError | sdk.ReadTimeoutError
    ):
        return StoreUnavailable(
            f"{target} does not answer ({type(error).__name__}); check the endpoint and the network"
        )
    if isinstance(error, sdk.HTTPClientError | sdk.ConnectionError | sdk.ResponseStreamingError):
        return ConnectionLost(f"the connection to {target} broke ({type(error).__name__})")
    if isinstance(error, sdk.BotoCoreError):  # credentials, of which there are a dozen kinds, or settings
        return ConfigurationError(
            f"the AWS SDK cannot call {target} ({type(error).__name__}); it looks for credentials in the environment "
            "(AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY), the profile, and the machine's role"
        )
    return error


def _refusal(error: Any, target: DynamoDBTarget) -> Exception:
    code = error.response.get("Error", {}).get("Code", "")
    text = error.response.get("Error", {}).get("Message", "") or ""
    status = error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0)
    if code in _THROTTLED:
        return StoreUnavailable(f"{target} is throttled ({code}); raise its capacity or slow down", retry_after=1.0)
    if code == "ResourceInUseException":
        return TableInUse(f"{target} is being created or changed")
    if code in ("ResourceNotFoundException", "TableNotFoundException"):
        return SchemaMissing(f"there is no table at {target}; create it with: effectonce migrate '{target}'")
    if code in _REFUSED or code.startswith("RequestTime") or code == "RequestExpired":
        if "Signature expired" in text or "not yet current" in text or code.startswith("Request"):
            return ConfigurationError(f"{target} refuses this machine's clock ({code}); set it, with NTP for example")
        operation = getattr(error, "operation_name", "the call")
        return ConfigurationError(f"{target} refuses {operation} to these credentials ({code}); check role and policy")
    if code == "ValidationException" and "size" in text and "exceeded" in text:
        return ItemTooLarge(f"the record would be over the 400 KB of a DynamoDB item: {show(text)}")
    if code == "ValidationException" and any(word in text for word in ("schema", "index", "required keys")):
        return SchemaMismatch(
            f"{target} was not made by effectonce ({show(text)}); give it a table of its own and run: "
            f"effectonce migrate '{target}'"
        )
    if status >= 500 or code in ("InternalServerError", "ServiceUnavailable"):
        return ConnectionLost(f"{target} failed ({code or status})")
    return ConfigurationError(f"{target} refuses the request ({code}): {show(text, 200)}")
