"""The small examples run as their READMEs say, and again."""

from __future__ import annotations

import asyncio
import importlib
import os
import subprocess
import sys
from pathlib import Path

import pytest

import effectonce as eo
from effectonce.values.urls import Address

EXAMPLES = Path(__file__).parents[2] / "examples"


def last_line(folder: Path, name: str, *arguments: str, **variables: str) -> str:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("EFFECTONCE_")} | variables
    command = [sys.executable, str(EXAMPLES / name), *arguments]
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (0, ""), done.stdout
    return done.stdout.splitlines()[-1]


def test_a_unique_column(tmp_path: Path) -> None:
    """F40: eight at once, and every one gets the row."""
    out = last_line(tmp_path, "unique_constraint/unique_constraint.py")
    assert out == "[result] 20 requests, 5 made a payment, 5 different answers"


@pytest.mark.parametrize("kind", ["sqlite", "rabbitmq"])
def test_an_outbox_and_its_relay(kind: str, tmp_path: Path, unique_name: str, request: pytest.FixtureRequest) -> None:
    urls = [] if kind == "sqlite" else [str(request.getfixturevalue(f"{kind}_url"))]
    for _ in range(2):
        out = last_line(tmp_path, "outbox_relay/outbox_relay.py", *urls, QUEUE=unique_name)
        assert out == "[result] 6 deliveries, 2 orders, shipped: o-1, o-2"


@pytest.mark.quick_on("redis")
@pytest.mark.chaos
@pytest.mark.parametrize("kind", ["sqlite", "redis"])
def test_a_lease(kind: str, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    """F02: five at once run once; what a dead process has claimed runs when its lease is over."""
    url = "sqlite:///mail.db" if kind == "sqlite" else str(request.getfixturevalue("redis_url"))
    for _ in range(2):
        assert last_line(tmp_path, "redis_lease/redis_lease.py", url) == "[result] 2 mails for 2 orders"


def suite_passes(folder: str, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--basetemp", str(tmp_path / "suite")]
    here = EXAMPLES / folder
    done = subprocess.run(
        [*command, "--rootdir", str(here), "."], cwd=here, capture_output=True, text=True, timeout=280
    )
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.long
def test_a_store_of_your_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It keeps the contract, and serves a guard."""
    suite_passes("own_store", tmp_path)
    monkeypatch.syspath_prepend(str(EXAMPLES / "own_store"))
    backend = importlib.import_module("file_store").FileBackend
    ran: list[str] = []
    for _ in range(2):
        store = eo.Store(backend(Address(f"file://{tmp_path}/records.bin")))
        eo.once(store, scope="mailer", key="order")(lambda order: ran.append(order))("o-1")
    assert ran == ["o-1"]


@pytest.mark.long
async def test_a_broker_of_your_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It keeps the contract, and serves a worker."""
    suite_passes("own_broker", tmp_path)
    monkeypatch.syspath_prepend(str(EXAMPLES / "own_broker"))
    broker = eo.Broker(importlib.import_module("spool_broker").SpoolBackend(Address(f"spool://{tmp_path}/spool")))
    worker = eo.Worker(broker, store=eo.connect("memory://"), name="mailer")
    ran: list[str] = []

    @worker.handler("orders")
    async def handle(message: eo.Message[str]) -> None:
        ran.append(message.data)

    message = eo.Message(type="order", data="o-1")
    await broker.apublish("orders", [message, message, eo.Message(type="order", data="o-2")])
    serving = asyncio.create_task(worker.serve())
    for _ in range(3000):
        if len(ran) == 2 and not any((tmp_path / "spool" / "orders" / "held").iterdir()):
            break
        await asyncio.sleep(0.02)
    worker.stop()
    await serving
    assert sorted(ran) == ["o-1", "o-2"]


@pytest.mark.chaos
def test_an_inbox(tmp_path: Path) -> None:
    """F14 and F33: at once, and killed before the commit; and again on the same file."""
    for _ in range(2):
        out = last_line(tmp_path, "inbox/inbox.py")
        assert out == "[result] 21 deliveries of 5 deposits, 1 killed: 500 cents"
