"""SQS: a client by address, its calls, and its errors as ours."""

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

#: The most entries in one call, for sending, deleting and all else.
CHUNK: Final = 10
#: The longest poll of one call, in seconds.
LONGEST_POLL: Final = 20
#: Calls in flight at once on one client.
CONCURRENT: Final = 20
#: The SDK's own attempts at one call.
ATTEMPTS: Final = 2


class Account(Struct, frozen=True, kw_only=True):
    """Where the queues are. Credentials come from the SDK's own chain, never from here."""

    region: str | None = None
    endpoint: str | None = None
    profile: str | None = None
    timeout: float = 10.0

    def __str__(self) -> str:
        options = {"region": self.region, "endpoint": self.endpoint, "profile": self.profile}
        shown = "&".join(f"{name}={value}" for name, value in options.items() if value)
        return "sqs://" + (f"?{shown}" if shown else "")


def parse(address: Address) -> Account:
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
    return Account(
        region=address.take("region", str, "") or None,
        endpoint=endpoint or None,
        profile=address.take("profile", str, "") or None,
        timeout=address.seconds("timeout", 10.0),
    )


class MissingQueue(ConfigurationError):
    """There is no queue of that name."""


class Refused(ConfigurationError):
    """SQS does not take the request as it is."""


class Client:
    """The SDK's client of one event loop, opened when first used. It keeps a pool of connections, and drops a broken
    one by itself."""

    def __init__(self, account: Account) -> None:
        self.account = account
        self._sdk: Any = None
        self._opening = asyncio.Lock()
        self._urls: dict[str, str] = {}

    async def call(self, operation: str, queue: str = "", **parameters: Any) -> dict[str, Any]:
        """One request, about ``queue`` where it is named; its reply, or one of our errors."""
        try:
            if self._sdk is None:
                async with self._opening:
                    self._sdk = self._sdk or await _open(self.account)
            if queue:
                parameters["QueueUrl"] = self._urls.get(queue) or await self._look_up(queue)
            reply: dict[str, Any] = await getattr(self._sdk, operation)(**parameters)
        except Exception as error:
            raise translate(error, self.account, queue) from error
        return reply

    async def _look_up(self, queue: str) -> str:
        reply = await self._sdk.get_queue_url(QueueName=queue)
        url: str = reply["QueueUrl"]
        self._urls[queue] = url
        return url

    async def batch(self, operation: str, queue: str, entries: Sequence[dict[str, Any]]) -> list[Exception | None]:
        """A batch call for any number of entries, ten at a time, side by side: what became of each (F44)."""
        chunks = [entries[start : start + CHUNK] for start in range(0, len(entries), CHUNK)]
        answers = await asyncio.gather(*(self.chunk(operation, queue, chunk) for chunk in chunks))
        return [answer for chunk in answers for answer in chunk]

    async def chunk(self, operation: str, queue: str, entries: Sequence[dict[str, Any]]) -> list[Exception | None]:
        """One batch call, of up to ten entries. Where SQS refuses it as a whole, each is tried alone."""
        named = [{**entry, "Id": str(at)} for at, entry in enumerate(entries)]
        try:
            reply = await self.call(operation, queue, Entries=named)
        except Refused as error:
            if len(entries) == 1:
                return [error]
            return [(await self.chunk(operation, queue, [entry]))[0] for entry in entries]
        except BrokerUnavailable as error:
            return [error] * len(entries)
        done = {entry["Id"] for entry in reply.get("Successful", ())}
        failed = {entry["Id"]: _failure(entry, self.account) for entry in reply.get("Failed", ())}
        silent = BrokerUnavailable(f"{self.account} did not say what became of it")
        return [None if entry["Id"] in done else failed.get(entry["Id"], silent) for entry in named]

    async def close(self) -> None:
        sdk, self._sdk = self._sdk, None
        if sdk is not None:
            await sdk.__aexit__(None, None, None)


async def _open(account: Account) -> Any:
    from aiobotocore.config import AioConfig
    from aiobotocore.session import AioSession

    session = AioSession(profile=account.profile)
    session.register_component("data_loader", _loader())
    config = AioConfig(
        connect_timeout=account.timeout / ATTEMPTS,
        read_timeout=account.timeout / ATTEMPTS + LONGEST_POLL,
        retries={"mode": "standard", "total_max_attempts": ATTEMPTS},
        max_pool_connections=CONCURRENT,
        parameter_validation=False,  # the parameters are ours
        tcp_keepalive=True,
    )
    client = session.create_client("sqs", region_name=account.region, endpoint_url=account.endpoint, config=config)
    return await client.__aenter__()


@lru_cache(maxsize=1)
def _loader() -> Any:
    """The SDK's description of SQS, read once: it is most of what opening a client costs."""
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


def translate(error: Exception, account: Account, queue: str = "") -> Exception:
    """One of our errors for one of the SDK's; others (a bug of ours) as they are."""
    from botocore import exceptions as sdk

    if isinstance(error, sdk.ClientError):
        found = error.response.get("Error", {})
        status = error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0)
        return _refusal(found.get("Code", ""), found.get("Message", "") or "", status, account, queue)
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


def _failure(entry: dict[str, Any], account: Account) -> Exception:
    status = 400 if entry.get("SenderFault") else 500
    return _refusal(entry.get("Code", ""), entry.get("Message", "") or "", status, account, "")


def _refusal(code: str, text: str, status: int, account: Account, queue: str) -> Exception:
    name = code.removeprefix("AWS.SimpleQueueService.")
    if name in ("NonExistentQueue", "QueueDoesNotExist"):
        return MissingQueue(
            f"there is no queue {queue} at {account}; create it, for example with connect_broker(…).declare(queue)"
        )
    if any(word in name for word in _THROTTLED):
        return BrokerUnavailable(f"{account} is throttled ({name}); slow down", retry_after=1.0)
    if any(word in name for word in _CREDENTIALS):
        return ConfigurationError(f"{account} refuses these credentials ({name}: {show(text)}); check role and policy")
    if status >= 500 or name in ("InternalError", "InternalFailure", "ServiceUnavailable"):
        return BrokerUnavailable(f"{account} failed ({name or status})")
    return Refused(f"{account} refuses this ({name}: {show(text, 200)})")
