"""The crash explorer: the guard keeps its promise on every schedule, and the oracle has teeth."""

from __future__ import annotations

import threading
from dataclasses import replace

import pytest

from effectonce.testing.explorer import (
    CONTRACT,
    FAULTS,
    PROMISES,
    RULES,
    SCENARIOS,
    Report,
    Stage,
    explore,
    replay,
    sample,
    scenario,
    shrink,
)
from effectonce.testing.explorer.__main__ import main

from .mutants import MUTANTS, Mutant

#: An exhaustive search takes its time on a busy machine.
pytestmark = pytest.mark.timeout(600)

EXHAUSTIVE = {
    "guard-L": 2,
    "guard-D": 2,
    "guard-S": 2,
    "guard-B": 2,
    "guard-A": 1,
    "guard-G": 1,
    "guard-G2": 1,
    "guard-W": 1,
    "guard-O": 2,
}
SLOW = ("guard-L", "guard-D")
RANDOM = ("guard-L-3x3", "guard-D-3x3", "guard-S-3x3", "guard-A-3x3")
CONTROLS = ("naive-ack-first", "naive-check-then-act", "naive-mark-first")


def kept(report: Report) -> None:
    """No rule was broken; shows the figures under ``pytest -s`` and the timeline where one was."""
    print(f"\n{report}")
    assert report.finding is None, f"\n{report.finding}"
    assert report.lost == 0


# -- the promise


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.slow) if name in SLOW else name for name in EXHAUSTIVE]
)
def test_every_schedule_keeps_the_promise(name: str) -> None:
    """Two workers on one key, every crash point, every fault, every order: DESIGN section 1.

    F01 to F04, F07 to F09, F13, F16, F17, F20, F68.
    """
    report = explore(name, EXHAUSTIVE[name])
    kept(report)
    assert report.complete
    assert report.crash_points
    if SCENARIOS[name].at_most_once:
        assert report.doubled == 0
        assert report.in_doubt > 0, "nothing was ever in doubt, so nothing was tried"
    else:
        assert report.doubled > 0, "the window that mode L and S name was never hit"


@pytest.mark.parametrize("name", RANDOM)
def test_random_schedules_keep_the_promise(name: str) -> None:
    """Three workers on three keys, two copies of each, step by step, with up to six faults.

    F10 to F12, F26, F69, F70.
    """
    report = sample(name, 600, seed=2026)
    kept(report)
    assert report.schedules == 600
    if SCENARIOS[name].at_most_once:
        assert report.doubled == 0


def test_nothing_goes_wrong_where_nothing_goes_wrong() -> None:
    """Without a fault there is exactly one effect, in whatever order two workers get their turns."""
    for name in EXHAUSTIVE:
        report = explore(name, 0)
        kept(report)
        assert report.doubled == 0 or SCENARIOS[name].seen


# -- the oracle has teeth


def test_the_control_arms_lose_and_double() -> None:
    """The same scheduler, broker and faults, without the guard."""
    reports = [explore(name, 2, keep_going=True) for name in CONTROLS]
    for report in reports:
        print(f"\n{report}")
        assert report.finding is not None
    first, check, mark = reports
    assert first.lost > 0
    assert first.doubled > 0
    assert check.doubled > 0
    assert mark.lost > 0


@pytest.mark.parametrize("mutant", MUTANTS, ids=str)
def test_a_mutant_is_caught(mutant: Mutant) -> None:
    report = mutant.search(PROMISES | CONTRACT)
    assert report.finding is not None, f"{mutant} ({mutant.failure}) has survived {report.schedules} schedules"
    assert report.finding.rule in RULES
    assert "VIOLATION" in report.finding.timeline[-1]
    with mutant.in_place():
        again = replay(Stage(scenario(report.finding.scenario)), report.finding.schedule)
    assert again.violation == (report.finding.rule, report.finding.text)
    assert replay(Stage(scenario(report.finding.scenario)), report.finding.schedule).violation is None


@pytest.mark.parametrize("mutant", [mutant for mutant in MUTANTS if mutant.promise], ids=str)
def test_users_would_see_what_a_mutant_does(mutant: Mutant) -> None:
    """By what is lost, doubled or told wrongly alone, without a look at what the store has answered."""
    report = mutant.search(PROMISES)
    assert report.finding is not None, f"{mutant} ({mutant.failure}) has survived {report.schedules} schedules"
    assert report.finding.rule in PROMISES


