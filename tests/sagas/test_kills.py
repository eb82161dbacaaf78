"""kill -9 at every boundary of the order saga, and two processes that recover at once."""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
from pathlib import Path

import pytest

import effectonce as eo

from . import mortal

ROOT = Path(__file__).parents[2]


def start(*arguments: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "tests.sagas.mortal", *arguments]
    return subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True)


def finished(process: subprocess.Popen[str]) -> object:
    out, _ = process.communicate(timeout=100)
    assert process.returncode == 0
    return json.loads(out)


@pytest.mark.parametrize("kind", ["sqlite", "postgresql"])
def test_charges_are_orders_paid_and_refunds_are_orders_compensated(
    kind: str, tmp_path: Path, unique_name: str, request: pytest.FixtureRequest
) -> None:
    """F48 with real processes: nothing is doubled at a provider that keeps keys, nothing lost, nothing half undone."""
    url = f"sqlite:///{tmp_path}/store.db"
    if kind == "postgresql":
        server = request.getfixturevalue("postgres_url")
        url = f"{server}{'&' if '?' in server else '?'}prefix={unique_name}"
    with eo.connect(url) as store:
        store.migrate()
    effects = str(tmp_path / "effects.db")
    orders = mortal.orders()
    assert finished(start("kill", url, effects)) == len(orders) == 15
    for process in [start("resume", url, effects) for _ in range(2)]:
        assert isinstance(finished(process), dict)

    outside = mortal.Outside(effects)
    with eo.connect(url, sweep_every=None) as store:
        saga = mortal.order_saga(store, outside, killing=False)
        for order in orders:
            record = saga.get(order.id)
            assert record is not None
            if order.shippable:
                assert (record.state, outside.of(order.id)) == ("done", ["reserve", "charge", "ship"])
            else:
                assert (record.state, outside.of(order.id)) == ("failed", ["reserve", "charge", "refund", "release"])
            # Mode L: what was killed after its effect ran once more, and nothing else did.
            calls, again = outside.of(order.id, "calls"), order.killed_at.endswith(":after")
            assert len(calls) == len(outside.of(order.id)) + again
            with pytest.raises(eo.SagaFailed) if not order.shippable else contextlib.nullcontext():
                saga.run(order.id, order)
        assert list(saga.records("open")) == list(saga.records("in_doubt")) == []
