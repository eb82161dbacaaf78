"""Search the schedules of a scenario, all of them or many at random, and shorten one that breaks a promise.

A schedule is a list of small numbers, one for each choice; beyond its end every choice is 0, the plain course.
"""

from __future__ import annotations

import gc
import logging
import random
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from unittest import mock

from .actions import FREE, perform
from .catalogue import scenario as find_scenario
from .moves import moves
from .scenario import Scenario
from .simulation import ENFORCED, Move, Simulation
from .state_fingerprint import fingerprint
from .system import SystemUnderTest
from .systems import system_for

Choose = Callable[[Simulation, list[Move]], int]
Rules = frozenset[str]


@dataclass
class Counterexample:
    """A violation: the rule, its text, and the shortest schedule found that leads to it."""

    scenario: str
    rule: str
    text: str
    schedule: list[int]
    timeline: list[str]

    @property
    def line(self) -> str:
        """The command line that replays it."""
        numbers = ",".join(map(str, self.schedule))
        option = "" if self.rule in ENFORCED else f"--also {self.rule} "
        return f"python -m tests.proof.explorer {option}--replay {self.scenario}:{numbers}"

    def __str__(self) -> str:
        return "\n".join([f"{self.rule}: {self.text}", *self.timeline, f"replay: {self.line}"])


@dataclass
class SearchReport:
    """The result of a search. ``lost``, ``doubled`` and the rest are summed over the keys of all schedules that were
    run to their end; those that reach a state which was explored before end there."""

    scenario: str
    schedules: int = 0
    states: int = 0  # distinct states with a choice of moves
    steps: int = 0
    faults: int = 0
    lost: int = 0
    doubled: int = 0
    in_doubt: int = 0
    dead: int = 0
    seconds: float = 0.0
    complete: bool = True  # there is nothing left to explore
    rules: Counter[str] = field(default_factory=Counter)  # violations of each
    crash_points: set[str] = field(default_factory=set)  # at which a process was killed
    outcomes: set[tuple[object, ...]] = field(default_factory=set)  # every way in which a schedule ended
    finding: Counterexample | None = None

    def count(self, simulation: Simulation) -> None:
        """Add one schedule."""
        self.schedules += 1
        self.steps += simulation.steps
        self.faults += simulation.faults
        self.crash_points |= simulation.crash_points
        if simulation.violation is not None:
            self.rules[simulation.violation[0]] += 1
        if not simulation.tally:
            return
        outcome: list[object] = []
        for key, (lost, repeated) in sorted(simulation.tally.items()):
            states = sorted(entry.state for entry in simulation.broker.entries if entry.key == key and not entry.probe)
            outcome.append((key, lost, repeated, tuple(states), *simulation.system.summary(simulation, key)))
            self.lost += lost
            self.doubled += repeated
            self.in_doubt += "parked" in states
            self.dead += "dead" in states
        self.outcomes.add(tuple(outcome))

    def __str__(self) -> str:
        return (
            f"{self.scenario}: {self.schedules} schedules ({self.states} states, {self.steps} steps, "
            f"{self.faults} faults) in {self.seconds:.1f} s{'' if self.complete else ', not all'}: "
            f"{self.lost} lost, {self.doubled} doubled, {self.in_doubt} in doubt, {self.dead} dead-lettered, "
            f"{sum(self.rules.values())} violations{f' {dict(self.rules)}' if self.rules else ''}"
        )


class AlreadyExplored(Exception):
    """This state was explored before."""


@contextmanager
def _quiet_and_deterministic() -> Iterator[None]:
    """Disable the log, chance (every pause is as long as it may be) and the garbage collector, which runs between
    schedules."""
    log = logging.getLogger("effectonce")
    before, log.disabled = log.disabled, True
    collecting = gc.isenabled()
    gc.disable()
    try:
        with mock.patch.object(random, "uniform", lambda low, high: high):
            yield
    finally:
        log.disabled = before
        if collecting:
            gc.enable()


def _always(simulation: Simulation) -> bool:
    return True


