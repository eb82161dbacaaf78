"""Ctrl-C, in a real terminal, on every long command: a started step is completed, and the exit code is 130."""

from __future__ import annotations

import json
import re
import sqlite3
import subprocess
import sys
from pathlib import Path

import httpx
import psycopg
import pytest

import effectonce as eo
from effectonce.telemetry.audit_log import AuditLog
from tests.harness.waiting import until

from .test_terminal import CTRL_C, HERE, Open, Terminal, at_terminal, dead_letters, expired, store

__all__ = ["at_terminal", "dead_letters", "expired", "store"]

SHOP = """\
import os, pathlib, time
import effectonce as eo

broker = eo.connect_broker("sqlite:///queue.db")
worker = eo.Worker(broker, store=eo.connect("sqlite:///shop.db?synchronous=normal"), name="billing")
intents = eo.Intents(worker.store, scope="billing")

def note(word):
    with open("notes", "a") as file:
        file.write(word + "\\n")

@worker.handler("orders", concurrency=1)
def charge(message):
    note(f"began {message.id}")
    while not pathlib.Path("go").exists():
        time.sleep(0.01)
    note(f"ended {message.id}")

@intents.operation("stripe", "charge")
def pay(intent):
    if os.environ.get("BEFORE"):
        raise TimeoutError("no answer")
    note(f"sent {intent.key}")
    while not pathlib.Path("go").exists():
        time.sleep(0.01)
    return "ch_1"

saga = eo.Saga("order", worker.store, input=str)

@saga.step()
def ship(order: str) -> None:
    note("began")
    while not pathlib.Path("go").exists():
        time.sleep(0.01)
    note("ended")
"""


@pytest.fixture
def shop(tmp_path: Path) -> Path:
    (tmp_path / "shop.py").write_text(SHOP)
    return tmp_path


def notes(folder: Path) -> list[str]:
    path = folder / "notes"
    return path.read_text().split("\n")[:-1] if path.exists() else []


def test_run_finishes_started_messages_and_leaves_the_rest(shop: Path, at_terminal: Open) -> None:
    """F58"""
    with eo.connect_broker(f"sqlite:///{shop}/queue.db") as broker:
        broker.declare("orders", group="billing")
        broker.publish("orders", [eo.Message(type="paid", data=1, id=f"o{n}") for n in range(3)])
    terminal = at_terminal("run", "shop:worker")
    until(lambda: notes(shop))
    terminal.type(CTRL_C)
    (shop / "go").touch()
    assert terminal.end() == 130
    assert "billing has stopped" in terminal.shown
    assert "Traceback" not in terminal.shown
    lines = notes(shop)
    began, ended = ({word.split()[1] for word in lines if word.startswith(verb)} for verb in ("began", "ended"))
    assert began == ended
    with eo.connect(f"sqlite:///{shop}/shop.db", sweep_every=None) as records:
        assert records.stats().counts.get("claimed", 0) == 0


def test_relay(shop: Path, at_terminal: Open) -> None:
    with eo.connect(f"sqlite:///{shop}/shop.db") as store:
        store.migrate()
    outbox = eo.Outbox(to="orders", table="effectonce_outbox")
    with sqlite3.connect(shop / "shop.db") as connection:
        for number in range(20):
            outbox.send(connection, eo.Message(type="paid", data=number))
    terminal = at_terminal("relay", "--store", "sqlite:///shop.db", "--broker", "sqlite:///queue.db", "--every", "0.1")
    terminal.until("20 published")
    terminal.type(CTRL_C)
    assert terminal.end() == 130
    assert "Traceback" not in terminal.shown
    with sqlite3.connect(shop / "shop.db") as connection:
        states = connection.execute("SELECT DISTINCT state, leased_until > 0 FROM effectonce_outbox").fetchall()
    assert [state for state, _ in states] == ["published"]