def test_there_are_mutants_enough() -> None:
    assert len({mutant.name for mutant in MUTANTS}) == len(MUTANTS) >= 50
    assert all(mutant.about for mutant in MUTANTS)


# -- every crash point is visited

CALLS = "claim look complete release refund doubt fail remember effect handler ack park dead".split()  # noqa: SIM905


def test_a_process_is_killed_at_every_point() -> None:
    visited: set[str] = set()
    for name, faults in (
        ("guard-L+crash+crash-after+cancel+raise", 2),
        ("guard-D+crash+raise", 2),
        ("guard-D+crash-after+raise", 2),
        ("guard-A+crash+crash-after+decline", 2),
        ("guard-S+crash+crash-after", 1),
        ("guard-W+crash", 1),
    ):
        visited |= explore(name, faults).crash_points
    for name in ("guard-L-3x3+crash", "guard-S-3x3+crash"):  # where handlers, too, stop before and after
        visited |= sample(name, 150).crash_points
    assert visited == {f"{call}.{when}" for call in CALLS for when in ("before", "after")} | {"wait"}


def test_every_kind_of_fault_is_used_by_a_scenario() -> None:
    assert set().union(*(each.faults for each in SCENARIOS.values())) == set(FAULTS)


# -- the search is sound, steady and short


@pytest.mark.parametrize(("name", "faults"), [("guard-B", 1), ("guard-L+crash+lapse", 1), ("guard-S+crash", 1)])
def test_what_is_pruned_had_been_seen(name: str, faults: int) -> None:
    """Without pruning there are more schedules and no other outcomes."""
    pruned, full = explore(name, faults), explore(name, faults, prune=False)
    assert full.schedules > pruned.schedules
    assert full.outcomes == pruned.outcomes


@pytest.mark.parametrize("name", ["guard-L+crash+lapse+raise", "guard-D+lapse+cancel", "guard-S+crash+mute"])
def test_what_is_not_interleaved_commutes(name: str) -> None:
    """Stopping at every point, between execution and reply too, leads to no other outcomes."""
    coarse, fine = explore(name, 1), explore(f"{name}+fine", 1)
    assert fine.schedules > coarse.schedules
    assert fine.finding is None
    assert fine.outcomes == coarse.outcomes


def test_a_schedule_says_all_there_is_to_say() -> None:
    """The same numbers give the same story, and the same seed the same numbers; no thread, no clock is involved."""
    threads = threading.active_count()
    stories: list[list[str]] = [[], []]
    for story in stories:
        replay(Stage(scenario("guard-A-3x3")), [3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5, 8, 9, 7, 9], story=story)
    assert stories[0] == stories[1]
    assert any("killed" in line or "cancelled" in line or "lost" in line for line in stories[0])
    one, two = (sample("guard-A-3x3", 20, seed=5) for _ in range(2))
    kept(one)
    assert (one.steps, one.faults, one.outcomes) == (two.steps, two.faults, two.outcomes)
    assert threading.active_count() == threads


def test_a_violation_is_made_short_and_replayed_by_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    """From a random schedule on three keys to the few choices that matter."""
    stage = Stage(replace(scenario("naive-mark-first"), workers=3, keys=3))
    noisy = [1, 0, 2, 0, 1, 1, 0, 3, 1, 0, 2, 2, 1, 0, 0, 1, 1, 2]
    before = replay(stage, noisy)
    assert before.violation is not None
    short = shrink(stage, noisy)
    after = replay(stage, short)
    assert after.violation is not None
    assert after.violation[0] == before.violation[0]
    assert len(short) < len(noisy)
    assert sum(map(bool, short)) <= 2, f"one fault is enough to lose a message, and {short} has more"
    assert after.faults <= before.faults

    finding = explore("naive-check-then-act", 1).finding
    assert finding is not None
    line = finding.line.rpartition(" ")[2]
    assert main(["--replay", line]) == 1
    assert capsys.readouterr().out.splitlines() == finding.timeline


def test_the_shell_explores_and_refuses_what_it_does_not_know(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["guard-S", "--faults", "0"]) == 0
    assert "0 lost" in capsys.readouterr().out
    assert main(["guard-L-3x3", "--random", "5"]) == 0
    assert main(["--replay", "guard-L:"]) == 0
    assert "no promise is broken" in capsys.readouterr().out
    assert main(["--list"]) == 0
    listed = capsys.readouterr().out
    assert [name for name in SCENARIOS if name not in listed] == []
    with pytest.raises(SystemExit):
        main(["guard-X"])
