"""kill -9 at every boundary of the order saga, against a provider over HTTP, and two processes that recover at once."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

import effectonce as eo
from tests.harness.provider import Provider

from . import victims

ROOT = Path(__file__).parents[2]


def start(*arguments: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "tests.sagas.victims", *arguments]
    return subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True)


def finished(process: subprocess.Popen[str]) -> object:
    out, _ = process.communicate(timeout=100)
    assert process.returncode == 0
    return json.loads(out)


@pytest.mark.quick_on("postgresql")
@pytest.mark.chaos
@pytest.mark.parametrize("kind", ["sqlite", "postgresql"])
def test_charges_are_orders_paid_and_refunds_are_orders_compensated(
    kind: str, tmp_path: Path, unique_name: str, request: pytest.FixtureRequest
) -> None:
    """F03 and F48 with real processes: nothing is doubled, nothing is lost, nothing is half undone, and unknown
    outcomes are listed in doubt."""
    url = f"sqlite:///{tmp_path}/store.db"
    if kind == "postgresql":
        server = request.getfixturevalue("postgres_url")
        url = f"{server}{'&' if '?' in server else '?'}prefix={unique_name}"
    with eo.connect(url) as store:
        store.migrate()
    orders = victims.orders()
    with Provider() as provider:
        assert finished(start("kill", url, provider.url)) == len(orders) == 17
        for process in [start("resume", url, provider.url) for _ in range(2)]:
            assert isinstance(finished(process), dict)

        def of(done: list[dict[str, str]], order: victims.Order) -> int:
            return sum(each["order"] == order.id for each in done)

        with eo.connect(url, sweep_every=None) as store:
            shop = victims.Shop(store, provider.url, killing=False)
            for order in orders:
                record = shop.saga.get(order.id)
                assert record is not None
                state = "in_doubt" if order.ambiguous else "done" if order.shippable else "failed"
                assert (order.id, record.state) == (order.id, state)
                assert (order.id, of(provider.charges, order)) == (order.id, 1)
                assert (order.id, of(provider.refunds, order)) == (order.id, 0 if order.shippable else 1)
                calls = [path for path, key in provider.requests if f"{order.id}/" in key]
                assert calls.count("/releases") - (order.killed_at == "release:after") == (not order.shippable)
            lost = [order for order in orders if order.killed_at == "mail:before"]
            assert [of(provider.mails, order) for order in orders if order.shippable and order not in lost] == [1] * 7
            doubtful = {order.id for order in orders if order.ambiguous}
            assert {shop.saga.log(record).id for record in shop.saga.records("in_doubt")} == doubtful
            assert {shop.intents.log(record).key for record in shop.intents.in_doubt()} == {
                f"order/{id}/mail" for id in doubtful
            }
            assert list(shop.saga.records("open")) == []