def test_relay_once_settles_messages_in_flight(shop: Path, at_terminal: Open) -> None:
    """Ctrl-C comes while the broker's file is locked: what was leased is sent then, and nothing stays leased."""
    with eo.connect(f"sqlite:///{shop}/shop.db") as store, eo.connect_broker(f"sqlite:///{shop}/queue.db") as broker:
        store.migrate()
        broker.declare("orders")
    with sqlite3.connect(shop / "shop.db", isolation_level=None) as outbox:
        outbox.execute("BEGIN")
        for number in range(20):
            eo.Outbox(to="orders", table="effectonce_outbox").send(outbox, eo.Message(type="paid", data=number))
        outbox.execute("COMMIT")

        def leased() -> int:
            waiting = "SELECT count(*) FROM effectonce_outbox WHERE state = 'pending' AND leased_until > 0"
            return int(outbox.execute(waiting).fetchone()[0])

        with sqlite3.connect(shop / "queue.db", isolation_level=None) as locked:
            locked.execute("BEGIN IMMEDIATE")
            terminal = at_terminal("relay", "--store", "sqlite:///shop.db", "--broker", "sqlite:///queue.db", "--once")
            until(leased)
            terminal.type(CTRL_C)
            terminal.until("^C")
            locked.execute("ROLLBACK")
        assert terminal.end() == 130
        assert leased() == 0
    assert "sending" in terminal.shown
    assert re.search(r"[1-9]\d* published", terminal.shown)


def stop_at_the_first_step(shop: Path, terminal: Terminal) -> None:
    """Ctrl-C while it is at hand; then it may end."""
    until(lambda: notes(shop))
    terminal.type(CTRL_C)
    terminal.until("stopping after this step")
    (shop / "go").touch()
    assert terminal.end() == 130


def test_recover_ends_after_the_current_call(shop: Path, at_terminal: Open, environment: dict[str, str]) -> None:
    begin = "import shop\nfor n in (1, 2):\n try: shop.pay('x', key=f'pay_{n}')\n except shop.eo.OutcomeUnknown: pass"
    subprocess.run([sys.executable, "-c", begin], cwd=shop, env={**environment, "BEFORE": "1"}, check=True, timeout=60)
    terminal = at_terminal("intents", "recover", "shop:intents", "--idle", "1us")
    stop_at_the_first_step(shop, terminal)
    assert "1 done" in terminal.shown
    assert len(notes(shop)) == 1, "the other has not started"


def test_resume_ends_after_the_current_saga(shop: Path, at_terminal: Open, environment: dict[str, str]) -> None:
    begin = "import shop\nfor n in (1, 2): shop.saga.start(f'order-{n}', 'x')"
    subprocess.run([sys.executable, "-c", begin], cwd=shop, env=environment, check=True, timeout=60)
    terminal = at_terminal("sagas", "resume", "shop:saga", "--audit", "audit.jsonl")
    stop_at_the_first_step(shop, terminal)
    assert notes(shop) == ["began", "ended"], "the started saga is complete, and the other has not started"
    assert "1 done" in terminal.shown
    assert AuditLog(shop / "audit.jsonl").recent()[0].outcome == "failed: KeyboardInterrupt"


def test_an_interrupted_intent_is_resumed_with_the_same_key(
    shop: Path, at_terminal: Open, environment: dict[str, str]
) -> None:
    begin = "import shop\ntry: shop.pay('x', key='pay_1')\nexcept shop.eo.OutcomeUnknown: pass"
    subprocess.run([sys.executable, "-c", begin], cwd=shop, env={**environment, "BEFORE": "1"}, check=True, timeout=60)
    recover = ("intents", "recover", "shop:intents", "--idle", "1us", "--audit", "audit.jsonl")
    terminal = at_terminal(*recover)
    until(lambda: notes(shop))
    terminal.type(CTRL_C)
    terminal.until("stopping after this step")
    terminal.type(CTRL_C)
    assert terminal.end() == 130
    assert "Traceback" not in terminal.shown
    assert AuditLog(shop / "audit.jsonl").recent()[0].outcome == "failed: KeyboardInterrupt"
    (shop / "go").touch()
    again = at_terminal(*recover)
    assert again.end() == 0
    assert "1 done" in again.shown
    first, second = notes(shop)
    assert first == second


def test_dlq_purge_ends_after_the_current_batch(
    dead_letters: eo.DeadLetterQueue, at_terminal: Open, tmp_path: Path
) -> None:
    """Ctrl-C comes while the queue's file is locked; in batches of two."""
    (tmp_path / "sitecustomize.py").write_text("import effectonce.cli.dead_letters as dlq\ndlq._PURGE_BATCH_SIZE = 2\n")
    terminal = at_terminal(
        "dlq", "purge", "shop:worker", "orders", "--all", "--audit", "audit.jsonl", PYTHONPATH=str(tmp_path)
    )
    terminal.until("[y/N]")
    with sqlite3.connect(tmp_path / "queue.db", isolation_level=None) as locked:
        locked.execute("BEGIN IMMEDIATE")
        terminal.type(b"y\n")
        terminal.until("removing")
        terminal.type(CTRL_C)
        terminal.until("stopping after this step")
        locked.execute("ROLLBACK")
    assert terminal.end() == 130
    assert "2 removed" in terminal.shown
    assert "Traceback" not in terminal.shown
    assert dead_letters.count() == 4
    assert AuditLog(tmp_path / "audit.jsonl").recent()[0].outcome == "failed: KeyboardInterrupt"


