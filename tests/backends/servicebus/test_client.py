"""A namespace of Azure Service Bus, a link to it, and the errors of the SDK."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest
from azure.core.exceptions import ClientAuthenticationError, ResourceNotFoundError, ServiceRequestError
from azure.servicebus import exceptions as sdk

from effectonce.backends.servicebus.client import (
    LockLost,
    ServiceBusLink,
    ServiceBusNamespace,
    ServiceBusRefusal,
    close_quietly,
    parse_namespace,
    translate,
)
from effectonce.errors import BrokerUnavailable, ConfigurationError, InvalidOption, MissingDriver
from effectonce.values.urls import Address


class Handler:
    """A sender or receiver of the SDK, and the client that made it."""

    def __init__(self) -> None:
        self.is_open = False
        self.closed = 0

    async def __aenter__(self) -> Handler:
        self.is_open = True
        return self

    async def close(self) -> None:
        self.closed += 1


class Namespace:
    """Stands in for a `ServiceBusNamespace`, and counts the clients that it makes."""

    timeout = 10.0

    def __init__(self) -> None:
        self.clients: list[Handler] = []

    def client(self) -> Handler:
        self.clients.append(Handler())
        return self.clients[-1]


class LinkUnderTest:
    def __init__(self) -> None:
        self.namespace = Namespace()
        self.handlers: list[Handler] = []
        self.losses = 0
        namespace: Any = self.namespace
        self.link = ServiceBusLink(namespace, "q", self._make_handler, self._count_loss)

    def _make_handler(self, client: Any) -> Handler:
        self.handlers.append(Handler())
        return self.handlers[-1]

    def _count_loss(self) -> None:
        self.losses += 1

    async def fail_with(self, error: BaseException) -> None:
        async def work(handler: Any) -> None:
            raise error

        await self.link.use(work)

    async def use(self) -> Any:
        async def work(handler: Any) -> Any:
            return handler

        return await self.link.use(work)


async def test_a_link_is_opened_once_and_kept() -> None:
    under_test = LinkUnderTest()
    assert await under_test.use() is await under_test.use()
    assert under_test.handlers[0].is_open
    assert len(under_test.namespace.clients) == len(under_test.handlers) == 1
    assert under_test.losses == 0


async def test_after_an_error_a_link_is_closed_and_the_next_one_opened() -> None:
    under_test = LinkUnderTest()
    await under_test.use()
    with pytest.raises(BrokerUnavailable):
        await under_test.fail_with(sdk.ServiceBusConnectionError(message="no"))
    assert (under_test.handlers[0].closed, under_test.namespace.clients[0].closed, under_test.losses) == (1, 1, 1)
    assert await under_test.use() is under_test.handlers[1]


async def test_a_link_outlives_the_lock_of_one_message() -> None:
    under_test = LinkUnderTest()
    with pytest.raises(LockLost):
        await under_test.fail_with(sdk.MessageLockLostError(message="late"))
    assert await under_test.use() is under_test.handlers[0]
    assert under_test.losses == 0


async def test_a_cancelled_call_leaves_no_link_in_the_middle_of_an_exchange() -> None:
    under_test = LinkUnderTest()
    with pytest.raises(asyncio.CancelledError):
        await under_test.fail_with(asyncio.CancelledError())
    assert (under_test.handlers[0].closed, under_test.losses) == (1, 1)


async def test_f36_a_call_that_is_not_answered_ends_in_time() -> None:
    under_test = LinkUnderTest()
    under_test.namespace.timeout = 0.01
    async with asyncio.timeout(10):
        with pytest.raises(BrokerUnavailable, match="TimeoutError"):
            await under_test.link.use(lambda handler: asyncio.sleep(60))


async def test_a_closed_link_is_lost_and_closed_with_its_client() -> None:
    under_test = LinkUnderTest()
    await under_test.use()
    await under_test.link.close()
    assert (under_test.handlers[0].closed, under_test.namespace.clients[0].closed, under_test.losses) == (1, 1, 1)


async def test_calls_on_one_link_take_turns() -> None:
    under_test, running = LinkUnderTest(), 0
    most = 0

    async def work(handler: Any) -> None:
        nonlocal running, most
        running += 1
        most = max(most, running)
        await asyncio.sleep(0)
        running -= 1

    await asyncio.gather(*(under_test.link.use(work) for _ in range(3)))
    assert most == 1


async def test_an_end_that_hangs_or_fails_holds_up_nobody() -> None:
    async def hang() -> None:
        await asyncio.sleep(60)

    async def fail() -> None:
        raise ConnectionResetError

    namespace: Any = Namespace()
    namespace.timeout = 0.01
    async with asyncio.timeout(10):
        for close in (hang, fail):
            await close_quietly(SimpleNamespace(close=close), namespace)
        await close_quietly(None, namespace)


# -- the namespace


def namespace_at(url: str) -> ServiceBusNamespace:
    return parse_namespace(Address(url))


def test_a_namespace_has_the_login_and_timeout_of_its_url() -> None:
    azure = namespace_at("servicebus://Root:a%2Fb%3D@name.servicebus.windows.net?timeout=3s")
    assert (azure.host, azure.user, azure.key) == ("name.servicebus.windows.net", "Root", "a/b=")
    assert (azure.timeout, azure.emulator) == (3.0, False)
    assert namespace_at("servicebus://Root@h").timeout == 30.0
    assert namespace_at("servicebus://Root@h/").key == ""


def test_an_emulator_has_a_port_and_a_namespace_has_none() -> None:
    assert namespace_at("servicebus://a:b@localhost:5673?emulator=yes").host == "localhost:5673"
    assert namespace_at("servicebus://a:b@localhost:5673").host == "localhost"


def test_without_a_key_and_without_azure_identity_the_error_says_what_to_install() -> None:
    with pytest.raises(MissingDriver, match="azure-identity"):
        namespace_at("servicebus://name.servicebus.windows.net")


def test_without_a_key_and_with_azure_identity_the_machine_logs_in(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("effectonce.backends.servicebus.client.find_spec", lambda name: object())
    assert namespace_at("servicebus://name.servicebus.windows.net").user is None
    with pytest.raises(MissingDriver, match="names no key"):  # the emulator knows no identities
        namespace_at("servicebus://localhost?emulator=yes")


@pytest.mark.parametrize("url", ["servicebus://a:b@h/queue", "servicebus:///", "servicebus:///queue"])
def test_a_url_without_a_host_or_with_a_queue_is_refused(url: str) -> None:
    with pytest.raises(InvalidOption, match="has a host"):
        namespace_at(url)


async def test_the_sdk_gets_the_key_and_does_not_retry_by_itself() -> None:
    for url in ("servicebus://Root:key@name.servicebus.windows.net", "servicebus://Root:key@localhost?emulator=yes"):
        client = namespace_at(url).client()
        assert client._config.retry_total == 0
        assert (client._credential.policy, client._credential.key) == ("Root", "key")
        await client.close()


@pytest.mark.parametrize("user", ["Root%3BEndpoint%3Dsb%3A%2F%2Fevil", "Root:key%3Bx"])
def test_a_key_cannot_add_to_the_connection_string(user: str) -> None:
    with pytest.raises(InvalidOption, match="semicolon"):
        namespace_at(f"servicebus://{user}@name.servicebus.windows.net")


# -- errors


@pytest.mark.parametrize(
    ("error", "kind", "said"),
    [
        (sdk.MessageLockLostError(message="x"), LockLost, "has ended"),
        (sdk.MessageNotFoundError(message="x"), LockLost, "has ended"),
        (sdk.MessageAlreadySettled(message="x"), LockLost, "has ended"),
        (sdk.SessionLockLostError(message="x"), LockLost, "has ended"),
        (sdk.ServiceBusAuthenticationError(message="x"), ConfigurationError, "this key"),
        (sdk.ServiceBusAuthorizationError(message="x"), ConfigurationError, "this key"),
        (ClientAuthenticationError("x"), ConfigurationError, "this identity"),
        (sdk.MessagingEntityNotFoundError(message="x"), ConfigurationError, "no queue q"),
        (ResourceNotFoundError("x"), ConfigurationError, "no queue q"),
        (sdk.MessagingEntityDisabledError(message="x"), ConfigurationError, "disabled"),
        (sdk.MessageSizeExceededError(message="x"), ServiceBusRefusal, "send less"),
        (sdk.ServiceBusServerBusyError(message="x"), BrokerUnavailable, "does not answer"),
        (ServiceRequestError("x"), BrokerUnavailable, "does not answer"),
        (OSError("x"), BrokerUnavailable, "does not answer"),
        (TimeoutError(), BrokerUnavailable, "does not answer"),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, Exception) else "",
)
def test_an_error_of_the_sdk_says_what_to_do(error: Exception, kind: type[Exception], said: str) -> None:
    translated = translate(error, namespace_at("servicebus://a:b@h"), "q")
    assert type(translated) is kind
    assert said in str(translated)


def test_a_bug_of_ours_is_not_the_brokers_failure() -> None:
    bug = KeyError("x")
    assert translate(bug, namespace_at("servicebus://a:b@h")) is bug
