"""Azure Service Bus: a namespace by address, the SDK's clients, and their errors as ours."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from contextlib import suppress
from importlib.util import find_spec
from typing import Any, TypeVar

from msgspec import Struct

from effectonce.errors import BrokerUnavailable, ConfigurationError, InvalidOption, MissingDriver, show
from effectonce.values.urls import Address, flag

T = TypeVar("T")


class Namespace(Struct, frozen=True, kw_only=True):
    """A namespace and how to reach it."""

    shown: str
    host: str
    user: str | None
    key: str
    emulator: bool
    timeout: float

    def __repr__(self) -> str:
        return self.shown

    __str__ = __repr__

    def client(self) -> Any:
        """The SDK's client for messages; nothing is opened."""
        from azure.servicebus.aio import ServiceBusClient

        # No retries of its own: it would make them on a new link, where old deliveries mean nothing.
        if self.emulator:
            return ServiceBusClient.from_connection_string(
                f"Endpoint=sb://{self.host};SharedAccessKeyName={self.user};SharedAccessKey={self.key};"
                "UseDevelopmentEmulator=true;",
                retry_total=0,
            )
        return ServiceBusClient(self.host, self._credential(), retry_total=0)

    def administration(self) -> Any:
        """The SDK's client for queues, which speaks HTTPS."""
        from azure.servicebus.aio.management import ServiceBusAdministrationClient

        return ServiceBusAdministrationClient(self.host, self._credential())

    def _credential(self) -> Any:
        if self.user is not None:
            from azure.core.credentials import AzureNamedKeyCredential

            return AzureNamedKeyCredential(self.user, self.key)
        from azure.identity.aio import DefaultAzureCredential  # type: ignore[import-not-found, import-untyped, unused-ignore]

        return DefaultAzureCredential()


def parse(address: Address) -> Namespace:
    """The namespace of ``servicebus://KeyName:Key@name.servicebus.windows.net``."""
    if find_spec("azure") is None or find_spec("azure.servicebus") is None:
        raise MissingDriver(
            "Azure Service Bus needs azure-servicebus; install it with: pip install 'effectonce[servicebus]'"
        )
    if not address.host or address.path not in ("", "/"):
        raise InvalidOption(
            f"servicebus:// has a host, as in servicebus://KeyName:Key@name.servicebus.windows.net; got {address}"
        )
    emulator = address.take("emulator", flag, False)
    if address.user is None and (emulator or find_spec("azure.identity") is None):
        raise MissingDriver(
            f"{address} names no key; write servicebus://KeyName:Key@host with the key percent-encoded, or use the "
            "machine's identity: pip install azure-identity"
        )
    return Namespace(
        shown=str(address),
        host=address.netloc if emulator else address.host,
        user=address.user,
        key=address.password or "",
        emulator=emulator,
        timeout=address.seconds("timeout", 30.0),
    )


class Refused(ConfigurationError):
    """Service Bus does not take the message as it is."""


def translate(error: BaseException, namespace: Namespace, queue: str = "") -> Exception:
    """One of our errors for one of the SDK's; others (a bug of ours) as they are."""
    from azure.core.exceptions import AzureError, ClientAuthenticationError, ResourceNotFoundError
    from azure.servicebus import exceptions as sdk

    text = show(error, 200)
    if isinstance(error, sdk.ServiceBusAuthenticationError | sdk.ServiceBusAuthorizationError):
        return ConfigurationError(f"{namespace} refuses this key ({type(error).__name__}); check its name and rights")
    if isinstance(error, ClientAuthenticationError):
        return ConfigurationError(f"{namespace} refuses this identity ({type(error).__name__}); check its role")
    if isinstance(error, sdk.MessagingEntityNotFoundError | ResourceNotFoundError):
        return ConfigurationError(
            f"there is no queue {queue} at {namespace}; create it, for example with connect_broker(…).declare(queue)"
        )
    if isinstance(error, sdk.MessagingEntityDisabledError):
        return ConfigurationError(f"queue {queue} at {namespace} is disabled; enable it")
    if isinstance(error, sdk.MessageSizeExceededError):
        return Refused(f"the message is over what {namespace} takes ({text}); send less, or use a larger tier")
    if isinstance(error, AzureError | OSError | TimeoutError):
        return BrokerUnavailable(f"{namespace} does not answer ({type(error).__name__}: {text})")
    return error if isinstance(error, Exception) else BrokerUnavailable(f"{namespace}: {text}")


class Link:
    """One sender or receiver of the SDK, opened when first used, and anew after an error.

    The SDK's are not made for several tasks at once: they take turns here. ``lost`` is told when one is given up, since
    what it had received cannot be settled by its successor (F56).
    """

    def __init__(
        self,
        namespace: Namespace,
        queue: str,
        make: Callable[[Any], Any],
        lost: Callable[[], None] = lambda: None,
    ) -> None:
        self._namespace = namespace
        self._queue = queue
        self._make = make
        self._lost = lost
        self._client: Any = None
        self._end: Any = None
        self._turn = asyncio.Lock()

    async def use(self, work: Callable[[Any], Coroutine[Any, Any, T]]) -> T:
        """What ``work`` makes of the sender or receiver."""
        async with self._turn:
            try:
                async with asyncio.timeout(self._namespace.timeout):
                    if self._end is None:
                        self._client = self._namespace.client()
                        self._end = await self._make(self._client).__aenter__()
                    return await work(self._end)
            except Exception as error:
                await self._drop()
                raise translate(error, self._namespace, self._queue) from error
            except BaseException:  # cancelled: nobody knows what it was doing
                await self._drop()
                raise

    async def close(self) -> None:
        async with self._turn:
            await self._drop()

    async def _drop(self) -> None:
        end, client, self._end, self._client = self._end, self._client, None, None
        self._lost()
        for each in filter(None, (end, client)):
            with suppress(Exception):
                async with asyncio.timeout(self._namespace.timeout):
                    await each.close()
