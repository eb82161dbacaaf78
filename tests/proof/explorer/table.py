"""Every scenario in turn, and the results as rows of one table, which `make prove` prints."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final, Literal, NamedTuple

from .catalogue import LARGE, NAIVE
from .search import SearchReport, explore, sample

Bounds = Literal["short", "full"]

#: How many faults at most, where every schedule is tried. In every test run some scenarios have fewer kinds of them.
SHORT: Final = {
    "guard-L": 1,
    "guard-D": 1,
    "guard-S": 1,
    "guard-K": 1,
    "guard-A": 1,
    "guard-G": 0,
    "guard-O": 1,
    "guard-G2+crash+crash-after+lapse": 1,
    "guard-B+crash+crash-after+lapse+beat-late+beat-mute": 2,
    "guard-W+crash+crash-after+raise+lapse": 1,
    "inbox-T": 1,
    "inbox-first+crash+crash-after+late": 2,
    "inbox-A+crash+crash-after+raise": 1,
    "intents-K+crash+crash-after+lapse+age": 1,
    "intents-I+crash+crash-after+mute": 1,
    "intents-R": 1,
    "intents-K-recover+crash": 1,
    "intents-I-recover+crash-after": 1,
    "outbox-batch": 1,
    "outbox-relay+crash+crash-after+late": 1,
    "outbox-send+crash+crash-after": 1,
    "saga-S": 1,
    "saga-T": 1,
    "saga-resume+crash+crash-after": 1,
    "worker-L": 0,
    "worker-to": 0,
    "worker-E+stop": 1,
    "worker-B+crash+crash-after": 1,
    "redrive+crash+crash-after": 1,
    "worker-T": 0,
    "worker-TB": 1,
    "worker-TO": 1,
    "worker-O+raise": 1,
    "intents-K-joined+crash+crash-after+lapse": 1,
    "intents-I-joined+crash+mute": 1,
    "intents-K-joined-recover+crash": 1,
}
#: The same in `make prove`: the cheap ones first, since the time that they leave is for the others.
FULL: Final = {
    "guard-D": 1,
    "guard-K": 1,
    "guard-A": 1,
    "guard-G2": 1,
    "guard-W": 1,
    "guard-B": 2,
    "intents-R": 1,
    "inbox-A": 1,
    "inbox-first": 2,
    "outbox-batch": 1,
    "outbox-relay": 1,
    "outbox-send": 1,
    "intents-I": 1,
    "intents-K": 1,
    "intents-I-joined": 1,
    "intents-K-joined": 1,
    "redrive": 1,
    "saga-T": 2,
    "saga-resume": 1,
    "worker-E": 1,
    "worker-B": 1,
    "worker-TO": 2,
    "worker-TB": 1,
    "worker-O": 1,
    "intents-I-recover": 1,
    "guard-S": 2,
    "guard-O": 2,
    "inbox-T": 2,
    "outbox-batch+crash+crash-after+mute": 2,
    "outbox-relay+crash+reject+late": 2,
    "worker-O+raise": 2,
    "guard-G": 1,
    "saga-S": 2,
    "intents-K-recover": 1,
    "intents-K-joined-recover": 1,
    "worker-TB+crash+raise": 2,
    "worker-T": 1,
    "worker-to": 1,
    "worker-L": 1,
    "guard-L": 2,
}

#: How many faults at most, in a random schedule.
RANDOM: Final = 6

#: The modes of DESIGN section 1, and the tools that have none.
MODES: Final = {
    "guard-S": "S",
    "guard": "L",
    "worker-T": "T",
    "worker": "L",
    "inbox": "T",
    "intents-K": "K",
    "intents": "I",
}


class SearchRow(NamedTuple):
    """The result of one search.

    ``max_faults``: how many faults one schedule may have. ``seed``: None where every schedule was tried, and
    ``complete`` says whether there was time for all of them. ``broken``: the violation, with its timeline and the line
    that replays it; the control arms (mode ``naive``) must have one.
    """

    mode: str
    scenario: str
    schedules: int
    max_faults: int
    faults: int
    lost: int
    doubled: int
    in_doubt: int
    seed: int | None
    crash_points: frozenset[str]
    seconds: float
    complete: bool
    broken: str


def mode_of(name: str) -> str:
    part = name.partition("+")[0].partition("-")[0]
    return next((mode for begin, mode in MODES.items() if name.startswith(begin)), part)


def explore_all(
    bounds: Bounds = "full",
    *,
    seconds: float | None = None,
    schedules: int = 20_000,
    seed: int = 0,
    progress: Callable[[SearchRow], None] | None = None,
) -> list[SearchRow]:
    """Every scenario: the small ones exhaustively up to ``bounds``, the large ones at random, and the control arms.

    ``schedules`` is how many random ones there are in all. Each row has an equal share of ``seconds``, and of what the
    rows before it have left of theirs; a search that needs more is cut short, and is not ``complete``. ``progress`` is
    called with each row when it is done.
    """
    exhaustive = SHORT if bounds == "short" else FULL
    end = None if seconds is None else time.monotonic() + seconds
    rows: list[SearchRow] = []

    def limit() -> float:
        rows_left = len(NAIVE) + len(exhaustive) + len(LARGE) - len(rows)
        return 1e9 if end is None else max(0.0, end - time.monotonic()) / rows_left

    def add(mode: str, report: SearchReport, max_faults: int, seed: int | None) -> None:
        rows.append(_make_row(mode, report, max_faults, seed))
        if progress is not None:
            progress(rows[-1])

    for scenario in NAIVE:
        max_faults = 1 if scenario.part == "redrive" else 2
        report = explore(scenario.name, max_faults, keep_going=True, limit=limit())
        if report.finding is None:  # a control arm must break a promise, whatever time that takes
            report = explore(scenario.name, max_faults)
        add("naive", report, max_faults, None)
    for name, max_faults in exhaustive.items():
        add(mode_of(name), explore(name, max_faults, limit=limit()), max_faults, None)
    for index, scenario in enumerate(LARGE):
        share = schedules // len(LARGE) + (index < schedules % len(LARGE))
        if share:
            report = sample(scenario.name, share, seed=seed, faults=RANDOM, limit=limit())
            add(mode_of(scenario.name), report, RANDOM, seed)
    return rows


def _make_row(mode: str, report: SearchReport, max_faults: int, seed: int | None) -> SearchRow:
    return SearchRow(
        mode=mode,
        scenario=report.scenario,
        schedules=report.schedules,
        max_faults=max_faults,
        faults=report.faults,
        lost=report.lost,
        doubled=report.doubled,
        in_doubt=report.in_doubt,
        seed=seed,
        crash_points=frozenset(report.crash_points),
        seconds=report.seconds,
        complete=report.complete,
        broken="" if report.finding is None else str(report.finding),
    )
