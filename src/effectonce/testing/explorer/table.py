"""Every scenario in turn, and what came of it as rows of one table: what `make prove` prints."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final, Literal, NamedTuple

from .catalogue import LARGE, NAIVE
from .search import Report, explore, sample

Bounds = Literal["short", "full"]

#: How many faults at most, where every schedule is tried: in every test run, and in a proof.
SHORT: Final = {
    "guard-L": 1, "guard-D": 1, "guard-S": 1, "guard-K": 1, "guard-B": 2, "guard-A": 1, "guard-G": 0, "guard-G2": 1,
    "guard-W": 1, "guard-O": 1, "inbox-T": 1, "inbox-first": 2, "inbox-A": 1, "intents-K": 1, "intents-I": 1,
    "intents-R": 1, "outbox-relay": 1, "outbox-batch": 1, "outbox-send": 1, "saga-S": 1, "saga-T": 1, "redrive": 1,
}  # fmt: skip
FULL: Final = {
    **SHORT, "guard-L": 2, "guard-S": 2, "guard-G": 1, "guard-O": 2, "inbox-T": 2, "saga-S": 2, "saga-T": 2,
    "outbox-batch+crash+crash-after+mute": 2, "outbox-relay+crash+reject+late": 2,
}  # fmt: skip

#: The modes of DESIGN section 1, and the tools that have none.
MODES: Final = {"guard-S": "S", "guard": "L", "inbox": "T", "intents-K": "K", "intents": "I"}


class Row(NamedTuple):
    """What one search came to. ``seed``: None where every schedule was tried. ``broken``: the violation, with its
    timeline and the line that replays it; of the control arms (mode ``naive``) there must be one."""

    mode: str
    scenario: str
    schedules: int
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
    part = name.partition("-")[0]
    return next((mode for begin, mode in MODES.items() if name.startswith(begin)), part)


def explore_all(
    bounds: Bounds = "full",
    *,
    seconds: float | None = None,
    schedules: int = 20_000,
    seed: int = 0,
    progress: Callable[[Row], None] | None = None,
) -> list[Row]:
    """Every scenario: the small ones exhaustively up to ``bounds``, the large ones at random, and the control arms.

    ``schedules`` is how many random ones there are in all. After ``seconds`` what is left is cut short, and its rows
    are not ``complete``; each row is told to ``progress`` when it is done.
    """
    end = time.monotonic() + (seconds if seconds is not None else 1e9)
    rows: list[Row] = []

    def add(mode: str, report: Report, of: int | None) -> None:
        rows.append(_row(mode, report, of))
        if progress is not None:
            progress(rows[-1])

    for each in NAIVE:
        add("naive", explore(each.name, 1 if each.part == "redrive" else 2, keep_going=True, limit=_left(end)), None)
    for name, faults in (SHORT if bounds == "short" else FULL).items():
        add(mode_of(name), explore(name, faults, limit=_left(end)), None)
    for at, each in enumerate(LARGE):
        share = schedules // len(LARGE) + (at < schedules % len(LARGE))
        if share:
            add(mode_of(each.name), sample(each.name, share, seed=seed, limit=_left(end)), seed)
    return rows


def _left(end: float) -> float:
    return max(0.0, end - time.monotonic())


def _row(mode: str, report: Report, seed: int | None) -> Row:
    return Row(
        mode,
        report.scenario,
        report.schedules,
        report.faults,
        report.lost,
        report.doubled,
        report.in_doubt,
        seed,
        frozenset(report.crash_points),
        report.seconds,
        report.complete,
        "" if report.finding is None else str(report.finding),
    )
