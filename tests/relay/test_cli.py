"""`effectonce relay` and `effectonce outbox`, as people run them."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any, NamedTuple

import pytest

import effectonce as eo
from effectonce.cli import main
from tests.relay.harness import Database, message
from tests.relay.test_processes import downstream


class Done(NamedTuple):
    returncode: int
    stdout: str
    stderr: str


Run = Callable[..., Done]


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Run:
    """The command in this process; `test_processes` runs it in one of its own."""

    def run(*arguments: str, **extra: str) -> Done:
        for name, value in extra.items():
            monkeypatch.setenv(name, value)
        code = main(arguments)
        return Done(code, *capsys.readouterr())

    return run


@pytest.fixture
def queue(tmp_path: Any) -> str:
    return f"sqlite:///{tmp_path}/queue.db"


def park(database: Database) -> None:
    """m1 to m3 of one line: the first is parked, the others wait behind it."""
    database.send(*(message(n, "k") for n in (1, 2, 3)))
    database.execute(
        "UPDATE {outbox} SET state = 'parked', attempts = 10, error = 'Refused: \x1b[31mno' WHERE message_id = 'm1'"
    )
    database.execute("UPDATE {outbox} SET state = 'waiting', due_at = 1000000000000000000 WHERE message_id <> 'm1'")


@pytest.fixture
def database(tmp_path: Any) -> Any:
    database = Database("sqlite", f"sqlite:///{tmp_path}/shop.db", "effectonce")
    with eo.connect(database.url) as store:
        store.migrate()
    yield database
    database.close()


def test_once_sends_what_is_due_and_says_how_much(run: Run, database: Database, queue: str) -> None:
    database.send_numbers(range(1500), key=lambda n: f"k{n % 10}")
    done = run("relay", "--store", database.url, "--broker", queue, "--once")
    assert (done.returncode, done.stderr) == (0, "")
    first, last = done.stdout.splitlines()
    assert first.startswith(f"[relay] from {database.url} to {queue}, in order of their keys")
    assert last.startswith("[relay] 1,500 published (")
    assert last.endswith("/s), 0 refused, 0 parked")
    assert [packet.id for packet in downstream(queue, "orders")] == [f"m{n}" for n in range(1500)]


def test_for_programs_there_is_json(run: Run, database: Database, queue: str) -> None:
    database.send_numbers(range(3))
    options = ("--once", "--json", "--order", "none", "--keep", "0")
    done = run("relay", *options, EFFECTONCE_STORE=database.url, EFFECTONCE_BROKER=queue)
    first, last = map(json.loads, done.stdout.splitlines())
    assert first == {"event": "started"}
    assert (last["event"], last["published"], last["refused"], last["parked"]) == ("ended", 3, 0, 0)
    assert database.states() == {}


def test_a_message_that_fails_is_a_line(run: Run, database: Database, queue: str) -> None:
    database.send(message(1))
    database.execute("UPDATE {outbox} SET payload = ?, attempts = 9", b"{")
    done = run("relay", "--store", database.url, "--broker", queue, "--once")
    assert done.returncode == 0
    assert "[relay] m1 to orders was parked (attempt 10): " in done.stdout
    assert "0 published (0/s), 1 refused, 1 parked" in done.stdout


@pytest.mark.parametrize(
    ("arguments", "code", "says"),
    [
        (["--store", "memory://", "--broker", "memory://"], "configuration", "cannot hold an outbox"),
        (["--store", "sqlite:///x.db", "--broker", "carrier-pigeon://"], "unknown-scheme", "there is no broker for"),
        (
            ["--store", "sqlite:///{0}/x.db", "--broker", "memory://", "--order", "queue"],
            "invalid-option",
            "key or none",
        ),
        (["--store", "sqlite:///{0}/x.db", "--broker", "memory://", "--batch", "0"], "invalid-option", "batch=0"),
        (
            ["--store", "postgresql://u:canary-secret@127.0.0.1:1/x", "--broker", "memory://"],
            "store-unavailable",
            "u:***@",
        ),
    ],
)
def test_what_cannot_work_is_one_line(run: Run, tmp_path: Any, arguments: list[str], code: str, says: str) -> None:
    done = run("relay", "--once", *(argument.replace("{0}", str(tmp_path)) for argument in arguments))
    assert done.returncode == 2
    assert done.stderr.startswith(f"effectonce: [{code}] ")
    assert done.stderr.count("\n") == 1
    assert says in done.stderr
    assert "canary-secret" not in done.stdout + done.stderr


def test_people_see_what_waits_and_what_was_parked(run: Run, database: Database) -> None:
    park(database)
    stats = run("outbox", "stats", "--store", database.url)
    assert [line.split()[:2] for line in stats.stdout.splitlines()[:4]] == [
        ["pending", "0"],
        ["waiting", "2"],
        ["parked", "1"],
        ["published", "0"],
    ]
    assert json.loads(run("outbox", "stats", "--store", database.url, "--json").stdout)["parked"] == 1
    listed = run("outbox", "list", "--store", database.url)
    (row,) = [line for line in listed.stdout.splitlines() if "numbered" in line]
    cells = re.split(r"  +", row)
    assert cells[:6] == ["1", "numbered", "m1", "orders", "k", "10"]
    assert cells[-1] == "Refused: \\x1b[31mno"
    waiting = json.loads(run("outbox", "list", "--store", database.url, "--state", "waiting", "--json").stdout)[
        "messages"
    ]
    assert [each["id"] for each in waiting] == ["m2", "m3"]
    assert datetime.fromisoformat(waiting[0]["created_at"]).tzinfo == UTC
    assert waiting[0]["due_at"] is None, "not before an operator decides"


def test_people_free_or_discard_what_was_parked(run: Run, database: Database, queue: str) -> None:
    park(database)
    for wrong in (["unpark"], ["unpark", "1", "--all"], ["discard"]):
        done = run("outbox", *wrong, "--store", database.url)
        assert (done.returncode, done.stderr.split()[1]) == (2, "[invalid-option]")
    assert run("outbox", "unpark", "1", "--store", database.url).stdout == "1 unparked\n"
    assert run("outbox", "unpark", "--store", database.url, "--all", "--json").stdout == '{"unparked":0}\n'
    database.execute("UPDATE {outbox} SET state = 'parked' WHERE message_id = 'm1'")
    assert run("outbox", "discard", "--store", database.url, "1", "--yes").stdout == "1 discarded\n"
    assert run("relay", "--store", database.url, "--broker", queue, "--once").returncode == 0
    assert [packet.id for packet in downstream(queue, "orders")] == ["m2", "m3"]


@pytest.mark.parametrize("server", ["sqlite", "postgres_url", "mariadb_url"])
def test_migrate_makes_all_tables_and_prints_them(
    run: Run, request: pytest.FixtureRequest, tmp_path: Any, unique_name: str, server: str
) -> None:
    base = f"sqlite:///{tmp_path}/new.db" if server == "sqlite" else request.getfixturevalue(server)
    url = f"{base}{'&' if '?' in base else '?'}prefix={unique_name}"
    printed = run("migrate", "--store", url, "--sql").stdout
    for table in ("records", "meta", "inbox", "outbox"):
        assert f"{unique_name}_{table}" in printed
    assert run("migrate", "--store", url).returncode == 0
    assert run("migrate", "--store", url).returncode == 0, "twice"
    assert json.loads(run("outbox", "stats", "--store", url, "--json").stdout)["pending"] == 0
