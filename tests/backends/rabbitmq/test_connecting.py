"""Logging in, failing over and being blocked, on a real RabbitMQ."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager

import pytest

from effectonce.backends.rabbitmq import connection as connection_module
from effectonce.backends.rabbitmq.broker import RabbitMQBackend
from effectonce.backends.rabbitmq.connection import RabbitMQConnection
from effectonce.backends.rabbitmq.endpoint import RabbitMQEndpoint
from effectonce.contracts import Packet
from effectonce.errors import BrokerUnavailable, ConfigurationError
from effectonce.values.urls import Address
from tests import conftest
from tests.backends.queue_under_test import QueueUnderTest, receive
from tests.harness import installed
from tests.harness.certificates import Authority
from tests.harness.process import free_port
from tests.harness.proxy import FaultProxy
from tests.harness.rabbitmq import RabbitMQ, rabbitmq
from tests.harness.waiting import auntil

USER = "billing-service"  # as the certificate names it
PASSWORD = "long-and-sécret-" + "x" * 200


def endpoint_at(url: str, password: Callable[[], str] | None = None) -> RabbitMQEndpoint:
    address = Address(url)
    address.password_provider = password
    return RabbitMQEndpoint(address)


class OwnServer:
    """A server with every login mechanism, and a port for TLS."""

    def __init__(self, server: RabbitMQ, authority: Authority, tls_port: int) -> None:
        self.server = server
        self.authority = authority
        self.tls_port = tls_port

    def endpoint(self, options: str = "", *, certificate: str = "") -> RabbitMQEndpoint:
        if not certificate:
            return endpoint_at(f"{self.server.url}?{options}")
        cert_file, key_file = self.authority.issue(certificate)
        tls = f"ca_file={self.authority.ca_file}&cert_file={cert_file}&key_file={key_file}"
        return endpoint_at(f"amqps://127.0.0.1:{self.tls_port}/?{tls}&{options}")

    def connections(self, *columns: str) -> list[list[str]]:
        lines = self.server.control("list_connections", *columns).splitlines()
        return [line.split("\t") for line in lines][1:]


@pytest.fixture(scope="module")
def own(tmp_path_factory: pytest.TempPathFactory) -> Iterator[OwnServer]:
    authority, tls_port = Authority(tmp_path_factory.mktemp("certificates")), free_port()
    certificate = authority.issue("127.0.0.1")
    config = (
        f"listeners.ssl.1 = 127.0.0.1:{tls_port}",
        f"ssl_options.cacertfile = {authority.ca_file}",
        f"ssl_options.certfile = {certificate.cert_file}",
        f"ssl_options.keyfile = {certificate.key_file}",
        "ssl_options.verify = verify_peer",
        "ssl_cert_login_from = common_name",
        "auth_mechanisms.1 = PLAIN",
        "auth_mechanisms.2 = AMQPLAIN",
        "auth_mechanisms.3 = EXTERNAL",
        "auth_mechanisms.4 = RABBIT-CR-DEMO",
    )
    try:
        server = rabbitmq(*config, plugins=["rabbitmq_auth_mechanism_ssl"])
    except installed.Missing as missing:
        conftest.skip_or_fail(str(missing))
    with server:
        server.control("add_user", USER, PASSWORD)
        server.control("set_permissions", USER, ".*", ".*", ".*")
        yield OwnServer(server, authority, tls_port)


@asynccontextmanager
async def opened(endpoint: RabbitMQEndpoint, purpose: str = "test") -> AsyncIterator[RabbitMQConnection]:
    connection = await RabbitMQConnection.open(endpoint, purpose)
    try:
        yield connection
    finally:
        await connection.close()


async def use(connection: RabbitMQConnection) -> None:
    """Use the connection, to see that the server answers on it."""
    await (await connection.open_channel()).close()


# -- logging in


@pytest.mark.long
@pytest.mark.parametrize("mechanism", ["PLAIN", "AMQPLAIN", "RABBIT-CR-DEMO"])
async def test_a_password_logs_in_by_each_mechanism_and_a_wrong_one_by_none(own: OwnServer, mechanism: str) -> None:
    url = own.server.url.replace("guest:guest", USER) + f"?auth_mechanism={mechanism}"
    async with opened(endpoint_at(url, lambda: PASSWORD)) as connection:
        await use(connection)
    with pytest.raises(ConfigurationError, match="refused the user or the password"):
        await RabbitMQConnection.open(endpoint_at(url, lambda: "other"), "test")


@pytest.mark.long
async def test_a_client_certificate_logs_in_as_the_user_that_it_names(own: OwnServer) -> None:
    async with opened(own.endpoint(certificate=USER), "by certificate") as connection:
        await use(connection)
        listed = await asyncio.to_thread(own.connections, "user", "auth_mechanism", "client_properties")
        assert [row[:2] for row in listed if "by certificate" in row[2]] == [[USER, "EXTERNAL"]]


@pytest.mark.long
async def test_a_certificate_of_nobody_is_refused_with_what_to_do(own: OwnServer) -> None:
    with pytest.raises(ConfigurationError, match=r"refused the client certificate .* give the server a user"):
        await RabbitMQConnection.open(own.endpoint(certificate="stranger"), "test")


@pytest.mark.long
async def test_a_new_token_is_sent_on_the_connection_in_use(own: OwnServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection_module, "PASSWORD_CHECK_INTERVAL_S", 0.05)
    tokens = ["guest", "guest", "next"]

    def token() -> str:
        return tokens.pop(0) if len(tokens) > 1 else tokens[0]

    endpoint = endpoint_at(own.server.url.replace("guest:guest", "guest"), token)
    async with opened(endpoint) as connection:
        await auntil(connection._password_updated.is_set)
        assert connection._password == "next"
        await use(connection)


# -- limits


@pytest.mark.long
async def test_the_server_knows_the_connection_by_its_name_and_keeps_to_our_limits(own: OwnServer) -> None:
    options = "name=billing-7&heartbeat=0&channel_max=3&frame_max=8192"
    async with opened(own.endpoint(options), "publisher") as connection:
        assert (connection.channel_max, connection.frame_max) == (3, 8192)
        await use(connection)
        rows = await asyncio.to_thread(own.connections, "timeout", "channel_max", "frame_max", "client_properties")
        assert [row[:3] for row in rows if "billing-7 publisher" in row[3]] == [["0", "3", "8192"]]


async def test_bodies_of_many_small_frames_arrive_whole(rabbitmq_url: str, unique_name: str) -> None:
    under_test = QueueUnderTest(RabbitMQBackend(Address(f"{rabbitmq_url}?frame_max=8192")), unique_name)
    body = b"0123456789" * 2000
    consumer = await under_test.consumer()
    await under_test.publisher.publish(unique_name, [Packet(body=body, id="1")])
    assert [delivery.packet.body for delivery in await receive(consumer, 1)] == [body]
    await under_test.close()


async def test_a_server_with_too_few_channels_says_which_limit_to_raise(rabbitmq_url: str) -> None:
    async with opened(endpoint_at(f"{rabbitmq_url}?channel_max=2")) as connection:
        for _ in range(2):
            await connection.open_channel()
        with pytest.raises(ConfigurationError, match="raise channel_max"):
            await connection.open_channel()


# -- hosts


async def test_f59_the_next_host_serves_where_one_does_not(rabbitmq_url: str) -> None:
    silent = await asyncio.start_server(lambda reader, writer: None, "127.0.0.1", 0)
    dead = [f"127.0.0.1:{free_port()}", f"127.0.0.1:{silent.sockets[0].getsockname()[1]}"]
    live = Address(rabbitmq_url).netloc
    url = f"amqp://guest:guest@{','.join([*dead, live])}/?connection_timeout=300ms"
    async with silent:
        endpoint = endpoint_at(url)
        endpoint.connection_timeout = 0.3
        with pytest.raises(BrokerUnavailable, match=r"no host of .* can be used .*cannot connect.*did not answer"):
            await RabbitMQConnection.open(endpoint_at(url.replace(f",{live}", "")), "test")
        endpoint.connection_timeout = 30.0
        endpoint._hosts.pop(1)  # the silent one: it would be waited for
        async with opened(endpoint) as connection:
            await use(connection)
        assert str(endpoint.hosts[0]) == live  # the next connection does not wait for the dead ones


async def test_f59_a_consumer_and_a_publisher_fail_over_to_the_other_host(rabbitmq_url: str, unique_name: str) -> None:
    port = Address(rabbitmq_url).port or 5672
    with FaultProxy(port) as first, FaultProxy(port) as second:
        url = f"amqp://guest:guest@127.0.0.1:{first.port},127.0.0.1:{second.port}/"
        under_test = QueueUnderTest(RabbitMQBackend(Address(url)), unique_name)
        consumer = await under_test.consumer()
        await under_test.publish(b"before")
        assert [delivery.packet.body for delivery in await receive(consumer, 1)] == [b"before"]
        assert (first.connections > 0, second.connections) == (True, 0)
        first.refuse = True
        first.reset()
        with pytest.raises(BrokerUnavailable):
            await consumer.receive(1, 5.0)  # lost, once
        arrived = await receive(consumer, 1)
        assert [(delivery.packet.body, delivery.attempt) for delivery in arrived] == [(b"before", 2)]
        assert second.connections > 0
        await consumer.ack(arrived)
        await under_test.publish(b"after")
        assert [delivery.packet.body for delivery in await receive(consumer, 1)] == [b"after"]
        await under_test.close()


async def test_a_login_that_is_refused_is_not_tried_on_the_other_hosts(rabbitmq_url: str) -> None:
    hosts = f"{Address(rabbitmq_url).netloc},127.0.0.1:{free_port()}"
    with pytest.raises(ConfigurationError, match="refused the user or the password"):
        await RabbitMQConnection.open(endpoint_at(f"amqp://guest:wrong@{hosts}/"), "test")


# -- a server that is short of memory


@pytest.fixture
def alarm(own: OwnServer) -> Iterator[RabbitMQ]:
    yield own.server
    own.server.clear_alarm()


@pytest.mark.long
async def test_f80_publishing_stops_while_the_server_is_short_of_memory_and_goes_on_afterwards(
    own: OwnServer, alarm: RabbitMQ, unique_name: str
) -> None:
    with FaultProxy(own.server.port) as proxy:
        url = proxy.through(own.server.url)
        under_test = QueueUnderTest(RabbitMQBackend(Address(f"{url}?timeout=2s&blocked_timeout=500ms")), unique_name)
        consumer = await under_test.consumer()
        await under_test.publish(b"before")
        await asyncio.to_thread(alarm.raise_alarm)
        connections = proxy.connections
        with pytest.raises(BrokerUnavailable, match=r"takes no messages now \(low on memory\)"):
            await under_test.publish(b"1")  # this one is how the server comes to say that it blocks us
        sent = proxy.requests
        for _ in range(5):
            with pytest.raises(BrokerUnavailable, match="low on memory"):
                await under_test.publish(b"2")
        assert proxy.requests == sent  # nothing was sent again into it
        assert proxy.connections == connections
        assert [delivery.packet.body for delivery in await receive(consumer, 1)] == [b"before"]
        await asyncio.to_thread(alarm.clear_alarm)
        for _ in range(100):
            try:
                await under_test.publish(b"3")
                break
            except BrokerUnavailable:
                await asyncio.sleep(0.05)
        # The first is there once: it was read when the server went on. The others were never sent.
        assert [delivery.packet.body for delivery in await receive(consumer, 2)] == [b"1", b"3"]
        await under_test.close()


@pytest.mark.long
async def test_f80_a_short_block_is_waited_for(own: OwnServer, alarm: RabbitMQ, unique_name: str) -> None:
    url = f"{own.server.url}?timeout=100ms&connection_timeout=10s&blocked_timeout=1m"
    backend = RabbitMQBackend(Address(own.server.url))
    await backend.declare(unique_name, group="g")
    publisher = RabbitMQBackend(Address(url)).publisher()
    await asyncio.to_thread(alarm.raise_alarm)
    publishing = asyncio.create_task(publisher.publish(unique_name, [Packet(body=b"1", id="1")]))
    await asyncio.sleep(0.5)  # longer than the timeout of a reply
    assert not publishing.done()
    await asyncio.to_thread(alarm.clear_alarm)
    assert await asyncio.wait_for(publishing, 30) == [None]
    await publisher.close()
