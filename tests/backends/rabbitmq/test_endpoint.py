"""What a URL of RabbitMQ says, and what holds where it says nothing."""

from __future__ import annotations

import pytest

from effectonce.backends.rabbitmq.endpoint import RabbitMQEndpoint
from effectonce.errors import InvalidOption
from effectonce.values.urls import Address


def endpoint(url: str) -> RabbitMQEndpoint:
    return RabbitMQEndpoint(Address(url))


def test_a_bare_url_is_the_guest_on_this_machine() -> None:
    bare = endpoint("amqp://")
    assert (bare.host, bare.port, bare.vhost) == ("localhost", 5672, "/")
    assert (bare.user, bare.password) == ("guest", "guest")
    assert (bare.timeout, bare.heartbeat, bare.tls) == (10.0, 30, None)


def test_a_url_says_where_the_server_is_and_who_asks() -> None:
    full = endpoint("amqp://shop:s%2Fcret@broker.example:5999/orders?timeout=3s&heartbeat=60s")
    assert (full.host, full.port, full.vhost) == ("broker.example", 5999, "orders")
    assert (full.user, full.password) == ("shop", "s/cret")
    assert (full.timeout, full.heartbeat) == (3.0, 60)


def test_tls_has_a_port_of_its_own() -> None:
    secure = endpoint("amqps://broker.example")
    assert (secure.port, secure.tls is not None) == (5671, True)


def test_a_user_without_a_password_has_none_and_not_the_guests() -> None:
    assert (endpoint("amqp://shop@h").user, endpoint("amqp://shop@h").password) == ("shop", "")


def test_a_password_alone_is_not_replaced_by_the_guests() -> None:
    assert endpoint("amqp://:secret@h").password == "secret"


@pytest.mark.parametrize(("heartbeat", "valid"), [("0", False), ("1", True), ("600", True), ("601", False)])
def test_a_heartbeat_is_a_second_to_ten_minutes(heartbeat: str, valid: bool) -> None:
    if valid:
        assert endpoint(f"amqp://?heartbeat={heartbeat}").heartbeat == int(heartbeat)
    else:
        with pytest.raises(InvalidOption):
            endpoint(f"amqp://?heartbeat={heartbeat}")


def test_a_printed_endpoint_has_no_password() -> None:
    assert "secret" not in repr(endpoint("amqp://shop:secret@h"))
