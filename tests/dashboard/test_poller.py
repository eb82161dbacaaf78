"""`Poller`: when it reads which figures, and what the plots make of its samples. Its sources are stand-ins."""

from __future__ import annotations

import urllib.request
from types import SimpleNamespace
from typing import Any

import pytest
from prometheus_client import CollectorRegistry

import effectonce as eo
from effectonce.contracts.outbox import OutboxBacklog
from effectonce.dashboard import poller as module
from effectonce.dashboard.poller import DELIVERY_KINDS, DUPLICATE_KINDS, FIRST_RUN_KINDS, Poller, Sample, count_events
from effectonce.errors import StoreUnavailable
from effectonce.record import Stats
from effectonce.telemetry.prometheus import Metrics
from tests.harness.waiting import until

PAGE = """
# HELP effectonce_outcomes_total What guarded calls came to.
effectonce_outcomes_total{scope="charge",kind="completed"} 3
effectonce_outcomes_total{kind="completed",scope="ship"} 4.5
effectonce_outcomes_total{scope="x",kind="replayed"} 1e2 1700000000
effectonce_outcomes_total{scope="charge",unkind="completed"} 7
effectonce_other_total{kind="completed"} 9
"""


def stats(*, approximate: tuple[str, ...] = (), cap: int = 1000, **counts: int) -> Stats:
    return Stats(counts=counts, cap=cap, approximate=approximate)


class Sources:
    """The dashboard's sources: a store, and an outbox and queues of dead letters where a test adds them."""

    def __init__(self) -> None:
        self.polling_store = SimpleNamespace(stats=lambda: stats(done=1))
        self.outbox: object | None = None
        self.backlog = OutboxBacklog(counts={}, cap=1, oldest=5)
        self.metrics: list[str] = []
        self.dead_letter_queues: dict[str, Any] = {}
        self.discoveries = 0

    def outbox_stats(self) -> OutboxBacklog:
        return self.backlog

    def discover_scopes(self) -> None:
        self.discoveries += 1


@pytest.fixture
def sources() -> Any:
    return Sources()


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    clock = SimpleNamespace(now=1000.0)
    stand_in = SimpleNamespace(time=lambda: clock.now, monotonic=lambda: clock.now)
    monkeypatch.setattr(module, "time", stand_in)
    return clock


# -- taking samples


def test_a_sample_has_the_figures_of_the_sources_that_there_are(sources: Any, clock: SimpleNamespace) -> None:
    poller = Poller(sources)
    assert poller.sample(wait=0.0) is None
    poller.poll()
    assert poller.sample(wait=0.0) == Sample(at=1000.0, stats=stats(done=1))
    sources.outbox = object()
    poller.poll()
    newest = poller.sample(wait=0.0)
    assert newest is not None
    assert newest.backlog == sources.backlog


def test_scopes_and_dead_letters_are_read_less_often(sources: Any, clock: SimpleNamespace) -> None:
    sources.dead_letter_queues = {"worker/q": SimpleNamespace(count=lambda: 7)}
    poller = Poller(sources)
    for later_s, discoveries in ((0, 1), (9.9, 1), (0.1, 2), (5, 2)):
        clock.now += later_s
        poller.poll()
        assert sources.discoveries == discoveries
    assert poller.dead_letter_counts == {"worker/q": 7}


@pytest.mark.parametrize(
    ("error", "shown"),
    [(StoreUnavailable("it is away"), "it is away"), (OSError("at user:canary@h"), "OSError")],
    ids=["one of ours", "a driver's, which may hold a secret"],
)
def test_f66_a_source_that_fails_is_an_error_until_it_answers(
    sources: Any, clock: SimpleNamespace, error: Exception, shown: str
) -> None:
    poller, answers = Poller(sources), [error, stats()]

    def answer() -> Any:
        if isinstance(first := answers.pop(0), Exception):
            raise first
        return first

    sources.polling_store.stats = answer
    poller.poll()
    assert poller.errors == {"store": shown}
    assert poller.samples[-1].stats is None
    poller.poll()
    assert poller.errors == {}


@pytest.mark.parametrize(("took_s", "pause_s"), [(0.1, 2.0), (0.5, 5.0)])
def test_the_poller_keeps_the_store_busy_for_a_tenth_of_the_time_at_most(
    sources: Any, clock: SimpleNamespace, took_s: float, pause_s: float
) -> None:
    poller = Poller(sources)
    pauses: list[float] = []

    def pause(seconds: float) -> None:
        pauses.append(seconds)
        stopping.append(True)

    stopping: list[bool] = []
    poller._stopping = SimpleNamespace(is_set=lambda: bool(stopping), wait=pause)  # type: ignore[assignment]

    def read() -> Stats:
        clock.now += took_s
        return stats()

    sources.polling_store.stats = read
    poller._run()
    assert pauses == pytest.approx([pause_s])


def test_a_started_poller_polls_until_it_is_stopped(sources: Any) -> None:
    poller = Poller(sources)
    poller.stop()  # it was not started
    poller = Poller(sources)
    poller.start()
    assert poller.sample(wait=30.0) is not None
    poller.stop()
    thread = poller._thread
    assert thread is not None
    until(lambda: not thread.is_alive())


