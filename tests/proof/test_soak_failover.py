"""Redis fails over to a stale replica: the effects that mode L allows, and the remedy."""

from __future__ import annotations

import contextvars
import time
from collections.abc import Iterator

import pytest

import effectonce as eo
from tests.conftest import skip_or_fail
from tests.harness import installed
from tests.harness.sentinel import Failover, sentinel

from .prove_failover import run_stale_failover

pytestmark = pytest.mark.chaos


@pytest.fixture
def shop(request: pytest.FixtureRequest) -> Iterator[Failover]:
    try:
        started = sentinel(*getattr(request, "param", ()))
    except installed.Missing as missing:
        skip_or_fail(str(missing))
    with started:
        yield started


def test_only_unreplicated_effects_happen_again(shop: Failover) -> None:
    """F28: the store lost those records, so their effects are doubled, exactly; nothing is lost."""
    tally = run_stale_failover(shop, 60)
    assert tally.violations == []
    assert (tally.lost, tally.doubled) == (0, 30)


@pytest.mark.long
def test_a_claim_that_the_failover_lost_cannot_complete_over_its_successor(shop: Failover) -> None:
    """F28, F69: tokens are of the store's time, so the successor's is higher though its record is a new one."""
    shop.cut_off()
    with eo.RedisStore(client=shop.client(), sweep_every=None) as store:
        successor = eo.once(store, scope=eo.GLOBAL, key="key")(lambda key: "successor")

        @eo.once(store, scope=eo.GLOBAL, key="key")
        def charge(key: str) -> str:
            shop.fail_over()
            assert not contextvars.Context().run(successor.call, key).replayed
            return "zombie"

        with pytest.raises(eo.LeaseLost):
            charge("p1")
        assert successor("p1") == "successor"


@pytest.mark.long
@pytest.mark.parametrize(
    "shop", [("--min-replicas-to-write", "1", "--min-replicas-max-lag", "1")], indirect=True, ids=["min-replicas"]
)
def test_a_master_that_needs_its_replica_runs_nothing_that_could_be_lost(shop: Failover) -> None:
    """F28's remedy: soon after the replica is gone, claims are refused, so no effect happens that is then forgotten."""
    runs: list[str] = []
    with eo.RedisStore(client=shop.client(), sweep_every=None) as store:
        charge = eo.once(store, scope="failover", key="key")(lambda key: runs.append(key))
        charge("before")
        shop.wait_for_replica()
        shop.cut_off()
        deadline = time.monotonic() + 20
        refused = 0
        while refused < 3:
            assert time.monotonic() < deadline, "the master never missed its replica"
            try:
                charge(f"probe-{time.monotonic_ns()}")
                time.sleep(0.1)
            except eo.StoreUnavailable:
                refused += 1
        before = len(runs)
        with pytest.raises(eo.StoreUnavailable):
            charge("after")
        assert len(runs) == before
        shop.fail_over()
        shop.replica.execute("CONFIG", "SET", "min-replicas-to-write", 0)  # until there is another replica
        charge("before")
        assert runs.count("before") == 1
