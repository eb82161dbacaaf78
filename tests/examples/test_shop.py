"""The shop as its README says: started by one command, and killed process by process while orders flow."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest

from tests.harness.process import free_port

SHOP = Path(__file__).parents[2] / "examples" / "shop"


def environment(**more: str) -> dict[str, str]:
    own = ("EFFECTONCE_", "SHOP_")
    return {**{name: value for name, value in os.environ.items() if not name.startswith(own)}, **more}


def until_ready(process: subprocess.Popen[str]) -> None:
    assert process.stdout is not None
    told: list[str] = []
    for line in process.stdout:
        if "Ctrl-C ends all" in line:
            return
        told.append(line)
    raise AssertionError(f"it did not start: {process.wait()}\n{''.join(told)}")


@pytest.mark.chaos
def test_one_command_starts_it_and_ctrl_c_ends_all_of_it(tmp_path: Path) -> None:
    port = free_port(4)
    command = [sys.executable, str(SHOP / "run.py"), "--port", str(port)]
    process = subprocess.Popen(
        command, cwd=tmp_path, env=environment(), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    try:
        until_ready(process)
        children = psutil.Process(process.pid).children(recursive=True)
        assert len(children) == 5
        headers = {"Authorization": "Bearer ann", "Idempotency-Key": '"8e03978e"'}
        with httpx.Client(base_url=f"http://127.0.0.1:{port}", headers=headers, timeout=30) as shop:

            def placed(**more: Any) -> str:
                answer = shop.post("/orders", json={"item": "chair", "amount": 4200} | more)
                assert answer.status_code == 201, answer.text
                return str(answer.json()["id"])

            def ended(order: str) -> dict[str, Any]:
                deadline = time.monotonic() + 60
                while (found := shop.get(f"/orders/{order}").json())["state"] not in ("shipped", "cancelled"):
                    assert time.monotonic() < deadline, found
                    time.sleep(0.1)
                return dict(found)

            good = placed()
            assert placed() == good
            assert shop.post("/orders", json={"item": "table", "amount": 1}).status_code == 422
            assert ended(good) == {"id": good, "state": "shipped", "charge": "charge_1", "refund": None}
            shop.headers["Idempotency-Key"] = '"another"'
            far = ended(placed(country="Atlantis"))
            assert (far["state"], far["charge"], far["refund"]) == ("cancelled", "charge_2", "refund_3")
        page = httpx.get(f"http://127.0.0.1:{port + 2}/", follow_redirects=True, timeout=30)
        assert (page.status_code, "token" in page.text) == (200, True)
        process.send_signal(signal.SIGINT)
        out, _ = process.communicate(timeout=60)
        assert (process.returncode, out.endswith("[shop] closed\n")) == (0, True)
        assert not psutil.wait_procs(children, timeout=60)[1]
    finally:
        if process.poll() is None:
            process.terminate()
            process.communicate(timeout=60)


def chaos(folder: Path, orders: int, **variables: str) -> None:
    """F01 to F04 and F46 by kill -9, counted where it cannot be undone: in the provider's ledger."""
    command = [sys.executable, str(SHOP / "chaos.py"), "--orders", str(orders), "--every", "0.5", "--kills", "2"]
    done = subprocess.run(
        [*command, "--lease", "2", "--patience", "200", "--folder", str(folder)],
        env=environment(**variables),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=300,
    )
    log = folder / "shop.log"
    assert done.returncode == 0, f"{done.stdout}\n{log.read_text()[-3000:] if log.exists() else ''}"
    assert done.stdout.endswith("nothing lost, nothing doubled\n")
    for name in ("web", "relay", "worker", "provider"):
        assert f"{name} 0 times" not in done.stdout


@pytest.mark.chaos
@pytest.mark.long
@pytest.mark.timeout(320)
def test_orders_are_paid_once_while_every_process_is_killed(tmp_path: Path) -> None:
    chaos(tmp_path, 60)


@pytest.mark.chaos
@pytest.mark.long
@pytest.mark.timeout(320)
def test_and_so_they_are_on_postgresql_and_rabbitmq(
    tmp_path: Path, empty_postgres: str, rabbitmq_url: str, unique_name: str
) -> None:
    chaos(tmp_path, 40, EFFECTONCE_STORE=empty_postgres, EFFECTONCE_BROKER=rabbitmq_url, SHOP_QUEUE=unique_name)


LOOK = """
import json, books, orders, provider, sqlite3
orders.migrate()
order = orders.place("key", "ann", orders.Basket("chair", 4200)).value
with orders.transaction() as session:
    orders.change(session, order, state="shipped", charge="charge_1")
    session.add(orders.Shipment(order_id=order.id))
    session.get_one(orders.Stock, "chair").pieces -= 1
db = sqlite3.connect(provider.LEDGER)
db.executescript(provider.SCHEMA)
for _ in range(2):
    with db:
        db.execute("INSERT INTO ledger (kind, order_id, amount) VALUES ('charge', ?, 4200)", (order.id,))
    lines = books.compare({order.id: order.basket})
    print(json.dumps([what for what, expected, found in lines if expected != found]))
"""


def test_the_books_show_a_second_charge(tmp_path: Path) -> None:
    """What finds nothing wrong must be able to."""
    command, path = [sys.executable, "-c", LOOK], os.pathsep.join((str(SHOP), os.environ.get("PYTHONPATH", "")))
    done = subprocess.run(
        command, cwd=tmp_path, env=environment(PYTHONPATH=path), capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr
    assert [json.loads(line) for line in done.stdout.splitlines()] == [[], ["charges in the provider's ledger"]]
