"""What a URL of RabbitMQ says, and what holds where it says nothing."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from effectonce.backends.rabbitmq.endpoint import Host, RabbitMQEndpoint
from effectonce.errors import BrokerUnavailable, InvalidOption
from effectonce.values.urls import Address


def endpoint(url: str, password: Callable[[], str] | None = None) -> RabbitMQEndpoint:
    address = Address(url)
    address.password_provider = password
    return RabbitMQEndpoint(address)


async def test_a_bare_url_is_the_guest_on_this_machine() -> None:
    bare = endpoint("amqp://")
    assert (bare.hosts, bare.vhost) == ((Host("localhost", 5672),), "/")
    assert (bare.user, await bare.read_password()) == ("guest", "guest")
    assert (bare.timeout, bare.heartbeat, bare.tls) == (10.0, 30, None)
    assert (bare.connection_timeout, bare.blocked_timeout) == (10.0, 10.0)
    assert (bare.frame_max, bare.channel_max, bare.name, bare.mechanism) == (0, 0, "effectonce", "")


async def test_a_url_says_where_the_server_is_and_who_asks() -> None:
    full = endpoint("amqp://shop:s%2Fcret@broker.example:5999/orders?timeout=3s&heartbeat=60s&name=billing")
    assert (full.hosts, full.vhost) == ((Host("broker.example", 5999),), "orders")
    assert (full.user, await full.read_password()) == ("shop", "s/cret")
    assert (full.timeout, full.heartbeat, full.name) == (3.0, 60, "billing")
    assert (full.connection_timeout, full.blocked_timeout) == (3.0, 3.0)


def test_tls_has_a_port_of_its_own() -> None:
    secure = endpoint("amqps://broker.example")
    assert (secure.hosts[0].port, secure.tls is not None) == (5671, True)


def test_a_cluster_has_several_hosts_and_that_which_answered_is_tried_first() -> None:
    cluster = endpoint("amqp://shop@a,b:5673,[::1]:5674/orders")
    assert [str(host) for host in cluster.hosts] == ["a:5672", "b:5673", "[::1]:5674"]
    cluster.prefer(Host("b", 5673))
    assert [host.host for host in cluster.hosts] == ["b", "a", "::1"]


async def test_a_user_without_a_password_has_none_and_not_the_guests() -> None:
    assert (endpoint("amqp://shop@h").user, await endpoint("amqp://shop@h").read_password()) == ("shop", "")


async def test_a_password_alone_is_not_replaced_by_the_guests() -> None:
    assert await endpoint("amqp://:secret@h").read_password() == "secret"


async def test_a_password_may_come_from_a_function_and_its_failure_keeps_the_secret() -> None:
    tokens = iter(["first", "second"])
    renewed = endpoint("amqp://shop@h", lambda: next(tokens))
    assert [await renewed.read_password(), await renewed.read_password()] == ["first", "second"]

    def fail() -> str:
        raise KeyError("canary")

    with pytest.raises(BrokerUnavailable, match=r"failed \(KeyError\)") as caught:
        await endpoint("amqp://shop@h", fail).read_password()
    assert "canary" not in str(caught.value)


@pytest.mark.parametrize(
    ("option", "name", "value"),
    [
        ("heartbeat=0", "heartbeat", 0),
        ("heartbeat=1", "heartbeat", 1),
        ("heartbeat=600s", "heartbeat", 600),
        ("frame_max=8192", "frame_max", 8192),
        ("frame_max=2147483647", "frame_max", 2**31 - 1),
        ("channel_max=2", "channel_max", 2),
        ("channel_max=65535", "channel_max", 65_535),
        ("connection_timeout=60000", "connection_timeout", 60.0),  # RabbitMQ's own URLs have milliseconds
        ("connection_timeout=5s", "connection_timeout", 5.0),
        ("blocked_timeout=0", "blocked_timeout", 0.0),
        ("blocked_timeout=30", "blocked_timeout", 30.0),
        ("blocked_timeout=1m", "blocked_timeout", 60.0),
        ("auth_mechanism=external", "mechanism", "EXTERNAL"),
    ],
)
def test_an_option_is_taken_as_it_is_written(option: str, name: str, value: object) -> None:
    assert getattr(endpoint(f"amqp://?{option}"), name) == value


@pytest.mark.parametrize(
    "option",
    [
        "heartbeat=601",
        "heartbeat=-1",
        "frame_max=8191",
        "frame_max=2147483648",
        "channel_max=1",
        "channel_max=65536",
        "connection_timeout=5",
        "blocked_timeout=-1",
        "auth_mechanism=GSSAPI",
    ],
)
def test_a_value_out_of_range_is_refused(option: str) -> None:
    with pytest.raises(InvalidOption, match=option.partition("=")[0]):
        endpoint(f"amqp://?{option}")


def test_a_printed_endpoint_has_no_password() -> None:
    assert "secret" not in repr(endpoint("amqp://shop:secret@h"))