def play(simulation: Simulation, choose: Choose, allows_faults: Callable[[Simulation], bool] = _always) -> None:
    """Run ``simulation`` to its end, or to its first violation, picking moves by ``choose``.

    Where it does not allow faults there are none to pick. They stand behind all others, so the numbers mean the same.
    """

    def list_options() -> list[Move]:
        return moves(simulation, 1_000_000 if allows_faults(simulation) else 0)

    def run_others() -> None:
        for _ in range(4):
            options: list[Move] = [("stay",), *(move for move in list_options() if not move[0].startswith("beat"))]
            simulation.free_moves = sum(move[0] in FREE for move in options)
            pick = options[choose(simulation, options)] if simulation.violation is None else options[0]
            if pick == options[0]:
                return
            perform(simulation, pick)

    simulation.run_others = run_others
    while simulation.violation is None:
        options = list_options()
        if not options:
            simulation.system.finish(simulation)
            return
        perform(simulation, options[choose(simulation, options)])


# -- all of them


@_quiet_and_deterministic()
def explore(
    scenario: Scenario | str,
    faults: int = 2,
    *,
    keep_going: bool = False,
    prune: bool = True,
    rules: Rules = ENFORCED,
    limit: float = 3600.0,
) -> SearchReport:
    """Run every schedule of ``scenario`` with at most ``faults`` faults.

    A schedule that reaches a state which another one has explored ends there (not with ``prune=False``). Stops at the
    first violation, unless ``keep_going``; after ``limit`` seconds the report is not ``complete``.
    """
    system = system_for(find_scenario(scenario) if isinstance(scenario, str) else scenario)
    report = SearchReport(system.scenario.name)
    began = time.monotonic()
    seen: set[int] = set()
    path: list[tuple[list[Move], int]] = []
    while True:
        simulation = Simulation(system, rules=rules)
        try:
            _descend(simulation, path, seen if prune else None, faults)
        except AlreadyExplored:
            pass
        simulation.end()
        report.count(simulation)
        if report.schedules % 250 == 0:
            gc.collect()
        if simulation.violation is not None and report.finding is None:
            report.finding = make_counterexample(system, [choice for _, choice in path], rules=rules)
        while path and path[-1][1] + 1 == len(path[-1][0]):
            path.pop()
        report.complete = not path
        if not path or (report.finding is not None and not keep_going) or time.monotonic() > began + limit:
            break
        options, choice = path[-1]
        path[-1] = (options, choice + 1)
    report.states, report.seconds = len(seen), time.monotonic() - began
    return report


def _descend(simulation: Simulation, path: list[tuple[list[Move], int]], seen: set[int] | None, budget: int) -> None:
    """Run the schedule that ``path`` begins, and extend ``path`` by its plain course."""
    for options, choice in path:
        perform(simulation, options[choice])
        if simulation.violation is not None:
            return
    while simulation.violation is None:
        options = moves(simulation, budget)
        if not options:
            simulation.system.finish(simulation)
            return
        if seen is not None and len(options) > 1:
            state = fingerprint(simulation)
            if state in seen:
                raise AlreadyExplored
            seen.add(state)
        path.append((options, 0))
        perform(simulation, options[0])


# -- many at random


@_quiet_and_deterministic()
def sample(
    scenario: Scenario | str,
    schedules: int,
    *,
    seed: int = 0,
    faults: int = 6,
    rules: Rules = ENFORCED,
    limit: float = 3600.0,
) -> SearchReport:
    """Run that many schedules at random, each with up to ``faults`` faults; fewer where ``limit`` seconds are over.

    The same seed gives the same schedules.
    """
    system = system_for(find_scenario(scenario) if isinstance(scenario, str) else scenario)
    report = SearchReport(system.scenario.name, complete=False)
    began = time.monotonic()
    for number in range(schedules):
        if time.monotonic() > began + limit:
            break
        dice = _Dice(f"{seed}/{number}", faults)
        simulation = Simulation(system, rules=rules)
        play(simulation, dice.choose, dice.allows_fault)
        simulation.end()
        report.count(simulation)
        if number % 100 == 99:
            gc.collect()
        if simulation.violation is not None:
            report.finding = make_counterexample(system, dice.schedule, rules=rules)
            break
    report.seconds = time.monotonic() - began
    return report


