"""F75 in short: workers are killed and attempts fail, and each key keeps its order. `make prove LONG=1` has 200,000."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.conftest import skip_or_fail
from tests.harness.installed import Missing

from .prove_long import run_order
from .prove_order import OrderLedger

pytestmark = [pytest.mark.chaos, pytest.mark.long]


@pytest.mark.parametrize("broker", ["kafka", "sqs fifo", "nats"])
def test_no_message_overtakes_another_one_of_its_key(broker: str, tmp_path: Path) -> None:
    try:
        tally = run_order(broker, str(tmp_path), "short", 3_000, 30.0)
    except Missing as missing:
        skip_or_fail(str(missing))
    print(broker, tally)
    assert (tally.errors["inversions"], tally.lost) == (0, 0)
    assert tally.doubled <= tally.unrecorded


def test_the_count_of_inversions_has_teeth(tmp_path: Path) -> None:
    ledger = OrderLedger(tmp_path / "ledger")
    (tmp_path / "ledger").write_text("a 1\nb 1\na 3\na 2\na 3\nb 2\n")
    ledger.read()
    ledger.close()
    assert ledger.inversions == ["a: 2 came after 3"]
    assert (ledger.effects, ledger.distinct) == (6, 5)
