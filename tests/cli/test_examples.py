"""The first example, on every store that it is given; and it fails when it charges twice."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from .conftest import LETS_EVERYTHING_THROUGH, Sabotage

CHARGE_ONCE = Path(__file__).parents[2] / "examples" / "charge_once" / "charge_once.py"


@pytest.mark.parametrize("given", ["", "memory://", "sqlite:///charges.db"])
@pytest.mark.parametrize("by", ["argument", "environment"])
def test_charge_once(environment: dict[str, str], tmp_path: Path, given: str, by: str) -> None:
    command = [sys.executable, str(CHARGE_ONCE)]
    if given and by == "argument":
        command.append(given)
    elif given:
        environment["EFFECTONCE_STORE"] = given
    done = subprocess.run(command, env=environment, cwd=tmp_path, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.count("[charge]") == 1
    assert done.stdout.endswith("[result]  2 deliveries, 1 charge(s)\n")
    assert (tmp_path / "charges.db").exists() == given.startswith("sqlite")


def test_charge_once_fails_when_it_charges_twice(
    environment: dict[str, str], tmp_path: Path, sabotaged: Sabotage
) -> None:
    environment["PYTHONPATH"] = sabotaged(LETS_EVERYTHING_THROUGH)
    command = [sys.executable, str(CHARGE_ONCE), "sqlite:///charges.db"]
    done = subprocess.run(command, env=environment, cwd=tmp_path, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout.count("[charge]")) == (1, 2)
