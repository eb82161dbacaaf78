"""The small examples run as their READMEs say, and again."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

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


@pytest.mark.parametrize("kind", ["memory", "rabbitmq"])
def test_an_outbox_and_its_relay(kind: str, tmp_path: Path, unique_name: str, request: pytest.FixtureRequest) -> None:
    url = "memory://" if kind == "memory" else str(request.getfixturevalue(f"{kind}_url"))
    out = last_line(tmp_path, "outbox_relay/outbox_relay.py", url, QUEUE=unique_name)
    assert out == "[result] 6 deliveries, 2 orders, shipped: o-1, o-2"


@pytest.mark.chaos
@pytest.mark.parametrize("kind", ["sqlite", "redis"])
def test_a_lease(kind: str, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    """F02: five at once run once; what a dead process has claimed runs when its lease is over."""
    url = "sqlite:///mail.db" if kind == "sqlite" else str(request.getfixturevalue("redis_url"))
    for _ in range(2):
        assert last_line(tmp_path, "redis_lease/redis_lease.py", url) == "[result] 2 mails for 2 orders"
