"""The examples with a broker run as their READMEs say."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[2] / "examples"


def run(folder: Path, name: str, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(EXAMPLES / name), *arguments]
    given = {**os.environ, **environment}
    return subprocess.run(command, cwd=folder, env=given, capture_output=True, text=True, timeout=120)


def url_of(kind: str, folder: Path, request: pytest.FixtureRequest) -> str:
    if kind in ("memory", "sqlite"):
        return {"memory": "memory://", "sqlite": f"sqlite:///{folder}/queue.db"}[kind]
    return str(request.getfixturevalue(f"{kind}_url"))


@pytest.mark.parametrize("kind", ["memory", "sqlite", "redis", "rabbitmq", "nats", "kafka"])
def test_charge_once_through_every_broker(
    kind: str, tmp_path: Path, unique_name: str, request: pytest.FixtureRequest
) -> None:
    charge_once(url_of(kind, tmp_path, request), tmp_path, unique_name)


def test_charge_once_through_sqs(sqs_url: str, tmp_path: Path, unique_name: str) -> None:
    charge_once(sqs_url, tmp_path, unique_name)


def charge_once(url: str, folder: Path, queue: str) -> None:
    done = run(folder, "charge_once/through_a_broker.py", url, f"sqlite:///{folder}/store.db", QUEUE=queue)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.count("[charge]") == 1
    assert done.stdout.endswith("[deliver] 2: known, acked\n[result]  2 deliveries, 1 charge(s)\n")


@pytest.mark.parametrize("kind", ["memory", "redis"])
def test_dlq_redrive(kind: str, tmp_path: Path, unique_name: str, request: pytest.FixtureRequest) -> None:
    done = run(tmp_path, "dlq_redrive/dlq_redrive.py", url_of(kind, tmp_path, request), QUEUE=unique_name)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("attempts-exhausted, the bank does not answer") == 3
    assert "[dry run] 3 are still there, 0 charged\n" in done.stdout
    assert done.stdout.endswith("[result]  3 charged, 0 dead letters, 6 mails\n")


def test_sqs_fifo(tmp_path: Path, sqs_url: str, unique_name: str) -> None:
    done = run(tmp_path, "sqs_fifo/sqs_fifo.py", f"{sqs_url}&fifo=yes", QUEUE=unique_name)
    assert done.returncode == 0, done.stderr
    assert done.stdout.endswith("[result]  8 sent, 7 delivered, 6 shipped, each customer's in order\n")


def test_kafka_inbox(tmp_path: Path, kafka_url: str, unique_name: str) -> None:
    done = run(tmp_path, "kafka_inbox/kafka_inbox.py", kafka_url, QUEUE=unique_name, GROUP=unique_name)
    assert done.returncode == 0, done.stderr
    assert done.stdout == "[result]  251 deliveries, 300 sold, 700 left\n"
