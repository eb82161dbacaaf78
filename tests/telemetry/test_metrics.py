"""The figures of one scrape: how they are combined, and how old things are."""

from __future__ import annotations

import asyncio
import time
from types import SimpleNamespace
from typing import Any

import pytest
from prometheus_client import CollectorRegistry

from effectonce.contracts import Event
from effectonce.core.group_commit.batches import BatchSizes
from effectonce.record import Stats
from effectonce.telemetry.event_counters import EventCounters
from effectonce.telemetry.metrics import Scrape, _query_dead_letters, _query_records

NOW = 1_767_225_600_000_000


def samples(families: Any) -> dict[tuple[str, ...], float]:
    """The values by name and labels."""
    return {(sample.name, *sample.labels.values()): sample.value for family in families for sample in family.samples}


# -- dead letters


async def test_the_dead_letters_of_all_queues_are_counted_at_the_same_time() -> None:
    """A broker that counts by receiving takes seconds for each."""
    queues = ["orders", "refunds", "parcels"]
    all_count = asyncio.Barrier(len(queues))

    class DeadLetters:
        async def count(self) -> int:
            await all_count.wait()
            return 7

        async def close(self) -> None: ...

    backend = SimpleNamespace(dead_letters=lambda queue, group: DeadLetters())
    worker: Any = SimpleNamespace(
        name="billing", queues=queues, loop=asyncio.get_running_loop(), broker=SimpleNamespace(backend=backend)
    )
    counted = await asyncio.to_thread(_query_dead_letters, worker)
    assert [(gauge.value, *gauge.labels) for gauge in counted] == [(7, queue, "billing") for queue in queues]


# -- one scrape


def test_two_values_of_one_gauge_are_added_up_or_the_larger_one_counts() -> None:
    scrape = Scrape()
    for value in (2, 3, 1):
        scrape.add_gauge("effectonce_in_hand", value, "orders", "billing")
        scrape.add_gauge("effectonce_dead_letters", value, "orders", "billing")
    scrape.add_gauge("effectonce_in_hand", 5, "refunds", "billing")
    shown = samples(scrape.families())
    assert shown["effectonce_in_hand", "orders", "billing"] == 6
    assert shown["effectonce_in_hand", "refunds", "billing"] == 5
    assert shown["effectonce_dead_letters", "orders", "billing"] == 3


def test_the_sizes_of_batches_are_a_histogram_of_all_that_sent_them() -> None:
    scrape = Scrape()
    for _ in range(2):
        sizes = BatchSizes()
        for size in (1, 1, 2, 3, 4, 1023, 1024, 5000):
            sizes.add(size)
        scrape.add_batch_sizes(sizes, "redis", "claims")
    shown = samples(scrape.families())
    counts = {bound: count for (name, *_, bound), count in shown.items() if name == "effectonce_batch_size_bucket"}
    assert [counts[bound] for bound in ("1", "3", "7", "15", "511", "1023", "+Inf")] == [
        4, 8, 10, 10, 10, 12, 16,
    ]  # fmt: skip
    assert shown["effectonce_batch_size_sum", "redis", "claims"] == 2 * (1 + 1 + 2 + 3 + 4 + 1023 + 1024 + 5000)


# -- of a store


def figures(stats: Stats, watched_for: float = 0.0) -> dict[str, float]:
    class Port:
        async def stats(self) -> Stats:
            return stats

        async def now(self) -> int:
            return NOW

        async def close(self) -> None: ...

    store: Any = SimpleNamespace(runtime=SimpleNamespace(backend=SimpleNamespace(sync_port=Port)))
    gauges = _query_records(store, time.monotonic() - watched_for)
    return {
        f"{gauge.name.removeprefix('effectonce_')} {' '.join(gauge.labels[1:])}".strip(): gauge.value
        for gauge in gauges
    }


def test_ages_are_counted_by_the_clock_of_the_store() -> None:
    stats = Stats(
        cap=1000, counts={"done": 3, "in_doubt": 1}, oldest_in_doubt=NOW - 7_000_000, swept_at=NOW - 60_500_000
    )
    assert figures(stats) == {
        "records done": 3, "records in_doubt": 1, "in_doubt_oldest_seconds": 7.0, "sweep_age_seconds": 60.5,
    }  # fmt: skip


def test_nothing_in_doubt_and_what_lies_in_the_future_are_of_no_age() -> None:
    shown = figures(Stats(cap=1000, counts={}, oldest_in_doubt=None, swept_at=NOW + 5_000_000))
    assert (shown["in_doubt_oldest_seconds"], shown["sweep_age_seconds"]) == (0.0, 0.0)


def test_f37_a_store_with_records_that_was_never_swept_is_as_stale_as_it_is_watched() -> None:
    shown = figures(Stats(cap=1000, counts={"done": 1}, oldest_in_doubt=None, swept_at=None), watched_for=3600.0)
    assert shown["sweep_age_seconds"] == pytest.approx(3600, abs=60)
    assert "sweep_age_seconds" not in figures(Stats(cap=1000, counts={"done": 0}, oldest_in_doubt=None, swept_at=None))


# -- events


def counted(*events: Event) -> dict[tuple[str, ...], float]:
    counters = EventCounters(CollectorRegistry())
    for event in events:
        counters.count(event, event.scope)
    return {key: value for key, value in samples(counters.families()).items() if "bucket" not in key[0]}


def test_claims_and_runs_have_their_durations_and_other_events_a_count_only() -> None:
    shown = counted(
        Event(kind="claimed", scope="charge", seconds=0.25),
        Event(kind="claimed", scope="charge", seconds=0.5),
        Event(kind="completed", scope="charge", seconds=2.0),
        Event(kind="released", scope="charge", seconds=3.0),
        Event(kind="replayed", scope="charge", seconds=9.0),
        Event(kind="published", scope="orders", seconds=9.0),
    )
    assert shown["effectonce_outcomes_total", "charge", "claimed"] == 2
    assert shown["effectonce_outcomes_total", "charge", "replayed"] == 1
    assert shown["effectonce_relay_total", "orders", "published"] == 1
    assert shown["effectonce_claim_seconds_count", "charge"] == 2
    assert shown["effectonce_claim_seconds_sum", "charge"] == 0.75
    assert shown["effectonce_run_seconds_sum", "charge", "completed"] == 2.0
    assert shown["effectonce_run_seconds_sum", "charge", "released"] == 3.0
    assert ("effectonce_run_seconds_sum", "charge", "replayed") not in shown


def test_what_took_no_time_that_is_known_is_not_in_the_histograms() -> None:
    shown = counted(Event(kind="claimed", scope="charge"), Event(kind="completed", scope="charge"))
    assert ("effectonce_claim_seconds_count", "charge") not in shown
    assert ("effectonce_run_seconds_count", "charge", "completed") not in shown
    assert shown["effectonce_outcomes_total", "charge", "completed"] == 1


def test_no_series_says_when_it_was_created() -> None:
    assert not [name for name, *_ in counted(Event(kind="claimed", scope="charge", seconds=1.0)) if "created" in name]
