"""SQS: a client by address, its calls, and its errors translated to ours."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from functools import lru_cache
from importlib.util import find_spec
from typing import Any, Final
from urllib.parse import urlsplit

from msgspec import Struct

from effectonce.errors import BrokerUnavailable, ConfigurationError, InvalidOption, MissingDriver, show
from effectonce.values.urls import Address

#: The most entries in one batch call.
MAX_BATCH_ENTRIES: Final = 10
#: The longest that one receive call waits.
MAX_POLL_S: Final = 20
#: How many calls are in flight at once on one client.
MAX_CONNECTIONS: Final = 20
#: How often the SDK itself tries one call.
SDK_ATTEMPTS: Final = 2


class SQSAccount(Struct, frozen=True, kw_only=True):
    """Where the queues are. Credentials come from the SDK's own chain, never from here."""

    region: str | None = None
    endpoint: str | None = None
    profile: str | None = None
    timeout: float = 10.0

    def __str__(self) -> str:
        options = {"region": self.region, "endpoint": self.endpoint, "profile": self.profile}
        shown = "&".join(f"{name}={value}" for name, value in options.items() if value)
        return "sqs://" + (f"?{shown}" if shown else "")


def parse_account(address: Address) -> SQSAccount:
    """The account of ``sqs://?region=…&endpoint=…&profile=…&timeout=…``."""
    for driver in ("aiobotocore", "botocore"):
        if find_spec(driver) is None:
            raise MissingDriver(f"SQS needs {driver}; install it with: pip install 'effectonce[sqs]'")
    if address.user is not None or address.password is not None:
        raise InvalidOption(
            "sqs:// takes no credentials in its URL; the AWS SDK finds them itself: in the environment "
            "(AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY), a profile (?profile=name) or the machine's role"
        )
    if address.netloc or address.path not in ("", "/"):
        raise InvalidOption(f"sqs:// has options only, as in sqs://?region=eu-west-1; got {address}")
    endpoint = address.take("endpoint", str, "")
    if endpoint:
        parts = urlsplit(endpoint)
        if parts.scheme not in ("http", "https") or not parts.hostname or "@" in parts.netloc:
            raise InvalidOption("option endpoint of sqs:// must look like http://127.0.0.1:9324, without a user")
    return SQSAccount(
        region=address.take("region", str, "") or None,
        endpoint=endpoint or None,
        profile=address.take("profile", str, "") or None,
        timeout=address.seconds("timeout", 10.0),
    )


class MissingSQSQueue(ConfigurationError):
    """There is no queue of that name."""


class SQSRefusal(ConfigurationError):
    """SQS does not take the request as it is."""


class SQSClient:
    """The SDK's client for one event loop, opened when first used. It keeps a pool of connections, and replaces a
    broken one by itself."""

    def __init__(self, account: SQSAccount) -> None:
        self.account = account
        self._sdk: Any = None
        self._opening = asyncio.Lock()
        self._urls: dict[str, str] = {}

    async def call(self, operation: str, queue: str = "", **parameters: Any) -> dict[str, Any]:
        """One request, for ``queue`` where it is named. Returns the reply, or raises one of our errors."""
        try:
            if self._sdk is None:
                async with self._opening:
                    self._sdk = self._sdk or await _open_client(self.account)
            if queue:
                parameters["QueueUrl"] = self._urls.get(queue) or await self._look_up_url(queue)
            reply: dict[str, Any] = await getattr(self._sdk, operation)(**parameters)
        except Exception as error:
            raise translate(error, self.account, queue) from error
        return reply

    async def _look_up_url(self, queue: str) -> str:
        reply = await self._sdk.get_queue_url(QueueName=queue)
        url: str = reply["QueueUrl"]
        self._urls[queue] = url
        return url

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
        """Send up to ten entries in one call. Where SQS refuses it as a whole, each is sent alone."""
        named = [{**entry, "Id": str(index)} for index, entry in enumerate(entries)]
        try:
            reply = await self.call(operation, queue, Entries=named)
        except SQSRefusal as error:
            if len(entries) == 1:
                return [error]
            return [(await self.send_chunk(operation, queue, [entry]))[0] for entry in entries]
        except BrokerUnavailable as error:
            return [error] * len(entries)
        done = {entry["Id"] for entry in reply.get("Successful", ())}
        failed = {entry["Id"]: _translate_failure(entry, self.account) for entry in reply.get("Failed", ())}
        unknown = BrokerUnavailable(f"{self.account} did not report the outcome of an entry; send it again")
        return [None if entry["Id"] in done else failed.get(entry["Id"], unknown) for entry in named]

    async def close(self) -> None:
        sdk, self._sdk = self._sdk, None
        if sdk is not None:
            await sdk.__aexit__(None, None, None)


