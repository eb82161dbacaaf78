"""What is exposed is what happened."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry

import effectonce as eo
from effectonce.backends.memory.store import MemoryStoreBackend
from effectonce.contracts import Event
from effectonce.telemetry import prometheus
from effectonce.telemetry.cached_probe import CachedProbe, refresh
from effectonce.telemetry.prometheus import Metrics
from effectonce.testing import ManualClock

from .scrape import Page, page, private


def test_every_outcome_of_a_guard_is_counted_by_scope_and_kind(tmp_path: Path) -> None:
    store = eo.connect(f"sqlite:///{tmp_path}/shop.db", sweep_every=None)
    metrics = private().watch(store)

    @eo.once(store, scope="charge", key="id", on_error="doubt")
    def charge(id: str, fails: bool = False) -> int:
        if fails:
            raise RuntimeError
        return 1

    for id in ("a", "b", "c", "a", "a"):
        charge(id)
    with pytest.raises(RuntimeError):
        charge("d", fails=True)
    with pytest.raises(eo.InDoubt):
        charge("d")

    scraped = page(metrics)
    assert scraped.value("effectonce_outcomes_total", scope="charge", kind="claimed") == 4
    assert scraped.value("effectonce_outcomes_total", scope="charge", kind="completed") == 3
    assert scraped.value("effectonce_outcomes_total", scope="charge", kind="replayed") == 2
    assert scraped.value("effectonce_outcomes_total", scope="charge", kind="in_doubt") == 2, (
        "it became so, and was met so"
    )
    assert scraped.value("effectonce_claim_seconds_count", scope="charge") == 4
    assert scraped.value("effectonce_claim_seconds_bucket", scope="charge", le="300.0") == 4
    assert scraped.value("effectonce_run_seconds_count", scope="charge", outcome="completed") == 3
    assert scraped.value("effectonce_run_seconds_count", scope="charge", outcome="in_doubt") == 1, "of the one that ran"
    assert scraped.value("effectonce_records", state="in_doubt") == 1
    assert scraped.value("effectonce_records", state="done") == 3
    assert scraped.value("effectonce_in_doubt_oldest_seconds") >= 0
    assert scraped.value("effectonce_batch_size_sum", kind="both") == 4 + 3 + 2 + 1 + 1
    assert scraped.value("effectonce_up") == 1
    store.close()


def test_a_zombie_is_counted_as_fenced() -> None:
    """F08."""
    clock = ManualClock()
    store = eo.Store(MemoryStoreBackend(clock=clock), sweep_every=None)
    metrics = private().watch(store)

    @eo.once(store, scope="charge", key="id", lease="1s")
    def charge(id: str, overtaken: bool = True) -> None:
        if overtaken:
            clock.advance(2)
            charge_elsewhere()

    def charge_elsewhere() -> None:
        thread = threading.Thread(target=charge, args=("a", False))
        thread.start()
        thread.join()

    with pytest.raises(eo.LeaseLost):
        charge("a")
    scraped = page(metrics)
    assert scraped.value("effectonce_outcomes_total", kind="fenced") == 1
    assert scraped.value("effectonce_outcomes_total", kind="completed") == 1
    assert scraped.value("effectonce_outcomes_total", kind="claimed") == 2


def test_threads_lose_no_count() -> None:
    store = eo.connect("memory://", sweep_every=None)
    metrics = private().watch(store)

    @eo.once(store, scope="count", key="id")
    def count(id: int) -> None: ...

    def work(number: int) -> None:
        for index in range(1_500):
            count(number * 10_000 + index)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    while any(thread.is_alive() for thread in threads):
        page(metrics)
    for kind in ("claimed", "completed"):
        assert page(metrics).value("effectonce_outcomes_total", kind=kind) == 4 * 1_500


def test_scopes_beyond_the_limit_are_counted_as_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """The server that scrapes is not filled with names that are made of data."""
    monkeypatch.setattr(prometheus, "MAX_SCOPES", 3)
    store = eo.connect("memory://", sweep_every=None)
    metrics = private().watch(store)
    for number in range(10):
        with eo.block(store, scope=f"tenant-{number}", key="x") as block:
            assert block.first
    scraped = page(metrics)
    assert (
        len({sample.labels["scope"] for sample in scraped.samples if sample.name == "effectonce_outcomes_total"}) == 4
    )
    assert scraped.value("effectonce_outcomes_total", kind="completed") == 10
    assert scraped.value("effectonce_outcomes_total", kind="completed", scope=prometheus.OTHER_SCOPES) == 7


def test_alerting_kinds_are_counted_from_zero() -> None:
    """Prometheus sees no increase in a series that begins with 1: the first fenced write would raise no alarm."""
    store = eo.connect("memory://", sweep_every=None)
    metrics = private().watch(store)
    with eo.block(store, scope="s", key="x") as block:
        assert block.first
    scraped = page(metrics)
    for kind in prometheus.ALERT_KINDS:
        assert scraped.value("effectonce_outcomes_total", scope="s", kind=kind) == 0


def test_f37_a_store_that_was_never_swept_grows_stale_as_well() -> None:
    store = eo.connect("memory://", sweep_every=None)
    metrics = private().watch(store)
    assert page(metrics).value("effectonce_sweep_age_seconds") == -1, "there is nothing to sweep"
    with eo.block(store, scope="s", key="x") as block:
        assert block.first
    assert page(private().watch(store)).value("effectonce_sweep_age_seconds") >= 0
    store.purge()
    assert page(private().watch(store)).value("effectonce_sweep_age_seconds") >= 0


def test_metrics_of_one_registry_count_once_however_often_they_are_made() -> None:
    registry = CollectorRegistry()
    store = eo.connect("memory://", sweep_every=None)
    Metrics(registry).watch(store)
    Metrics(registry).watch(store, store)
    with eo.block(store, scope="s", key="x") as block:
        assert block.first
    assert page(Metrics(registry)).value("effectonce_outcomes_total", kind="completed") == 1


def test_another_hook_still_sees_the_events() -> None:
    store = eo.connect("memory://", sweep_every=None)
    seen: list[Event] = []
    metrics = private().watch(store)
    with eo.block(store, scope="s", key="x") as block:
        assert block.first
    store.add_hook(seen.append)
    with eo.block(store, scope="s", key="y") as block:
        assert block.first
    assert [event.kind for event in seen] == ["claimed", "completed"]
    assert page(metrics).value("effectonce_outcomes_total", kind="completed") == 2


def test_a_child_forked_during_a_scrape_can_read() -> None:
    """The thread that was reading does not run in the child: the child must not wait for it."""
    reading = CachedProbe("slow", lambda: 7)
    has_started, may_continue = threading.Event(), threading.Event()

    def wait() -> bool:
        has_started.set()
        return may_continue.wait(20)

    slow = CachedProbe("slower", wait)
    slow.refresh()
    assert has_started.wait(60)
    child = os.fork()
    if not child:
        slow._read = lambda: True
        refresh([slow, reading], 10)
        os._exit(42 if slow.value and reading.value == 7 else 1)
    may_continue.set()
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 42


def test_a_scrape_does_not_wait_for_a_server_that_hangs() -> None:
    hangs, asked = threading.Event(), []

    def read() -> int:
        asked.append(1)
        hangs.wait(20)
        return 7

    reading = CachedProbe("a dead server", read)
    for _ in range(3):
        started_at = time.monotonic()
        refresh([reading], 0.05)
        assert time.monotonic() - started_at < 10
        assert reading.value is None
    assert len(asked) == 1, "one read runs at a time"
    hangs.set()
    refresh([reading], 10)
    assert reading.value == 7
    refresh([reading])
    assert len(asked) == 1, "and an answer is kept for a while"


def test_an_unreachable_store_is_down_and_the_others_are_reported(tmp_path: Path) -> None:
    store = eo.connect(f"sqlite:///{tmp_path}/gone/shop.db", sweep_every=None)
    other = eo.connect("memory://", sweep_every=None)
    metrics = private().watch(store, other)
    scraped = page(metrics)
    assert sorted(sample.value for sample in scraped.samples if sample.name == "effectonce_up") == [0, 1]


def test_no_password_is_in_a_metric() -> None:
    """F66."""
    store = eo.connect("redis://user:canary-password@127.0.0.1:1/0?connect_timeout=100ms", sweep_every=None)
    text = private().watch(store).text().decode()
    assert "effectonce_up" in text
    assert "canary" not in text


def test_processes_that_share_a_folder_are_counted_together(tmp_path: Path) -> None:
    """As forked web servers do: whichever answers the scrape tells of all."""
    code = """
