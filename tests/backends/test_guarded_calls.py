"""The guard on every store, by URL, against the real servers, in both colours."""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

import effectonce as eo

STORES = ["sqlite", "redis", "valkey", "redis_cluster", "postgres", "pgbouncer", "mariadb", "dynamodb"]


@pytest.fixture(params=STORES)
def url(request: pytest.FixtureRequest, tmp_path: Path, unique_name: str) -> str:
    """An address that no other test uses: a file, a namespace or tables of its own."""
    name = request.param
    if name == "sqlite":
        return f"sqlite:///{tmp_path}/guard.db"
    server: str = request.getfixturevalue(f"{name}_url")
    if name == "dynamodb":
        return server.replace("dynamodb://effectonce", f"dynamodb://{unique_name}")
    option = "namespace" if name in ("redis", "valkey", "redis_cluster") else "prefix"
    return f"{server}{'&' if '?' in server else '?'}{option}={unique_name}"


@pytest.fixture
def store(url: str) -> Iterator[eo.Store]:
    with eo.connect(url, sweep_every=None) as store:
        store.migrate()
        store.check()
        yield store


@pytest.fixture
def elsewhere(url: str, store: eo.Store) -> Iterator[eo.Store]:
    """The same store from another process, as far as connections and wake-ups go."""
    with eo.connect(url, sweep_every=None) as other:
        yield other


def test_a_duplicate_replays_from_any_handle_and_either_colour(store: eo.Store, elsewhere: eo.Store) -> None:
    """F04, F14."""
    runs: list[str] = []

    @eo.once(store, scope="charge", key="k")
    def charge(k: str) -> dict[str, int]:
        runs.append(k)
        return {"amount": 4200}

    @eo.once(elsewhere, scope="charge", key="k")
    async def acharge(k: str) -> dict[str, int]:
        runs.append(k)
        return {"amount": 1}

    async def again() -> eo.Outcome[dict[str, int]]:
        try:
            return await acharge.call("p1")
        finally:
            await elsewhere.aclose()

    assert charge("p1") == {"amount": 4200}
    assert charge.call("p1").replayed
    outcome = asyncio.run(again())
    assert (outcome.value, outcome.replayed) == ({"amount": 4200}, True)
    assert runs == ["p1"]


def test_many_tasks_share_round_trips_and_each_key_runs_once(store: eo.Store) -> None:
    runs: list[str] = []

    async def herd() -> list[str]:
        @eo.once(store, scope="herd", key="k", wait="30s")
        async def handler(k: str) -> str:
            runs.append(k)
            await asyncio.sleep(0.001)
            return k

        try:
            return await asyncio.gather(*(handler(f"k{n % 25}") for n in range(150)))
        finally:
            await store.aclose()

    assert asyncio.run(herd()) == [f"k{n % 25}" for n in range(150)]
    assert sorted(runs) == sorted(f"k{n}" for n in range(25))


def test_many_threads_share_round_trips_and_each_key_runs_once(store: eo.Store) -> None:
    runs: list[str] = []
    results: list[str] = []

    @eo.once(store, scope="threads", key="k", wait="30s")
    def handler(k: str) -> str:
        runs.append(k)
        return k

    threads = [threading.Thread(target=lambda n=n: results.append(handler(f"k{n % 5}"))) for n in range(20)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert len(results) == 20
    assert sorted(runs) == [f"k{n}" for n in range(5)]


def test_a_waiter_elsewhere_gets_the_result(store: eo.Store, elsewhere: eo.Store) -> None:
    gate, started = threading.Event(), threading.Event()

    @eo.once(store, scope="charge", key="k")
    def charge(k: str) -> str:
        started.set()
        gate.wait(30)
        return "receipt"

    waiting = eo.once(elsewhere, scope="charge", key="k", wait="30s")(lambda k: "ran twice")
    first = threading.Thread(target=charge, args=("p1",))
    first.start()
    assert started.wait(30)
    results: list[eo.Outcome[str]] = []
    second = threading.Thread(target=lambda: results.append(waiting.call("p1")))
    second.start()
    time.sleep(0.3)  # let it wait for real
    gate.set()
    for thread in (first, second):
        thread.join(60)
    assert [(r.value, r.replayed) for r in results] == [("receipt", True)]


@pytest.mark.quick_on("sqlite", "redis", "postgres", "mariadb")
def test_the_heartbeat_keeps_a_lease_that_is_shorter_than_the_work(store: eo.Store, elsewhere: eo.Store) -> None:
    """F10: on its own thread, while the handler blocks."""
    lease = "4s" if store.capabilities.estimated_clock else "600ms"
    long = 6 if store.capabilities.estimated_clock else 1.5

    @eo.once(store, scope="charge", key="k", lease=lease)
    def charge(k: str) -> bool:
        time.sleep(long)
        with pytest.raises(eo.InProgress):
            duplicate(k)
        return eo.current().lease_lost

    duplicate = eo.once(elsewhere, scope="charge", key="k", lease=lease)(lambda k: pytest.fail("ran beside the first"))
    assert charge("p1") is False


def test_errors_doubts_and_limits_are_the_same_everywhere(store: eo.Store) -> None:
    """F19, F20, F21."""

    @eo.once(store, scope="charge", key="k", max_attempts=2, permanent=(KeyError,), fingerprint="amount")
    def charge(k: str, amount: int) -> None:
        if amount == 404:
            raise KeyError("unknown card")
        raise ValueError

    for _ in range(2):
        with pytest.raises(ValueError):
            charge("fails", 1)
    with pytest.raises(eo.AttemptsExhausted):
        charge("fails", 1)
    with pytest.raises(eo.PayloadMismatch):
        charge("fails", 2)
    for _ in range(2):
        with pytest.raises(KeyError, match="unknown card"):
            charge("permanent", 404)
    with contextlib.suppress(TimeoutError), eo.block(store, scope="mail", key="m", on_error="doubt"):
        raise TimeoutError
    with pytest.raises(eo.InDoubt), eo.block(store, scope="mail", key="m"):
        pytest.fail("entered in doubt")
    store.resolve("mail", "m", "done", result={"sent": 1})
    with eo.block(store, scope="mail", key="m") as block:
        assert (block.first, block.result) == (False, {"sent": 1})
    assert store.forget("charge", "fails")
    with pytest.raises(ValueError):
        charge("fails", 2)


def test_seen_mode_and_private_records_work_everywhere(url: str, store: eo.Store) -> None:
    """F62."""
    runs: list[str] = []
    with eo.connect(url, private="0123456789abcdef-secret", sweep_every=None) as private:
        index = eo.once(private, scope="index", key="doc", mode="seen")(lambda doc: runs.append(doc) or "indexed")
        assert index("ada@example.com") == index("ada@example.com") == "indexed"
        charge = eo.once(private, scope="charge", key="doc")(lambda doc: "receipt of ada")
        assert charge("ada@example.com") == charge("ada@example.com") == "receipt of ada"
        for record in private.list(scope="charge").records:
            assert "ada" not in record.key
            assert b"receipt" not in (record.result or b"")
    assert runs == ["ada@example.com"]