def test_records_purge_ends_after_the_current_batch(expired: int, at_terminal: Open, tmp_path: Path) -> None:
    terminal = at_terminal("records", "purge", *HERE)
    terminal.until("[y/N]")
    with sqlite3.connect(tmp_path / "shop.db", isolation_level=None) as locked:
        locked.execute("BEGIN IMMEDIATE")
        terminal.type(b"y\n")
        terminal.until("purging")
        terminal.type(CTRL_C)
        terminal.until("stopping after this step")
        locked.execute("ROLLBACK")
    assert terminal.end() == 130
    deleted = int(re.findall(r"(\d+) deleted", terminal.shown)[0])
    assert deleted in (0, 500), "none where it had not come to the first"
    with sqlite3.connect(tmp_path / "shop.db") as connection:
        assert connection.execute("SELECT count(*) FROM effectonce_records").fetchone() == (expired + 1 - deleted,)


def test_migrate_makes_all_of_its_tables_or_none(postgres_url: str, unique_name: str, at_terminal: Open) -> None:
    """F38: it waits for another's migration when Ctrl-C comes."""
    url = f"{postgres_url}?prefix={unique_name}"
    tables = f"SELECT count(*) FROM pg_tables WHERE tablename LIKE '{unique_name}%'".encode()
    waiting = b"SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND query LIKE %s"
    with psycopg.connect(postgres_url, autocommit=True) as other:
        key = f"effectonce migrate {unique_name}_settled"
        other.execute("SELECT pg_advisory_lock(hashtextextended(%s, 0))", [key])
        terminal = at_terminal("migrate", "--store", url)
        until(lambda: other.execute(waiting, [f"%{unique_name}%"]).fetchone() == (1,))
        terminal.type(CTRL_C)
        assert terminal.end() == 130
        assert "Traceback" not in terminal.shown
        other.execute("SELECT pg_advisory_unlock_all()")
        until(lambda: other.execute(waiting, [f"%{unique_name}%"]).fetchone() == (0,))
        after_interrupt = other.execute(tables).fetchone()
        assert at_terminal("migrate", "--store", url).end() == 0
        all_tables = other.execute(tables).fetchone()
    assert after_interrupt in ((0,), all_tables)  # all: the server had carried on before the cancellation reached it


def answers(url: str) -> bool:
    try:
        return httpx.get(f"{url}/login").is_success
    except httpx.TransportError:
        return False


def test_dashboard(store: eo.Store, at_terminal: Open) -> None:
    terminal = at_terminal("dashboard", "--port", "0", "--json", *HERE)
    terminal.until("\n")
    facts = json.loads(terminal.shown)
    assert facts["store"] == "sqlite:///shop.db"
    assert facts["tokens"].keys() == {"operator", "viewer"}
    until(lambda: answers(facts["url"]))  # Python may lose a Ctrl-C while it still imports
    terminal.type(CTRL_C)
    assert terminal.end() == 130
    assert "Traceback" not in terminal.shown


async def test_async_recovery_starts_nothing_once_a_stop_is_requested() -> None:
    store = eo.connect("memory://", sweep_every=None)
    saga = eo.Saga("order", store, input=str)
    intents = eo.Intents(store, scope="billing")
    fails = [TimeoutError("no answer")]

    @saga.step()
    async def ship(order: str) -> None: ...

    @intents.operation("stripe", "charge")
    async def pay(intent: eo.Intent[str]) -> str:
        if fails:
            raise fails.pop()
        return "ch_1"

    await saga.astart("order-1", "x")
    with pytest.raises(eo.OutcomeUnknown):
        await pay("x", key="pay_1")
    stopped = await saga.aresume(stop=lambda: True), await intents.arecover(idle="1us", stop=lambda: True)
    done = await saga.aresume(), await intents.arecover(idle="1us")
    assert ([counts.done for counts in stopped], [counts.done for counts in done]) == ([0, 0], [1, 1])
    await store.aclose()
