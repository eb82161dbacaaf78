"""The examples with a broker run as their READMEs say."""

from __future__ import annotations

import os
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest

from tests.harness.waiting import until
from tests.harness.web import program

pytestmark = pytest.mark.quick_on("ministack")

EXAMPLES = Path(__file__).parents[2] / "examples"


def run(folder: Path, name: str, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(EXAMPLES / name), *arguments]
    given = {**os.environ, **environment}
    return subprocess.run(command, cwd=folder, env=given, capture_output=True, text=True, timeout=120)


def url_of(kind: str, folder: Path, request: pytest.FixtureRequest) -> str:
    if kind in ("memory", "sqlite"):
        return {"memory": "memory://", "sqlite": f"sqlite:///{folder}/queue.db"}[kind]
    return str(request.getfixturevalue(f"{kind}_url"))


@pytest.mark.quick_on("redis", "rabbitmq", "nats")
@pytest.mark.parametrize("kind", ["memory", "sqlite", "redis", "rabbitmq", "nats", "kafka"])
def test_charge_once_through_every_broker(
    kind: str, tmp_path: Path, unique_name: str, request: pytest.FixtureRequest
) -> None:
    url = url_of(kind, tmp_path, request)
    charge_once(url, tmp_path, unique_name, charges=1)
    charge_once(url, tmp_path, unique_name, charges=0, note=", an earlier run has charged it")


def test_charge_once_through_sqs(sqs_url: str, tmp_path: Path, unique_name: str) -> None:
    charge_once(sqs_url, tmp_path, unique_name, charges=1)


def charge_once(url: str, folder: Path, queue: str, charges: int, note: str = "") -> None:
    done = run(folder, "charge_once/through_a_broker.py", url, f"sqlite:///{folder}/store.db", QUEUE=queue)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.count("[charge]") == charges
    assert done.stdout.endswith(f"[deliver] 2: known, acked\n[result]  2 deliveries, {charges} charge(s){note}\n")


@pytest.mark.parametrize("kind", ["memory", "redis"])
def test_dlq_redrive(kind: str, tmp_path: Path, unique_name: str, request: pytest.FixtureRequest) -> None:
    done = run(tmp_path, "dlq_redrive/dlq_redrive.py", url_of(kind, tmp_path, request), QUEUE=unique_name)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("attempts-exhausted, the bank does not answer") == 3
    assert "[dry run] 3 are still there, 0 charged\n" in done.stdout
    assert done.stdout.endswith("[result]  3 charged, 0 dead letters, 6 mails\n")


def test_dlq_redrive_by_hand(tmp_path: Path) -> None:
    """The commands of its README, on what a bank that is down has left behind."""
    environment = {
        "EFFECTONCE_BROKER": f"sqlite:///{tmp_path}/queue.db",
        "EFFECTONCE_STORE": f"sqlite:///{tmp_path}/billing.db",
        "PYTHONPATH": str(EXAMPLES / "dlq_redrive"),
    }
    done = run(tmp_path, "dlq_redrive/dlq_redrive.py", BANK="down", **environment)
    assert done.stdout.endswith("[result]  0 charged, 3 dead letters, 6 mails\n"), done.stderr

    def dlq(command: str, *options: str) -> str:
        words = [sys.executable, "-m", "effectonce", "dlq", command, "dlq_redrive:worker", "bills", *options]
        given = {**os.environ, **environment, "NO_COLOR": "1"}
        done = subprocess.run(words, cwd=tmp_path, env=given, capture_output=True, text=True, timeout=60)
        assert (done.returncode, done.stderr) == (0, "")
        return done.stdout

    assert dlq("list").endswith("3 of 3 dead letters\n")
    assert dlq("redrive", "--dry-run").endswith("3 checked, nothing changed\n")
    assert dlq("redrive", "--rate", "100", "--bypass-effects", "--yes").endswith("3 of 3 sent\n")
    command = ("-m", "effectonce", "run", "dlq_redrive:worker")
    with program(*command, ready="[worker]", variables=environment) as worker:
        until(lambda: worker.log.read_text().count("[charge]") == 3)
        assert "[mail]" not in worker.log.read_text()


def test_sqs_fifo(tmp_path: Path, sqs_url: str, unique_name: str) -> None:
    done = run(tmp_path, "sqs_fifo/sqs_fifo.py", f"{sqs_url}&fifo=yes", QUEUE=unique_name)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.splitlines() == [
        "[shipped] ann: [1, 2, 3]",
        "[shipped] bob: [1, 2, 3]",
        "[result]  8 sent, 7 delivered, 6 shipped",
    ]


@pytest.mark.long
def test_kafka_inbox(tmp_path: Path, kafka_url: str, unique_name: str) -> None:
    for _ in range(2):
        done = run(tmp_path, "kafka_inbox/kafka_inbox.py", kafka_url, QUEUE=unique_name, GROUP=unique_name)
        assert done.returncode == 0, done.stderr
        assert done.stdout == "[result]  251 deliveries, 300 sold, 700 left\n"


@pytest.mark.long
@pytest.mark.chaos
def test_kafka_inbox_killed_in_the_middle(tmp_path: Path, kafka_url: str, unique_name: str) -> None:
    """F03: what the killed one had sold is not sold again, and what it had not is."""
    url, variables = f"{kafka_url}?session_timeout=6s", {"QUEUE": unique_name, "GROUP": unique_name}
    command = [sys.executable, str(EXAMPLES / "kafka_inbox/kafka_inbox.py"), url]
    with subprocess.Popen(command, cwd=tmp_path, env={**os.environ, **variables}) as killed:
        until(lambda: left(tmp_path / "shop.db") < 1000)
        killed.kill()
    done = run(tmp_path, "kafka_inbox/kafka_inbox.py", url, **variables)
    assert done.returncode == 0, done.stderr
    assert done.stdout.endswith("300 sold, 700 left\n")


def left(path: Path) -> int:
    if not path.exists():
        return 1000
    with sqlite3.connect(path, timeout=10) as connection:
        if not connection.execute("SELECT 1 FROM sqlite_master WHERE name = 'stock'").fetchone():
            return 1000
        return int((connection.execute("SELECT left FROM stock").fetchone() or (1000,))[0])
