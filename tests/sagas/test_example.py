"""The order example runs as its README says."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLE = Path(__file__).parents[2] / "examples" / "order_saga"


@pytest.mark.parametrize("store", ["memory://", "sqlite:///orders.db"])
def test_every_order_is_paid_and_shipped_or_undone(tmp_path: Path, store: str) -> None:
    environment = {name: value for name, value in os.environ.items() if name != "EFFECTONCE_STORE"}
    command = [sys.executable, str(EXAMPLE / "order_saga.py"), store]
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert "step charge failed and the saga undoes the steps before it: ValueError" in done.stderr
    assert done.stdout.endswith("[result] 6 deliveries: 2 charges, 1 refund, 1 shipped\n")
    assert done.stdout.index("[refund] o-far-away") < done.stdout.index("[release] o-far-away")
    if store.startswith("sqlite"):
        command = [sys.executable, "-m", "effectonce", "sagas", "show", "order_saga:saga", "o-far-away"]
        environment |= {"EFFECTONCE_STORE": f"sqlite:///{tmp_path}/orders.db"}
        shown = subprocess.run(command, cwd=EXAMPLE, env=environment, capture_output=True, text=True, timeout=60)
        assert (shown.returncode, shown.stderr) == (0, "")
        assert "undo charge" in shown.stdout
        assert "LookupError: no carrier goes there" in shown.stdout
