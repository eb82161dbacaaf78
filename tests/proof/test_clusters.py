"""F85 in short: clusters fail over under a worker, and what was lost and doubled is counted. `make prove LONG=1` has
all of them, for longer."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.conftest import skip_or_fail
from tests.harness.installed import Missing

from .cluster_cases import CASES
from .prove_clusters import ClusterRun
from .soak import Tally

pytestmark = [pytest.mark.chaos, pytest.mark.long]


def run_case(name: str, folder: Path) -> Tally:
    mode, start = CASES[name]
    try:
        with start(str(folder)) as case:
            tally = ClusterRun(case, 400, seed=name).run()
    except Missing as missing:
        skip_or_fail(str(missing))
    print(name, mode, tally)
    return tally


def test_a_synchronous_postgres_loses_and_doubles_nothing_across_failovers(tmp_path: Path) -> None:
    """The primary is killed, cut off from its standby, frozen and restarted."""
    tally = run_case("postgres, synchronous", tmp_path)
    assert (tally.lost, tally.doubled, tally.faults) == (0, 0, 4)


def test_an_asynchronous_postgres_loses_what_its_standby_had_not_received(tmp_path: Path) -> None:
    """The count has teeth: a broker does not deliver again what was confirmed."""
    tally = run_case("postgres, asynchronous", tmp_path)
    assert tally.lost > 0


@pytest.mark.parametrize("name", ["redis sentinel", "nats, 3 replicas"])
def test_a_cluster_loses_nothing_and_doubles_only_what_was_not_recorded(name: str, tmp_path: Path) -> None:
    tally = run_case(name, tmp_path)
    assert (tally.lost, tally.faults) == (0, 3)
    assert tally.doubled <= tally.unrecorded
