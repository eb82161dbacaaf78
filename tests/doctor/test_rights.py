"""A user who may read but not write is reported at the start, not at the first claim, and without writing anything."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.resources import files
from pathlib import Path
from urllib.parse import urlsplit

import psycopg
import pytest

import effectonce as eo
from effectonce.doctor import DoctorFinding
from effectonce.relay.relay import ask_outbox
from tests.harness import servers

from .conftest import StoreOpener, findings_by_code, make_done_records
from .test_servers import admin

SECRET = "s3cret-canary"


def refusal_of(store: eo.Store) -> DoctorFinding:
    """Return the only finding; `check`, with which workers start, raises the same."""
    findings = findings_by_code(store)
    assert list(findings) == ["configuration"]
    assert SECRET not in repr(findings)
    with pytest.raises(eo.ConfigurationError) as raised:
        store.check()
    assert str(raised.value) == findings["configuration"].what
    return findings["configuration"]


# -- PostgreSQL


@contextmanager
def postgres_user(url: str, name: str, *statements: str) -> Iterator[str]:
    """Yield the URL for a user of its own, for whom ``statements`` were run."""
    with psycopg.connect(url, autocommit=True) as admin:
        admin.execute(f"CREATE ROLE {name} LOGIN PASSWORD '{SECRET}'")
        for statement in statements:
            admin.execute(statement.encode())
        try:
            yield re.sub("//[^@/]*@|//", f"//{name}:{SECRET}@", url, count=1)
        finally:
            admin.execute(f"DROP OWNED BY {name}; DROP ROLE {name}")


def test_a_postgres_user_who_may_only_read(postgres_url: str, unique_name: str, open_store: StoreOpener) -> None:
    owner = open_store(postgres_url, prefix=unique_name)
    owner.migrate()
    make_done_records(owner, "a")
    tables = f'"{unique_name}_records", "{unique_name}_meta"'
    with postgres_user(postgres_url, unique_name, f"GRANT SELECT ON {tables} TO {unique_name}") as url:
        reader = open_store(url, prefix=unique_name)
        finding = refusal_of(reader)
        for word in ("INSERT", "UPDATE", "DELETE"):
            assert f'{word} on "{unique_name}_records"' in finding.what
        assert finding.run.startswith("GRANT SELECT, INSERT, UPDATE, DELETE")
        with psycopg.connect(postgres_url, autocommit=True) as admin:
            admin.execute(f"GRANT INSERT, UPDATE, DELETE ON {tables} TO {unique_name}".encode())
        assert findings_by_code(reader) == {}, "what it names is enough"
        make_done_records(reader, "b")
        reader.purge()
        reader.close()


def test_a_postgres_whose_transactions_are_read_only(
    postgres_url: str, unique_name: str, open_store: StoreOpener
) -> None:
    owner = open_store(postgres_url, prefix=unique_name)
    owner.migrate()
    with postgres_user(
        postgres_url,
        unique_name,
        f'GRANT ALL ON "{unique_name}_records", "{unique_name}_meta" TO {unique_name}',
        f"ALTER ROLE {unique_name} SET default_transaction_read_only = on",
    ) as url:
        store = open_store(url, prefix=unique_name)
        assert "default_transaction_read_only = off" in refusal_of(store).run
        store.close()


def test_a_relay_that_may_not_write(postgres_url: str, unique_name: str, open_store: StoreOpener) -> None:
    owner = open_store(postgres_url, prefix=unique_name)
    owner.migrate()
    readable = f'"{unique_name}_outbox", "{unique_name}_meta"'
    with postgres_user(postgres_url, unique_name, f"GRANT SELECT ON {readable} TO {unique_name}") as url:
        store = open_store(url, prefix=unique_name)
        with pytest.raises(eo.ConfigurationError, match=rf'UPDATE on "{unique_name}_outbox".*GRANT'):
            ask_outbox(store, None, lambda port: port.check())
        store.close()


# -- MariaDB


@pytest.mark.parametrize(
    ("grants", "lacks"),
    [("SELECT", "INSERT"), ("SELECT, INSERT", "UPDATE"), ("SELECT, INSERT, UPDATE", "DELETE")],
)
def test_a_mariadb_user_who_may_not_write(
    mariadb_url: str, unique_name: str, open_store: StoreOpener, grants: str, lacks: str
) -> None:
    owner = open_store(mariadb_url, prefix=unique_name)
    owner.migrate()
    user = f"{unique_name}@'127.0.0.1'"
    with admin(mariadb_url) as cursor:
        cursor.execute(f"CREATE USER {user} IDENTIFIED BY '{SECRET}'")
        cursor.execute(f"GRANT {grants} ON {urlsplit(mariadb_url).path[1:]}.* TO {user}")
        reader = open_store(re.sub("//[^@]*@", f"//{unique_name}:{SECRET}@", mariadb_url), prefix=unique_name)
        try:
            finding = refusal_of(reader)
            assert f"{lacks} command denied" in finding.what
            assert "GRANT SELECT, INSERT, UPDATE, DELETE" in finding.run
            if lacks != "DELETE":
                with pytest.raises(eo.ConfigurationError, match=r"command denied .*GRANT"):
                    ask_outbox(reader, None, lambda port: port.check())
        finally:
            reader.close()
            cursor.execute(f"DROP USER {user}")
    assert owner.stats().counts.get("done", 0) == 0


# -- Redis


@pytest.mark.parametrize(
    ("rules", "lacks"),
    [
        ("+@read +@connection +time +info +config|get", "eval"),
        ("+@read +@scripting +@pubsub +@connection +time +info +config|get", "HSET"),
        ("+@all -zadd", "ZADD"),
        ("+@all -pexpireat", "PEXPIREAT"),
        ("resetkeys ~eo:{{{0}}}:* +@all", "/00}:open"),
    ],
)
def test_a_redis_user_who_may_not_write(
    own_redis: servers.Redis, unique_name: str, open_store: StoreOpener, rules: str, lacks: str
) -> None:
    words = rules.format(unique_name).split()
    own_redis.execute("ACL", "SETUSER", unique_name, "on", f">{SECRET}", "~eo:*", "&eo:*", *words)
    store = open_store(own_redis.url.replace("://", f"://{unique_name}:{SECRET}@"), namespace=unique_name)
    finding = refusal_of(store)
    assert lacks in finding.what
    assert "ACL SETUSER" in finding.run


def test_every_command_of_the_scripts_is_checked() -> None:
    folder = files("effectonce.backends.redis")
    source = {name: (folder / name).read_text() for name in ("common.lua", "records.lua", "indexes.lua")}
    used = {word for text in source.values() for word in re.findall(r"call\('([A-Z]+)'", text)}
    checked = re.findall(r"'([A-Z]+)'", source["indexes.lua"].partition("COMMANDS = {")[2].partition("}")[0])
    without_a_record = {"TIME", "SCAN", "PUBLISH", "HSETNX"}  # which `check` itself runs, or which are optional
    assert used - without_a_record == set(checked)


# -- SQLite


READ_ONLY = """
import os, sys
import effectonce as eo

store = eo.connect(sys.argv[1], sweep_every=None)
store.check()  # so that everything is loaded that another user may not be able to read
store.close()
if os.geteuid() == 0:
    os.setgroups([])
    os.setgid(65534)
    os.setuid(65534)
store.check()
"""


@pytest.mark.skipif(not hasattr(os, "geteuid"), reason="there are no such users")
def test_a_sqlite_file_that_may_only_be_read() -> None:
    """As another user, since root may write everything; in a folder of its own, since pytest's are closed to others."""
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o755)
        path = Path(folder, "shop.db")
        with eo.connect(f"sqlite:///{path}") as store:
            make_done_records(store, "a")
        path.chmod(0o444)
        done = subprocess.run(
            [sys.executable, "-c", READ_ONLY, f"sqlite:///{path}"], capture_output=True, text=True, timeout=60
        )
    assert done.returncode == 1
    assert "give this user write access to the file and to its folder" in done.stderr
