"""The small examples on servers of other kinds than their READMEs name."""

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


@pytest.mark.long
def test_an_outbox_and_its_relay_on_rabbitmq(tmp_path: Path, unique_name: str, rabbitmq_url: str) -> None:
    """And again on the same database, where everything is shipped."""
    for _ in range(2):
        out = last_line(tmp_path, "outbox/outbox.py", rabbitmq_url, QUEUE=unique_name)
        assert out == "[result] 6 deliveries, 2 orders, shipped: o-1, o-2"
