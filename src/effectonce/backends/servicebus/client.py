"""A namespace of Azure Service Bus, read from a URL; the SDK's clients for it; and the translation of their errors."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from contextlib import suppress
from importlib.util import find_spec
from typing import Any, TypeVar

from msgspec import Struct

from effectonce.backends.common.drivers import require_driver
from effectonce.backends.common.tls import tls_refusal
from effectonce.errors import BrokerUnavailable, ConfigurationError, InvalidOption, MissingDriver, show
from effectonce.values.urls import Address, flag

T = TypeVar("T")


class ServiceBusNamespace(Struct, frozen=True, kw_only=True):
    """A namespace, its login and its timeout."""

    shown: str  # the URL without its key
    host: str
    user: str | None  # the name of the key; None: log in by the machine's identity
    key: str
    emulator: bool
    timeout: float  # of one call, in seconds
    ca_file: str  # the authorities to trust; "": those that the SDK has

    def __repr__(self) -> str:
        return self.shown

    __str__ = __repr__

    def client(self) -> Any:
        """Make the SDK's client for messages. Nothing is opened yet."""
        from azure.servicebus.aio import ServiceBusClient

        # Without retries: the SDK would retry on a new link, where deliveries of the old one cannot be settled.
        if self.user is not None:
            return ServiceBusClient.from_connection_string(self.connection_string, retry_total=0, **self._tls)
        return ServiceBusClient(self.host, _machine_identity(), retry_total=0, **self._tls)

    def administration(self) -> Any:
        """Make the SDK's client for creating and reading queues, which uses HTTPS."""
        from azure.servicebus.aio.management import ServiceBusAdministrationClient

        if self.user is not None:
            return ServiceBusAdministrationClient.from_connection_string(self.connection_string, **self._tls)
        return ServiceBusAdministrationClient(self.host, _machine_identity(), **self._tls)

    @property
    def _tls(self) -> dict[str, Any]:
        return {"connection_verify": self.ca_file} if self.ca_file else {}

    @property
    def connection_string(self) -> str:
        """The connection string of the namespace and its key: the only form of a key that both clients accept."""
        emulator = "UseDevelopmentEmulator=true;" if self.emulator else ""
        return f"Endpoint=sb://{self.host};SharedAccessKeyName={self.user};SharedAccessKey={self.key};{emulator}"


def _machine_identity() -> Any:
    from azure.identity.aio import DefaultAzureCredential  # type: ignore[import-not-found, import-untyped, unused-ignore]

    return DefaultAzureCredential()


def parse_namespace(address: Address) -> ServiceBusNamespace:
    """Read the namespace from ``servicebus://KeyName:Key@name.servicebus.windows.net``."""
    require_driver("Azure Service Bus", "servicebus", "azure", "azure.servicebus")
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
    if ";" in f"{address.user}{address.password}":
        raise InvalidOption(f"the key of {address}, or its name, has a semicolon, which no key of Service Bus has")
    return ServiceBusNamespace(
        shown=str(address),
        host=address.netloc if emulator else address.host,
        user=address.user,
        key=address.password or "",
        emulator=emulator,
        timeout=address.seconds("timeout", 30.0),
        ca_file=address.take("ca_file", str, ""),
    )


class ServiceBusRefusal(ConfigurationError):
    """Service Bus does not accept the message."""


class LockLost(BrokerUnavailable):
    """A lock has ended: another consumer may have the message, or the session."""


def lock_lost_errors() -> tuple[type[Exception], ...]:
    """The SDK's errors for a message whose lock has ended. The link that received it still works."""
    from azure.servicebus import exceptions as sdk

    return sdk.MessageLockLostError, sdk.MessageNotFoundError, sdk.MessageAlreadySettled


def translate(error: Exception, namespace: ServiceBusNamespace, queue: str = "") -> Exception:
    """Return our error for an error of the SDK. Any other exception is a bug of ours, and returned as it is."""
    from azure.core.exceptions import AzureError, ClientAuthenticationError, ResourceNotFoundError
    from azure.servicebus import exceptions as sdk

    text = show(error, 200)
    if refusal := tls_refusal(error, str(namespace)):
        return refusal
    if isinstance(error, (*lock_lost_errors(), sdk.SessionLockLostError)):
        return LockLost(f"a lock at {namespace} has ended ({type(error).__name__}: {text})")
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
        return ServiceBusRefusal(f"the message is too large for {namespace} ({text}); send less, or use a larger tier")
    if isinstance(error, AzureError | OSError | TimeoutError):
        return BrokerUnavailable(f"{namespace} does not answer ({type(error).__name__}: {text})")
    return error


class ServiceBusLink:
    """One sender or receiver of the SDK (``handler``), opened when it is first used, and again after an error.

    The SDK's senders and receivers do not support several tasks at once, so calls take turns here. ``on_lost`` is
    called when the link is dropped: the next one cannot settle what this one has received (F56: an ack on another
    link).
    """

    def __init__(
        self,
        namespace: ServiceBusNamespace,
        queue: str,
        make_handler: Callable[[Any], Any],
        on_lost: Callable[[], None] = lambda: None,
    ) -> None:
        self._namespace = namespace
        self._queue = queue
        self._make_handler = make_handler
        self._on_lost = on_lost
        self._client: Any = None
        self._handler: Any = None
        self._turn = asyncio.Lock()

    async def use(self, work: Callable[[Any], Coroutine[Any, Any, T]]) -> T:
        """Await ``work`` with the sender or receiver, and return its result. After an error the link is dropped, unless
        only the lock of a message has ended."""
        async with self._turn:
            try:
                async with asyncio.timeout(self._namespace.timeout):
                    if self._handler is None:
                        self._client = self._namespace.client()
                        self._handler = await self._make_handler(self._client).__aenter__()
                    return await work(self._handler)
            except lock_lost_errors() as error:
                raise translate(error, self._namespace, self._queue) from error
            except Exception as error:
                await self._drop()
                raise translate(error, self._namespace, self._queue) from error
            except BaseException:  # cancelled: the link may be in the middle of an exchange
                await self._drop()
                raise

    async def close(self) -> None:
        async with self._turn:
            await self._drop()

    async def _drop(self) -> None:
        self._on_lost()
        opened = (self._handler, self._client)
        self._handler = self._client = None
        for closable in opened:
            await close_quietly(closable, self._namespace)


async def close_quietly(closable: Any, namespace: ServiceBusNamespace) -> None:
    """Close a client, sender or receiver of the SDK, if there is one. Errors are ignored: it is given up in any
    case."""
    if closable is None:
        return
    with suppress(Exception):
        async with asyncio.timeout(namespace.timeout):
            await closable.close()