class _Dice:
    """One random schedule: how many faults it may have, how likely each is, and the numbers that it picked."""

    def __init__(self, seed: str, faults: int) -> None:
        self._random = random.Random(seed)
        self._budget = self._random.randint(0, faults)
        self._fault_rate = self._random.choice((0.05, 0.1, 0.2))
        self.schedule: list[int] = []

    def allows_fault(self, simulation: Simulation) -> bool:
        """Whether the next move is a fault."""
        return simulation.faults < self._budget and self._random.random() < self._fault_rate

    def choose(self, simulation: Simulation, options: list[Move]) -> int:
        free = min(simulation.free_moves, len(options))
        pick = self._random.randrange(free, len(options)) if free < len(options) else self._random.randrange(free)
        self.schedule.append(pick)
        return pick


# -- one of them


@_quiet_and_deterministic()
def replay(
    system: SystemUnderTest, schedule: Sequence[int], *, rules: Rules = ENFORCED, story: list[str] | None = None
) -> Simulation:
    """Run one schedule again. A number that is too large for its choice picks the last."""
    simulation = Simulation(system, rules=rules, story=story)
    numbers = iter(schedule)
    play(simulation, lambda _, options: min(next(numbers, 0), len(options) - 1))
    simulation.end()
    return simulation


def make_counterexample(system: SystemUnderTest, schedule: Sequence[int], *, rules: Rules = ENFORCED) -> Counterexample:
    """Shorten ``schedule``, and return the violation that it leads to."""
    short = shrink(system, schedule, rules=rules)
    story: list[str] = []
    simulation = replay(system, short, rules=rules, story=story)
    rule, text = simulation.violation or (
        "unexpected",
        "this violation does not repeat: the code under test is not deterministic",
    )
    return Counterexample(system.scenario.name, rule, text, short, story)


def shrink(system: SystemUnderTest, schedule: Sequence[int], *, rules: Rules = ENFORCED, tries: int = 400) -> list[int]:
    """Return a schedule that breaks the same rule with no more faults, is shorter and has smaller numbers.

    It is as short as ``tries`` runs make it. Where ``schedule`` breaks no rule, it is returned without trailing zeros.
    """
    best = _trim(schedule)
    simulation = replay(system, best, rules=rules)
    if simulation.violation is None:
        return best
    rule, faults = simulation.violation[0], simulation.faults
    improved = True
    while improved:
        improved = False
        for candidate in _list_smaller(best):
            if (len(candidate), sum(candidate)) >= (len(best), sum(best)):
                continue
            if tries == 0:
                return best
            tries -= 1
            simulation = replay(system, candidate, rules=rules)
            if simulation.violation is not None and simulation.violation[0] == rule and simulation.faults <= faults:
                best, faults, improved = _trim(candidate), simulation.faults, True
                break
    return best


def _list_smaller(schedule: list[int]) -> Iterator[list[int]]:
    yield schedule[: len(schedule) // 2]
    for size in (16, 8, 4, 2, 1):
        for start in range(len(schedule) - size, -1, -max(1, size // 2)):
            yield schedule[:start] + schedule[start + size :]
    for at, number in enumerate(schedule):
        if number:
            yield [*schedule[:at], 0, *schedule[at + 1 :]]
    for at, number in enumerate(schedule):
        if number > 1:
            yield [*schedule[:at], number - 1, *schedule[at + 1 :]]
    # Where a choice is left out, those after it may have other numbers.
    for size in (1, 2, 3):
        for at in range(len(schedule) - size - 1):
            for number in range(6):
                yield [*schedule[:at], number, *schedule[at + size + 1 :]]


def _trim(schedule: Sequence[int]) -> list[int]:
    best = list(schedule)
    while best and best[-1] == 0:
        best.pop()
    return best
