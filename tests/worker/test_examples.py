"""The examples with a broker, on servers and killed in the middle."""

from __future__ import annotations

import os
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest

from tests.harness.waiting import until
from tests.harness.web import program

EXAMPLES = Path(__file__).parents[2] / "examples"


def run(folder: Path, name: str, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(EXAMPLES / name), *arguments]
    given = {**os.environ, **environment}
    return subprocess.run(command, cwd=folder, env=given, capture_output=True, text=True, timeout=120)


def test_its_dead_letters_are_redriven_on_a_server(tmp_path: Path, redis_url: str, unique_name: str) -> None:
    done = run(tmp_path, "worker/worker.py", redis_url, QUEUE=unique_name)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("attempts-exhausted, the bank does not answer") == 3
    assert done.stdout.endswith("[result]  3 charged, 0 dead letters, 6 mails\n")


def test_what_was_redriven_by_hand_is_charged_without_a_second_mail(tmp_path: Path) -> None:
    """The commands of its README, then `effectonce run`."""
    environment = {
        "EFFECTONCE_BROKER": f"sqlite:///{tmp_path}/queue.db",
        "EFFECTONCE_STORE": f"sqlite:///{tmp_path}/billing.db",
        "PYTHONPATH": str(EXAMPLES / "worker"),
    }
    done = run(tmp_path, "worker/worker.py", BANK="down", **environment)
    assert done.stdout.endswith("[result]  0 charged, 3 dead letters, 6 mails\n"), done.stderr
    redrive = ("dlq", "redrive", "worker:worker", "bills", "--rate", "100", "--bypass-effects", "--yes")
    words = [sys.executable, "-m", "effectonce", *redrive]
    subprocess.run(words, cwd=tmp_path, env={**os.environ, **environment}, check=True, timeout=60)
    with program("-m", "effectonce", "run", "worker:worker", ready="[worker]", variables=environment) as worker:
        until(lambda: worker.log.read_text().count("[charge]") == 3)
        assert "[mail]" not in worker.log.read_text()


@pytest.mark.long
@pytest.mark.chaos
def test_kafka_inbox_killed_in_the_middle(tmp_path: Path, kafka_url: str, unique_name: str) -> None:
    """F03: what the killed one had sold is not sold again, and what it had not is."""
    url, variables = f"{kafka_url}?session_timeout=6s", {"QUEUE": unique_name, "GROUP": unique_name}
    command = [sys.executable, str(EXAMPLES / "kafka/kafka_inbox.py"), url]
    with subprocess.Popen(command, cwd=tmp_path, env={**os.environ, **variables}) as killed:
        until(lambda: left(tmp_path / "shop.db") < 1000)
        killed.kill()
    done = run(tmp_path, "kafka/kafka_inbox.py", url, **variables)
    assert done.returncode == 0, done.stderr
    assert done.stdout.endswith("300 sold, 700 left\n")


def left(path: Path) -> int:
    if not path.exists():
        return 1000
    with sqlite3.connect(path, timeout=10) as connection:
        if not connection.execute("SELECT 1 FROM sqlite_master WHERE name = 'stock'").fetchone():
            return 1000
        return int((connection.execute("SELECT left FROM stock").fetchone() or (1000,))[0])
