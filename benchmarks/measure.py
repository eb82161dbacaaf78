"""Interleaved rounds, medians and spread, ratios against a baseline, and targets that are met or not."""

from __future__ import annotations

import gc
import random
import statistics
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

Measure = Callable[[int], float]
"""Takes the round's number; gives a figure in the table's unit."""


@dataclass
class Case:
    """One line of a table. ``target`` is what our figure must reach against the named case, as a ratio."""

    name: str
    measure: Measure
    targets: dict[str, float] = field(default_factory=dict)
    ours: bool = False


@dataclass
class Table:
    """Cases measured in the same rounds. ``faster_is``: "more" for rates, "less" for times and sizes.

    A ratio is always "how many times as good as the other": of rates ours/theirs, of times theirs/ours. Targets are
    lower bounds of it.
    """

    name: str
    unit: str
    faster_is: str
    cases: list[Case]
    note: str = ""
    rounds: int = 5


@dataclass
class Line:
    name: str
    median: float
    low: float
    high: float
    ours: bool
    ratios: dict[str, float] = field(default_factory=dict)
    targets: dict[str, float] = field(default_factory=dict)

    @property
    def met(self) -> bool:
        return all(self.ratios[name] >= target for name, target in self.targets.items())


@dataclass
class Result:
    name: str
    unit: str
    note: str
    lines: list[Line]

    def to_json(self) -> dict[str, Any]:
        return {**asdict(self), "lines": [{**asdict(line), "met": line.met} for line in self.lines]}


def run(table: Table, progress: Callable[[str], None]) -> Result:
    """Every case once a round, so that a slow moment hits all of them; in another order each time, and then in that
    order backwards, so that none always pays for what the same one before it left to the disk."""
    figures: dict[str, list[float]] = {case.name: [] for case in table.cases}
    for number in range(table.rounds + 1):
        order = random.Random(number // 2).sample(table.cases, len(table.cases))
        for case in order if number % 2 else reversed(order):
            progress(f"{table.name}: round {number}/{table.rounds}, {case.name}")
            figure = case.measure(number)
            if number:  # the first round warms up caches, connections and prepared statements
                figures[case.name].append(figure)
    medians = {name: statistics.median(values) for name, values in figures.items()}
    lines = []
    for case in table.cases:
        ratios = {}
        for other in case.targets if case.targets else ():
            # Round by round, then the median: noise that both sides of a round share cancels out.
            pairs = zip(figures[case.name], figures[other], strict=True)
            each = [a / b if table.faster_is == "more" else b / a for a, b in pairs]
            ratios[other] = statistics.median(each)
        values = figures[case.name]
        lines.append(Line(case.name, medians[case.name], min(values), max(values), case.ours, ratios, case.targets))
    return Result(table.name, table.unit, table.note, lines)


def rate(count: int, work: Callable[[], Any]) -> float:
    """Operations a second of ``work``, which does ``count``."""
    started = time.perf_counter()
    work()
    return count / (time.perf_counter() - started)


def cpu(count: int, work: Callable[[], Any]) -> float:
    """Microseconds of this process's CPU for each of ``count`` operations."""
    started = time.process_time()
    work()
    return (time.process_time() - started) / count * 1e6


def in_turn(cases: Mapping[str, Callable[[], float]], blocks: int) -> dict[str, Measure]:
    """Two hundredths are less than what a machine's moods differ by from one second to the next. So all cases are timed
    in blocks of a few milliseconds, one after the other, and of each the best block of a round counts: the one least
    disturbed. A case makes, times and returns one block; less is better."""
    rounds: dict[int, dict[str, float]] = {}

    def whole(number: int) -> dict[str, float]:
        if number not in rounds:
            best = dict.fromkeys(cases, float("inf"))
            for block in range(blocks):
                for name in list(cases) if block % 2 else list(cases)[::-1]:
                    gc.collect()  # what others left is not this one's to clear away
                    best[name] = min(best[name], cases[name]())
            rounds[number] = best
        return rounds[number]

    return {name: lambda number, name=name: whole(number)[name] for name in cases}  # type: ignore[misc]


def show(result: Result) -> str:
    """A table for the terminal."""
    width = max(len(line.name) for line in result.lines)
    out = [f"{result.name} ({result.unit}){': ' + result.note if result.note else ''}"]
    for line in result.lines:
        text = f"  {line.name:<{width}}  {number(line.median):>9}  [{number(line.low)} to {number(line.high)}]"
        for other, ratio in line.ratios.items():
            target = line.targets[other]
            verdict = "met" if ratio >= target else "MISSED"
            text += f"\n  {'':<{width}}    {ratio:.2f} x {other}, target {target:.3g}: {verdict}"
        out.append(text)
    return "\n".join(out)


def number(value: float) -> str:
    """``value`` with three digits, or whole."""
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def progress_to_stderr() -> Callable[[str], None]:
    """One line that is overwritten in a terminal, nothing in a pipe."""
    if not sys.stderr.isatty():
        return lambda text: None
    return lambda text: print(f"\r\x1b[K{text}", end="", file=sys.stderr, flush=True)