# -- the counts of workers


def test_a_page_of_metrics_is_summed_up_by_kind_of_event() -> None:
    assert count_events(PAGE) == {"completed": 7.5, "replayed": 100.0}


def test_a_worker_that_does_not_answer_is_left_out(
    sources: Any, clock: SimpleNamespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Answer:
        def __enter__(self) -> Answer:
            return self

        def __exit__(self, *_: object) -> None: ...

        def read(self, limit: int) -> bytes:
            return PAGE.encode()[:limit]

    def urlopen(url: str, timeout: float) -> Answer:
        if "gone" in url:
            raise ConnectionRefusedError
        return Answer()

    monkeypatch.setattr(urllib.request, "urlopen", urlopen)
    sources.metrics = ["http://me:canary@one:1/metrics", "http://gone:2/metrics"]
    poller = Poller(sources)
    poller.poll()
    assert poller.samples[-1].totals == {sources.metrics[0]: {"completed": 7.5, "replayed": 100.0}}
    assert poller.errors == {"worker at gone:2": "ConnectionRefusedError"}


# -- the plots


def series(*samples: Sample) -> dict[str, Any]:
    poller = Poller(Sources())  # type: ignore[arg-type]
    poller.samples.extend(samples)
    return poller.series()


def counted(at: float, **by_worker: dict[str, float]) -> Sample:
    return Sample(at=at, totals=by_worker)


def test_rates_are_events_per_second_between_two_samples() -> None:
    shown = series(
        counted(10.0, a={"claimed": 5.0, "completed": 3.0, "replayed": 1.0, "released": 7.0}),
        counted(12.0, a={"claimed": 9.0, "completed": 5.0, "replayed": 2.0, "released": 9.0}),
        counted(16.004, a={"claimed": 9.0, "completed": 5.0, "replayed": 2.0}),
    )
    assert shown["at"] == [12.0, 16.0]
    assert shown["deliveries"] == [2.5, 0.0]
    assert shown["first_runs"] == [1.0, 0.0]
    assert shown["duplicates"] == [0.5, 0.0]


def test_a_worker_that_started_again_counts_from_zero() -> None:
    shown = series(counted(0.0, a={"completed": 100.0}), counted(1.0, a={"completed": 4.0}))
    assert shown["first_runs"] == [4.0]


def test_only_workers_that_answered_both_times_are_compared() -> None:
    shown = series(
        counted(0.0, a={"completed": 1.0}, b={"completed": 500.0}),
        counted(1.0, a={"completed": 2.0}, c={"completed": 900.0}),
        counted(2.0, d={"completed": 3.0}),
        counted(3.0),
    )
    assert shown["first_runs"] == [1.0, None, None]
    assert shown["deliveries"] == [0.0, None, None]


def test_two_samples_of_one_moment_have_no_endless_rate() -> None:
    assert series(counted(5.0, a={"completed": 1.0}), counted(5.0, a={"completed": 2.0}))["first_runs"] == [1000.0]


@pytest.mark.parametrize(
    ("before", "after", "rate"),
    [
        (stats(done=10), stats(done=16), 3.0),
        (stats(done=16), stats(done=10), 0.0),
        (stats(), stats(done=2), 1.0),
        (stats(done=10), stats(done=16, approximate=("done",)), None),
        (stats(done=10), stats(done=16, approximate=("failed",)), 3.0),
        (stats(done=900), stats(done=1000), None),
        (stats(done=900), stats(done=998), 49.0),
        (None, stats(done=16), None),
        (stats(done=10), None, None),
    ],
)
def test_without_workers_first_runs_are_what_the_store_has_more_of(
    before: Stats | None, after: Stats | None, rate: float | None
) -> None:
    shown = series(Sample(at=1.0, stats=before), Sample(at=3.0, stats=after))
    assert shown["first_runs"] == [rate]
    assert (shown["deliveries"], shown["duplicates"]) == ([None], [None])


def test_the_plots_show_doubts_and_the_age_of_the_oldest_message() -> None:
    first = Sample(at=0.0)
    samples = [
        Sample(at=10.0, stats=stats(in_doubt=4), backlog=OutboxBacklog(counts={}, cap=1, oldest=7_500_000)),
        Sample(at=11.0, stats=stats(), backlog=OutboxBacklog(counts={}, cap=1, oldest=None)),
        Sample(at=12.0, backlog=OutboxBacklog(counts={}, cap=1, oldest=13_000_000)),
        Sample(at=13.0),
    ]
    shown = series(first, *samples)
    assert shown["in_doubt"] == [4, 0, None, None]
    assert shown["outbox_lag"] == [2.5, 0.0, 0.0, None]


def test_event_counts_are_read_from_a_page_of_ours() -> None:
    store = eo.connect("memory://", sweep_every=None)
    metrics = Metrics(CollectorRegistry()).watch(store)
    kinds = {*FIRST_RUN_KINDS, *DUPLICATE_KINDS, *DELIVERY_KINDS}
    for kind in kinds:
        store.runtime.emit(kind, 'a "scope", with commas')
    counts = count_events(metrics.text().decode())
    assert {kind: count for kind, count in counts.items() if count} == dict.fromkeys(kinds, 1.0)
