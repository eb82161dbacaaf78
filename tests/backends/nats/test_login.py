"""NATS: logins by key, prefixes of inboxes, domains of JetStream and the monitoring address, on servers of our own."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import nkeys
import pytest

from effectonce.backends.nats.broker import NatsBackend
from effectonce.contracts import Packet
from effectonce.errors import BrokerUnavailable, ConfigurationError, InvalidOption
from effectonce.values.urls import Address
from tests import conftest
from tests.backends.queue_under_test import receive
from tests.harness import installed
from tests.harness.nats import Nats
from tests.harness.nats import nats as start_nats
from tests.harness.process import free_port

CREDENTIALS = b"-----BEGIN NATS USER JWT-----\nx\n-----BEGIN USER NKEY SEED-----\nx\n"
Start = Callable[..., Nats]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Start a server with a configuration."""
    running: list[Nats] = []

    def start(config: str, *options: str) -> Nats:
        file = tmp_path / "server.conf"
        file.write_text(config)
        try:
            running.append(start_nats("-c", str(file), *options))
        except installed.Missing as missing:
            conftest.skip_or_fail(str(missing))
        return running[-1]

    yield start
    for server in running:
        server.close()


def backend_at(server: Nats, query: str = "", user: str = "") -> NatsBackend:
    return NatsBackend(Address(f"nats://{user}127.0.0.1:{server.port}?{query}"))


async def assert_delivers(backend: NatsBackend) -> None:
    """Send a message through the whole way: declare, publish, receive, ack."""
    await backend.declare("orders", group="g")
    publisher, consumer = backend.publisher(), backend.consumer("orders", group="g", prefetch=1)
    try:
        assert await publisher.publish("orders", [Packet(body=b"x", id="1")]) == [None]
        (delivery,) = await receive(consumer, 1)
        assert delivery.packet.body == b"x"
        assert await consumer.ack([delivery]) == [True]
    finally:
        await consumer.close()
        await publisher.close()


def new_seed() -> tuple[bytes, str]:
    """The seed of a new user key, and its public half."""
    raw = nkeys.encode_seed(bytes(range(32)), nkeys.PREFIX_BYTE_USER)
    return bytes(raw), nkeys.from_seed(bytearray(raw)).public_key.decode()


async def test_an_nkey_logs_in(start: Start, tmp_path: Path) -> None:
    seed, public = new_seed()
    (tmp_path / "shop.nk").write_bytes(seed)
    server = start(f"authorization {{ users = [ {{ nkey: {public} }} ] }}")
    await assert_delivers(backend_at(server, f"nkey_file={tmp_path}/shop.nk"))
    with pytest.raises(ConfigurationError, match="refused the user"):
        await backend_at(server).declare("orders", group="g")


@pytest.mark.parametrize("option", ["nkey_file", "credentials"])
def test_a_file_that_holds_no_key_is_refused(tmp_path: Path, option: str) -> None:
    with pytest.raises(InvalidOption, match="cannot be read"):
        NatsBackend(Address(f"nats://h?{option}={tmp_path}/none"))
    (tmp_path / "good").write_bytes(new_seed()[0] if option == "nkey_file" else CREDENTIALS)
    NatsBackend(Address(f"nats://token@h?{option}={tmp_path}/good"))
    (tmp_path / "text").write_bytes(b"not a key")
    with pytest.raises(InvalidOption, match="does not hold"):
        NatsBackend(Address(f"nats://h?{option}={tmp_path}/text"))


def test_credentials_and_a_key_exclude_each_other() -> None:
    with pytest.raises(InvalidOption, match="leave one of them out"):
        NatsBackend(Address("nats://h?credentials=/a&nkey_file=/b"))


async def test_replies_go_to_the_prefix_that_the_user_may_subscribe_to(start: Start) -> None:
    server = start(
        """authorization { users = [ { user: shop, password: open,
        permissions: { publish: ">", subscribe: ["shop.inbox.>"] } } ] }"""
    )
    await assert_delivers(backend_at(server, "inbox_prefix=shop.inbox", "shop:open@"))
    with pytest.raises(ConfigurationError, match="does not let this user"):
        await backend_at(server, "timeout=2s", "shop:open@").declare("orders", group="g")


async def test_a_domain_names_the_jetstream_that_answers(start: Start) -> None:
    server = start("jetstream { domain: hub }")
    await assert_delivers(backend_at(server, "domain=hub"))
    with pytest.raises(ConfigurationError, match="has no JetStream"):
        await backend_at(server, "domain=leaf").declare("orders", group="g")


@pytest.mark.parametrize("option", ["domain=a*", "domain=a..b", "inbox_prefix=>", "monitoring=ftp://h"])
def test_f61_an_option_that_would_be_another_subject_is_refused(option: str) -> None:
    with pytest.raises(InvalidOption, match="bad value"):
        NatsBackend(Address(f"nats://h?{option}"))


@pytest.mark.parametrize(("setting", "interval"), [("", 120.0), ("sync_interval: 5s", 5.0), ("sync: always", 0.0)])
async def test_the_server_says_how_often_it_writes_to_disk(start: Start, setting: str, interval: float) -> None:
    monitoring = free_port()
    server = start(f"jetstream {{ {setting} }}\nhttp: 127.0.0.1:{monitoring}")
    assert await backend_at(server, f"monitoring=http://127.0.0.1:{monitoring}").sync_interval() == interval
    assert await backend_at(server).sync_interval() is None


async def test_a_monitoring_address_that_is_none_is_an_outage() -> None:
    backend = NatsBackend(Address(f"nats://h?monitoring=http://127.0.0.1:{free_port()}"))
    with pytest.raises(BrokerUnavailable, match="monitoring"):
        await backend.sync_interval()


async def test_a_password_is_not_sent_to_a_server_without_tls(start: Start) -> None:
    """An attacker between us and the server could leave out that it wants TLS, and read the password."""
    server = start("authorization { user: shop, password: open }")
    with pytest.raises(ConfigurationError, match="does not ask for TLS"):
        await backend_at(server, "tls=yes", "shop:open@").declare("orders", group="g")
    backend: Any = backend_at(server, "", "shop:open@")
    await assert_delivers(backend)
