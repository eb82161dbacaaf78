"""`effectonce run` and `effectonce dlq`, as processes on a module of the user's."""

from __future__ import annotations

import importlib
import json
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest

import effectonce as eo
from effectonce.cli import main
from effectonce.telemetry.audit_log import AuditLog

SHOP = """\
import os
import effectonce as eo

broker = eo.connect_broker("sqlite:///queue.db?ack_window=2s")
store = eo.connect("sqlite:///store.db")
worker = eo.Worker(broker, store=store, name="billing", drain="5s")

@worker.handler("orders", type="order.paid", retry=eo.Retry(1))
def charge(message: eo.Message[dict[str, int]]) -> None:
    if os.path.exists("broken"):
        raise ValueError("the shop is broken")
    with open("charged", "a") as out:
        print(message.data["order"], file=out)
"""


class Shop:
    def __init__(self, folder: Path, environment: dict[str, str]) -> None:
        self.folder = folder
        self.environment = environment
        (folder / "shop.py").write_text(SHOP)
        self.broker = eo.connect_broker(f"sqlite:///{folder}/queue.db?ack_window=2s")
        self.broker.declare("orders", group="billing")

    def send(self, *orders: int) -> None:
        self.broker.publish(
            "orders", [eo.Message(type="order.paid", data={"order": order}, id=f"o{order}") for order in orders]
        )

    def charged(self) -> list[int]:
        path = self.folder / "charged"
        return sorted(map(int, path.read_text().split())) if path.exists() else []

    def work(self, until: Any) -> tuple[int, str, str]:
        """Run the worker until ``until()``, then end it as an orchestrator does."""
        command = [sys.executable, "-m", "effectonce", "run", "shop:worker"]
        process = subprocess.Popen(
            command, cwd=self.folder, env=self.environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        try:
            deadline = time.monotonic() + 60
            while not until() and process.poll() is None:
                assert time.monotonic() < deadline
                time.sleep(0.02)
            process.send_signal(signal.SIGTERM)
            out, err = process.communicate(timeout=30)
        finally:
            process.kill()
        return process.returncode, out, err

    def dead(self) -> int:
        return eo.DeadLetterQueue(self.broker, "orders", group="billing").count()


@pytest.fixture
def shop(tmp_path: Path, environment: dict[str, str]) -> Shop:
    return Shop(tmp_path, environment)


class Done(NamedTuple):
    returncode: int
    stdout: str
    stderr: str


Run = Callable[..., Done]


@pytest.fixture
def run(shop: Shop, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    """A command in this process, in the shop's folder: a process for each would take most of the time."""
    monkeypatch.chdir(shop.folder)
    monkeypatch.setattr(sys, "path", list(sys.path))

    def run(*arguments: str) -> Done:
        sys.modules.pop("shop", None)
        importlib.invalidate_caches()
        code = main(arguments)
        return Done(code, *capsys.readouterr())

    return run


def test_run_consumes_until_sigterm(shop: Shop) -> None:
    shop.send(1, 2, 3, 2)
    code, out, err = shop.work(lambda: len(shop.charged()) == 3)
    assert (code, err) == (0, "")
    assert out == ("[worker] billing: orders, type order.paid: shop:charge, 16 at once\n[worker] billing has stopped\n")
    assert shop.charged() == [1, 2, 3]


def test_the_life_of_dead_letters_from_the_command_line(shop: Shop, run: Run) -> None:
    (shop.folder / "broken").touch()
    shop.send(1, 2)
    _, _, err = shop.work(lambda: shop.dead() == 2)
    assert err.count("failed and goes to the dead letters: attempts-exhausted: ValueError: the shop is broken") == 2
    assert err.count("Traceback") == 2

    listed = run("dlq", "list", "shop:worker", "orders")
    assert listed.returncode == 0
    assert "attempts-exhausted" in listed.stdout
    assert listed.stdout.endswith("2 of 2 dead letters\n")
    facts = json.loads(run("dlq", "list", "shop:worker", "orders", "--json").stdout)["dead_letters"]
    facts.sort(key=lambda dead: str(dead["key"]))
    assert [(dead["key"], dead["why"], dead["text"]) for dead in facts] == [
        ("o1", "attempts-exhausted", "the shop is broken"),
        ("o2", "attempts-exhausted", "the shop is broken"),
    ]
    shown = json.loads(run("dlq", "show", "shop:worker", "orders", facts[0]["id"], "--json").stdout)
    assert json.loads(shown["body"])["data"] == {"order": 1}
    assert ["worker", "billing"] in [
        line.split() for line in run("dlq", "show", "shop:worker", "orders", facts[0]["id"]).stdout.splitlines()
    ]
    assert "ValueError: the shop is broken" in listed.stdout
    text = run("dlq", "show", "shop:worker", "orders", facts[0]["id"]).stdout
    assert "in charge\n" in text
    assert text.endswith("\nValueError: the shop is broken\n")

    dry = run("dlq", "redrive", "shop:worker", "orders", "--dry-run", "--json")
    assert [json.loads(line)["fate"] for line in dry.stdout.splitlines()] == ["resume", "resume"]
    assert "not sent" not in run("dlq", "redrive", "shop:worker", "orders", "--dry-run").stdout
    assert shop.dead() == 2
    sent = run("dlq", "redrive", "shop:worker", "orders", "--key", "o1", "--yes").stdout
    assert sent.endswith("1 of 1 checked were sent\n")
    assert "not sent" not in sent
    (shop.folder / "broken").unlink()
    shop.work(lambda: shop.charged() == [1])
    assert (shop.charged(), shop.dead()) == ([1], 1)

    refused = run("dlq", "purge", "shop:worker", "orders")
    assert (refused.returncode, refused.stdout) == (2, "")
    assert "--all" in refused.stderr
    assert run("dlq", "purge", "shop:worker", "orders", "--why", "poison").stdout == "0 removed\n"
    assert run("dlq", "purge", "shop:worker", "orders", "--all", "--yes").stdout == "1 removed\n"
    assert run("dlq", "list", "shop:worker", "orders").stdout == "queue orders has no such dead letters\n"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["run", "shop"], "is not a MODULE:NAME"),
        (["run", "shop:missing"], "was not found"),
        (["run", "nowhere:worker"], "was not found"),
        (["run", "shop:broker"], "is of type Broker, not Worker"),
        (["dlq", "list", "shop:worker", "invoices"], "no handler for queue 'invoices'"),
    ],
)
def test_a_missing_program_is_a_one_line_error(shop: Shop, run: Run, arguments: list[str], message: str) -> None:
    done = run(*arguments)
    assert (done.returncode, done.stdout) == (2, "")
    assert message in done.stderr
    assert done.stderr.count("\n") == 1