async def _open_client(account: SQSAccount) -> Any:
    from aiobotocore.config import AioConfig
    from aiobotocore.session import AioSession

    session = AioSession(profile=account.profile)
    session.register_component("data_loader", _data_loader())
    config = AioConfig(
        connect_timeout=account.timeout / SDK_ATTEMPTS,
        read_timeout=account.timeout / SDK_ATTEMPTS + MAX_POLL_S,
        retries={"mode": "standard", "total_max_attempts": SDK_ATTEMPTS},
        max_pool_connections=MAX_CONNECTIONS,
        parameter_validation=False,  # the parameters are ours
        tcp_keepalive=True,
    )
    client = session.create_client("sqs", region_name=account.region, endpoint_url=account.endpoint, config=config)
    return await client.__aenter__()


@lru_cache(maxsize=1)
def _data_loader() -> Any:
    """The loader of the SDK's description of SQS. It is read once: that is most of the cost of opening a client."""
    from botocore.loaders import create_loader

    return create_loader()


# -- errors

_THROTTLED = ("Throttl", "RequestLimitExceeded", "OverLimit", "RequestThrottled", "KmsThrottled", "TooManyRequests")
_CREDENTIALS = (
    "AccessDenied",
    "ExpiredToken",
    "IncompleteSignature",
    "InvalidClientTokenId",
    "InvalidSecurity",
    "MissingAuthenticationToken",
    "OptInRequired",
    "RequestExpired",
    "SignatureDoesNotMatch",
    "UnrecognizedClient",
)


def translate(error: Exception, account: SQSAccount, queue: str = "") -> Exception:
    """Our error for an error of the SDK. Any other exception is a bug of ours, and returned as it is."""
    from botocore import exceptions as sdk

    if isinstance(error, sdk.ClientError):
        reported = error.response.get("Error", {})
        status = error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0)
        return _translate_code(reported.get("Code", ""), reported.get("Message", "") or "", status, account, queue)
    if isinstance(error, sdk.NoRegionError):
        return ConfigurationError(f"{account} names no region; add ?region=eu-west-1, or set AWS_DEFAULT_REGION")
    if isinstance(error, sdk.ProfileNotFound):
        return ConfigurationError(f"the AWS profile of {account} is not in ~/.aws/config; name one that is")
    if isinstance(error, sdk.HTTPClientError | sdk.ConnectionError | sdk.ResponseStreamingError):
        return BrokerUnavailable(f"{account} does not answer ({type(error).__name__})")
    if isinstance(error, sdk.BotoCoreError):  # credentials, of which there are a dozen kinds, or settings
        return ConfigurationError(
            f"the AWS SDK cannot call {account} ({type(error).__name__}); it looks for credentials in the environment "
            "(AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY), the profile, and the machine's role"
        )
    return error


def _translate_failure(entry: dict[str, Any], account: SQSAccount) -> Exception:
    status = 400 if entry.get("SenderFault") else 500
    return _translate_code(entry.get("Code", ""), entry.get("Message", "") or "", status, account, "")


def _translate_code(code: str, text: str, status: int, account: SQSAccount, queue: str) -> Exception:
    name = code.removeprefix("AWS.SimpleQueueService.")
    if name in ("NonExistentQueue", "QueueDoesNotExist"):
        return MissingSQSQueue(
            f"there is no queue {queue} at {account}; create it, for example with connect_broker(…).declare(queue)"
        )
    if any(word in name for word in _THROTTLED):
        return BrokerUnavailable(
            f"{account} throttles this client ({name}); send less per second, or raise the quota", retry_after=1.0
        )
    if any(word in name for word in _CREDENTIALS):
        return ConfigurationError(f"{account} refuses these credentials ({name}: {show(text)}); check role and policy")
    if status >= 500 or name in ("InternalError", "InternalFailure", "ServiceUnavailable"):
        return BrokerUnavailable(f"{account} failed ({name or status})")
    return SQSRefusal(f"{account} refuses this ({name}: {show(text, 200)})")
