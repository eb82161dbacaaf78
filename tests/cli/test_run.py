"""`effectonce run` with several workers and relays in one process, and with --reload."""

from __future__ import annotations

import itertools
import os
import signal
import sqlite3
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

import effectonce as eo
from tests.harness.process import free_port
from tests.harness.waiting import until

SHOP = """\
import effectonce as eo

store = eo.connect("sqlite:///shop.db")
balances = eo.Worker(eo.connect_broker("sqlite:///queue.db"), store=store, name="balances")
shipping = eo.Worker(eo.connect_broker("sqlite:///queue.db"), store=store, name="shipping")
relay = eo.Relay(store, eo.connect_broker("sqlite:///queue.db"))

def note(text):
    with open("notes", "a") as out:
        print(text, file=out)

@balances.handler("orders")
def charge(message: eo.Message[int]) -> None:
    note(f"charged {message.data}")

@shipping.handler("shipments")
def ship(message: eo.Message[int]) -> None:
    note(f"shipped {message.data}")
"""


class Shop:
    """A folder with a program of two workers and a relay, and the processes that run it."""

    def __init__(self, folder: Path, environment: dict[str, str]) -> None:
        self.folder = folder
        self._environment = environment
        self.processes: list[subprocess.Popen[str]] = []
        (folder / "shop.py").write_text(SHOP)
        with eo.connect(f"sqlite:///{folder}/shop.db", sweep_every=None) as store:
            store.migrate()
        with eo.connect_broker(f"sqlite:///{folder}/queue.db") as broker:
            broker.declare("orders", group="balances")
            broker.declare("shipments", group="shipping")

    def start(self, *arguments: str) -> subprocess.Popen[str]:
        command = [sys.executable, "-m", "effectonce", "run", *arguments]
        process = subprocess.Popen(
            command,
            cwd=self.folder,
            env=self._environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        self.processes.append(process)
        return process

    def order(self, number: int, database: str = "shop.db") -> None:
        """Write an order and its shipment to the outbox of ``database``, in a transaction."""
        with sqlite3.connect(self.folder / database) as connection:
            connection.execute("BEGIN")
            for queue in ("orders", "shipments"):
                eo.Outbox(to=queue).send(connection, eo.Message(data=number))

    def notes(self) -> list[str]:
        path = self.folder / "notes"
        return sorted(path.read_text().splitlines()) if path.exists() else []


@pytest.fixture
def shop(tmp_path: Path, environment: dict[str, str]) -> Iterator[Shop]:
    shop = Shop(tmp_path, environment)
    yield shop
    for process in shop.processes:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)  # with the program that --reload runs
        process.communicate()


def test_two_workers_and_a_relay_run_in_one_process_until_sigterm(shop: Shop) -> None:
    """As Kubernetes ends it: SIGTERM, and it drains."""
    address = f"127.0.0.1:{free_port()}"
    process = shop.start("shop:balances", "shop:shipping", "shop:relay", "--listen", address)
    shop.order(1)
    until(lambda: shop.notes() == ["charged 1", "shipped 1"])
    with urllib.request.urlopen(f"http://{address}/metrics", timeout=20) as answer:
        assert "effectonce_outbox_messages{" in answer.read().decode()
    process.send_signal(signal.SIGTERM)
    out, err = process.communicate(timeout=60)
    assert (process.returncode, err) == (0, "")
    assert out.endswith("[worker] balances has stopped\n[worker] shipping has stopped\n")


def test_a_relay_runs_alone(shop: Shop) -> None:
    process = shop.start("shop:relay")
    shop.order(1)
    with eo.connect(f"sqlite:///{shop.folder}/shop.db", sweep_every=None) as store:
        outbox = eo.Relay(store, eo.connect_broker("memory://"))
        until(lambda: not outbox.stats().counts.get("pending"))
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=60)
    assert process.returncode == 130


def test_if_one_cannot_run_the_others_stop_too(shop: Shop) -> None:
    (shop.folder / "shop.py").write_text(SHOP.replace("@shipping.handler", "#").replace("def ship", "def unused"))
    process = shop.start("shop:balances", "shop:shipping")
    _, err = process.communicate(timeout=60)
    assert process.returncode == 2
    assert "this worker has no handlers" in err


def test_several_relays_run_without_a_worker(shop: Shop) -> None:
    """One outbox in each of two databases; both are relayed, and end with the process."""
    with (shop.folder / "shop.py").open("a") as program:
        program.write("other = eo.Relay(eo.connect('sqlite:///other.db'), eo.connect_broker(\"sqlite:///queue.db\"))\n")
    with eo.connect(f"sqlite:///{shop.folder}/other.db", sweep_every=None) as store:
        store.migrate()
    address = f"127.0.0.1:{free_port()}"
    process = shop.start("shop:relay", "shop:other", "--listen", address)
    shop.order(1)
    shop.order(2, "other.db")
    for name in ("shop.db", "other.db"):
        with eo.connect(f"sqlite:///{shop.folder}/{name}", sweep_every=None) as store:
            outbox = eo.Relay(store, eo.connect_broker("memory://"))
            until(lambda: not outbox.stats().counts.get("pending"))  # noqa: B023
    with urllib.request.urlopen(f"http://{address}/readyz", timeout=20) as answer:
        assert answer.read() == b"ok\n"
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=60)
    assert process.returncode == 130


def test_if_one_relay_cannot_run_the_others_stop_too(shop: Shop) -> None:
    with (shop.folder / "shop.py").open("a") as program:
        program.write("other = eo.Relay(eo.connect('memory://'), eo.connect_broker('memory://'))\n")
    process = shop.start("shop:relay", "shop:other")
    _, err = process.communicate(timeout=60)
    assert process.returncode == 2
    assert "cannot hold an outbox" in err


def test_reload_runs_the_program_again_when_its_file_changes(shop: Shop) -> None:
    process = shop.start("shop:balances", "shop:shipping", "shop:relay", "--reload")
    shop.order(1)
    until(lambda: shop.notes() == ["charged 1", "shipped 1"])

    def is_run_again() -> bool:
        shop.order(next(orders))
        time.sleep(0.2)
        return any(note.startswith("sent") for note in shop.notes())

    orders = itertools.count(2)
    for seconds in (
        1,
        2,
        4,
        8,
        16,
        32,
    ):  # the first change may come before changes are watched, and each starts it again
        (shop.folder / "shop.py").write_text(SHOP.replace("shipped", "sent"))
        with suppress(AssertionError):
            until(is_run_again, seconds)
            break
    assert is_run_again()
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=60)
