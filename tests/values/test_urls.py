"""URLs of stores and brokers, and SQLAlchemy's."""

from __future__ import annotations

import pytest

from effectonce.errors import InvalidOption
from effectonce.values.sqlalchemy_urls import translate
from effectonce.values.urls import Address, HostPort


def test_a_url_may_have_several_hosts() -> None:
    address = Address("amqp://u:p@h1:5672,h2,[::1]:5673/vhost")
    assert address.hosts == [HostPort("h1", 5672), HostPort("h2", None), HostPort("::1", 5673)]
    with pytest.raises(InvalidOption, match="takes one host"):
        _ = address.host


def test_a_url_with_one_host_says_which() -> None:
    assert (Address("redis://h:7/0").host, Address("redis://h:7/0").port) == ("h", 7)
    assert (Address("redis:///0").host, Address("redis:///0").port) == ("", None)


@pytest.mark.parametrize("url", ["redis://h:port/0", "redis://h1,h2:port/0", "redis://h:99999/0", "redis://[::1/0"])
def test_hosts_that_cannot_be_read_are_refused_without_showing_the_url(url: str) -> None:
    with pytest.raises(InvalidOption, match="cannot be parsed"):
        Address(url)


def test_a_function_for_the_password_is_taken_or_refused() -> None:
    address = Address("kafka://h")
    address.password_provider = str
    with pytest.raises(InvalidOption, match="no function for its password"):
        address.refuse_unknown_options()
    assert address.take_password_provider() is str
    address.refuse_unknown_options()


def test_f66_a_password_beside_a_function_for_it_is_refused_and_not_shown() -> None:
    address = Address("postgresql://u:canary@h")
    address.password_provider = str
    with pytest.raises(InvalidOption, match="leave one of them out") as caught:
        address.take_password_provider()
    assert "canary" not in str(caught.value)


@pytest.mark.parametrize(
    ("theirs", "ours"),
    [
        ("postgresql+asyncpg://u:p%40@h:5/db", "postgresql://u:p%40@h:5/db"),
        ("postgresql+asyncpg://h/db?ssl=require&command_timeout=7", "postgresql://h/db?sslmode=require&timeout=7"),
        ("postgresql+asyncpg://h/db?prepared_statement_cache_size=0", "postgresql://h/db"),
        ("postgresql+psycopg2://u@/db?host=h1:1&host=h2:2", "postgresql://u@/db?host=h1%2Ch2&port=1%2C2"),
        ("postgresql+psycopg2://u@/db?host=h1&host=h2", "postgresql://u@/db?host=h1%2Ch2"),
        ("postgresql+psycopg://u@/db?host=/run&sslmode=require", "postgresql://u@/db?host=%2Frun&sslmode=require"),
        ("postgresql+psycopg://u@/db?host=h1,h2&port=1,2", "postgresql://u@/db?host=h1%2Ch2&port=1%2C2"),
        ("mysql+pymysql://u@h/db?charset=utf8mb4&ssl_ca=/ca", "mysql://u@h/db?tls=yes&ca_file=%2Fca"),
        ("mysql+pymysql://u@h/db?ssl_ca=/a&ssl_check_hostname=0", "mysql://u@h/db?tls=yes&ca_file=%2Fa&verify=ca"),
        ("mysql+aiomysql://u@h/db?unix_socket=/s", "mysql://u@h/db?socket=%2Fs"),
        ("mariadb+mysqldb://u@h/db?ssl_mode=REQUIRED", "mariadb://u@h/db?tls=yes&verify=no"),
        ("mysql+pymysql://u@h/db?ssl_disabled=true", "mysql://u@h/db?tls=no"),
        ("mysql+pymysql://u@h/db?ssl_key=/k&ssl_cert=/c", "mysql://u@h/db?tls=yes&key_file=%2Fk&cert_file=%2Fc"),
        ("sqlite+aiosqlite:////tmp/shop.db", "sqlite:////tmp/shop.db"),
    ],
)
def test_a_url_of_sqlalchemy_keeps_its_meaning(theirs: str, ours: str) -> None:
    assert translate(theirs) == ours


@pytest.mark.parametrize("url", ["redis+cluster://h", "postgresql://h/db?ssl=x", "postgresql+odbc://h", "shop.db", ""])
def test_any_other_url_stays_as_it_is(url: str) -> None:
    assert translate(url) == url


@pytest.mark.parametrize(
    ("written", "seconds"), [("5", 5.0), ("0.25", 0.25), ("500ms", 0.5), ("2m", 120.0), ("1us", 1e-6)]
)
def test_a_duration_without_a_unit_is_in_seconds(written: str, seconds: float) -> None:
    assert Address(f"redis://h?timeout={written}").seconds("timeout", 9.0) == seconds
    assert Address("redis://h").seconds("timeout", 9.0) == 9.0


@pytest.mark.parametrize("written", ["0", "-1", "soon", "nan", "inf"])
def test_what_is_no_duration_is_refused_with_the_name_of_its_option(written: str) -> None:
    with pytest.raises(InvalidOption, match=r"option timeout of redis://h.* has a bad value"):
        Address(f"redis://h?timeout={written}").seconds("timeout", 9.0)


def test_options_that_nobody_has_taken_are_refused_with_those_that_there_are() -> None:
    address = Address("redis://h?db=1&colour=blue")
    assert address.take("db", int, 0) == 1
    with pytest.raises(InvalidOption, match=r"colour.*its options are.*db"):
        address.refuse_unknown_options()
    known = Address("redis://h?db=1")
    known.take("db", int, 0)
    known.refuse_unknown_options()


def test_a_user_that_is_a_token_is_shown_no_more_than_a_password() -> None:
    address = Address("nats://t0ken@h:4222/x?timeout=5s")
    assert str(address) == "nats://t0ken@h:4222/x?timeout=5s"
    address.hide_user()
    assert str(address) == "nats://***@h:4222/x?timeout=5s"
    assert "t0ken" not in repr(address)