import sys
import effectonce as eo
from effectonce.telemetry.prometheus import Metrics
store = eo.connect("sqlite:///shop.db", sweep_every=None)
metrics = Metrics().watch(store)
for number in range(3):
    with eo.block(store, scope="charge", key=f"{sys.argv[1]}-{number}") as block: assert block.first
print(metrics.text().decode())
"""
    (tmp_path / "shared").mkdir()
    shared = {**os.environ, "PROMETHEUS_MULTIPROC_DIR": str(tmp_path / "shared")}
    for turn in ("first", "second"):
        done = subprocess.run(
            [sys.executable, "-c", code, turn], cwd=tmp_path, env=shared, capture_output=True, text=True, check=True
        )
    scraped = Page(done.stdout)
    assert scraped.value("effectonce_outcomes_total", scope="charge", kind="completed") == 6
    assert scraped.value("effectonce_claim_seconds_count", scope="charge") == 6
    assert scraped.value("effectonce_run_seconds_count", outcome="completed") == 6
    assert scraped.value("effectonce_records", state="done") == 6


def test_without_the_package_the_error_names_it() -> None:
    code = "import sys; sys.modules['prometheus_client'] = None; import effectonce.telemetry.prometheus"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert "pip install 'effectonce[prometheus]'" in done.stderr