def test_a_dry_run_removes_nothing_and_actions_are_audited(shop: Shop, run: Run) -> None:
    (shop.folder / "broken").touch()
    shop.send(1)
    shop.work(lambda: shop.dead() == 1)
    assert run("dlq", "purge", "shop:worker", "orders", "--all", "--dry-run").stdout == "1 would be removed\n"
    for command in (["purge", "shop:worker", "orders", "--all"], ["redrive", "shop:worker", "orders"]):
        refused = run("dlq", *command)
        assert (refused.returncode, refused.stdout, "--yes" in refused.stderr) == (2, "", True)
    assert shop.dead() == 1
    audit = ("--yes", "--audit", str(shop.folder / "audit.jsonl"))
    few = ("--why", "attempts-exhausted", "--limit", "3")
    assert run("dlq", "redrive", "shop:worker", "orders", *few, *audit).returncode == 0
    assert run("dlq", "purge", "shop:worker", "orders", "--all", *audit).stdout == "0 removed\n"
    entries = AuditLog(shop.folder / "audit.jsonl").recent()
    assert [(entry.action, entry.target, entry.outcome) for entry in reversed(entries)] == [
        ("dlq redrive", "orders of billing", "asked"),
        ("dlq redrive", "orders of billing", "done"),
        ("dlq purge", "orders of billing", "asked"),
        ("dlq purge", "orders of billing", "done"),
    ]
    assert [entry.detail for entry in entries[::2]] == ["all", "why attempts-exhausted, at most 3"]


def test_run_check_as_json(shop: Shop, run: Run) -> None:
    done = run("run", "shop:worker", "--check", "--json")
    handler, checked = (json.loads(line) for line in done.stdout.splitlines())
    assert (handler["event"], handler["queue"], handler["type"]) == ("handler", "orders", "order.paid")
    assert (checked["event"], checked["ok"]) == ("checked", True)


def test_run_check_only_checks(shop: Shop, run: Run) -> None:
    done = run("run", "shop:worker", "--check")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.endswith("can keep their promise\n")
    (shop.folder / "shop.py").write_text(SHOP.replace("retry=eo.Retry(1)", "lease='1h'"))
    done = run("run", "shop:worker", "--check")
    assert (done.returncode, "set lease= below that" in done.stderr) == (2, True)
