"""libpq's forms of URLs, and SQLAlchemy's, on a real server; passwords that a function returns."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from pathlib import Path
from urllib.parse import quote, urlsplit

import psycopg
import pytest

import effectonce as eo
from effectonce.errors import InvalidOption, StoreUnavailable
from tests.harness import installed, servers
from tests.harness.process import free_port

PASSWORD = "correct horse"


@pytest.fixture(scope="module")
def server() -> Iterator[servers.Postgres]:
    """A server with a role ``shop`` that has a password."""
    from tests.conftest import skip_or_fail

    try:
        server = servers.postgres(password_encryption="scram-sha-256")
    except installed.Missing as missing:
        skip_or_fail(str(missing))
    with server:
        rules = server.dir / "data" / "pg_hba.conf"
        rules.write_text("local all shop scram-sha-256\nhost all shop all scram-sha-256\n" + rules.read_text())
        with psycopg.connect(server.url, autocommit=True) as admin:
            admin.execute(f"CREATE ROLE shop LOGIN PASSWORD '{PASSWORD}'".encode())
            admin.execute("SELECT pg_reload_conf()")
        yield server


def ask(url: str, password: Callable[[], str] | None = None) -> int:
    """Ask for the time, in sync and in async code."""

    async def ask_async() -> int:
        port = eo.connect(url, password=password).runtime.backend.async_port()
        try:
            return await port.now()
        finally:
            await port.close()

    with eo.connect(url, password=password) as store:
        return min(store.now(), asyncio.run(ask_async()))


def test_hosts_are_tried_one_after_the_other(server: servers.Postgres) -> None:
    dead = free_port()
    assert ask(f"postgresql://postgres@127.0.0.1:{dead},127.0.0.1:{server.port}/postgres?load_balance_hosts=disable")
    assert ask(f"postgresql:///postgres?host=127.0.0.1,127.0.0.1&port={dead},{server.port}&user=postgres")
    assert ask(f"postgresql+psycopg2://postgres@/postgres?host=127.0.0.1:{dead}&host=127.0.0.1:{server.port}")
    with pytest.raises(StoreUnavailable, match="cannot connect"):
        ask(f"postgresql://postgres@127.0.0.1:{dead},127.0.0.1:{free_port()}/postgres")


def test_the_primary_is_found_among_the_hosts(server: servers.Postgres) -> None:
    assert ask(f"postgresql://postgres@127.0.0.1:{server.port}/postgres?target_session_attrs=read-write")
    with pytest.raises(StoreUnavailable, match=r"session is not read-only|not in hot standby"):
        ask(f"postgresql://postgres@127.0.0.1:{server.port}/postgres?target_session_attrs=standby")


def test_a_socket_is_a_host(server: servers.Postgres) -> None:
    folder = quote(str(server.dir), safe="")
    assert ask(f"postgresql://postgres@{folder}:{server.port}/postgres")
    assert ask(f"postgresql://postgres@/postgres?host={folder}&port={server.port}")


def test_timeouts_of_the_network_are_libpqs(server: servers.Postgres) -> None:
    assert ask(
        f"{server.url}?keepalives=1&keepalives_idle=30&keepalives_interval=5&keepalives_count=3&tcp_user_timeout=9000"
    )
    with pytest.raises(StoreUnavailable, match="keepalives_idle"):
        ask(f"{server.url}?keepalives_idle=soon")


def test_a_service_and_a_password_file_are_found(server: servers.Postgres, tmp_path: Path, monkeypatch: object) -> None:
    services, passwords = tmp_path / "pg_service.conf", tmp_path / "pgpass"
    services.write_text(f"[shop]\nhost=127.0.0.1\nport={server.port}\nuser=shop\ndbname=postgres\n")
    passwords.write_text(f"127.0.0.1:{server.port}:*:shop:{PASSWORD}\n")
    passwords.chmod(0o600)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PGSERVICEFILE", str(services))
        assert ask(f"postgresql:///?service=shop&passfile={passwords}")


def test_the_way_of_logging_in_can_be_required(server: servers.Postgres) -> None:
    url = f"postgresql://shop:{quote(PASSWORD)}@127.0.0.1:{server.port}/postgres"
    assert ask(f"{url}?require_auth=scram-sha-256")
    with pytest.raises(StoreUnavailable, match=r"require_auth|authentication method requirement"):
        ask(f"{url}?require_auth=md5")


def test_an_unknown_option_is_refused_and_named() -> None:
    with pytest.raises(InvalidOption, match="no option keepalive;"):
        eo.connect("postgresql://h/db?keepalive=1")


@pytest.mark.parametrize("driver", ["asyncpg", "psycopg", "psycopg2", "psycopg_async", "pg8000"])
def test_a_url_of_sqlalchemy_is_understood(server: servers.Postgres, driver: str) -> None:
    assert ask(server.url.replace("postgresql:", f"postgresql+{driver}:"))


def test_sqlalchemy_makes_the_urls_that_we_read(server: servers.Postgres) -> None:
    from sqlalchemy.engine import make_url

    parts = urlsplit(server.url)
    made = make_url("postgresql+asyncpg://").set(
        username="shop", password="a:b/c@d", host="127.0.0.1", port=parts.port, database="postgres"
    )
    with psycopg.connect(server.url, autocommit=True) as admin:
        admin.execute(b"ALTER ROLE shop PASSWORD 'a:b/c@d'")
        try:
            assert ask(made.render_as_string(hide_password=False))
        finally:
            admin.execute(f"ALTER ROLE shop PASSWORD '{PASSWORD}'".encode())


# -- a function for the password


def test_a_function_returns_the_password_of_each_new_connection(server: servers.Postgres) -> None:
    calls: list[str] = []

    def token() -> str:
        calls.append("")
        return PASSWORD

    assert ask(f"postgresql://shop@127.0.0.1:{server.port}/postgres", token)
    assert len(calls) == 2  # one connection for sync code, one for async code


def test_f66_a_function_that_fails_is_an_outage_and_its_message_is_not_shown(server: servers.Postgres) -> None:
    def token() -> str:
        raise RuntimeError("canary")

    with pytest.raises(StoreUnavailable, match="RuntimeError") as caught:
        ask(f"postgresql://shop@127.0.0.1:{server.port}/postgres", token)
    assert "canary" not in str(caught.value)


def test_a_store_that_takes_no_function_says_so() -> None:
    with pytest.raises(InvalidOption, match="no function for its password"):
        eo.connect("memory://", password=lambda: "x")
    with pytest.raises(InvalidOption, match="no function for its password"):
        eo.connect_broker("sqlite:///queue.db", password=lambda: "x")
