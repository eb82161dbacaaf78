"""The crash explorer: the guard keeps its promise on every schedule, and the oracle has teeth."""

from __future__ import annotations

import threading
from dataclasses import replace
from types import SimpleNamespace

import pytest

from effectonce.core import claim_errors
from tests.proof.explorer import (
    CONTRACT,
    FAULTS,
    PROMISES,
    RULES,
    SCENARIOS,
    Counterexample,
    SearchReport,
    SearchRow,
    explore,
    explore_all,
    replay,
    sample,
    scenario,
    shrink,
    system_for,
    table,
)
from tests.proof.explorer.__main__ import main
from tests.proof.explorer.catalogue import LARGE, NAIVE
from tests.proof.explorer.scenario import LEASE, MAX_CRASHES
from tests.proof.explorer.table import FULL, SHORT
from tests.proof.explorer.tools import worker

from .mutants import MUTANTS, Mutant

#: An exhaustive search takes longer on a busy machine.
pytestmark = pytest.mark.timeout(600)

#: The crash points of each scenario: before and after each of these.
GUARDED = "claim effect handler complete ack"
TRANSACTION = "begin insert savepoint effect store release commit ack"
POINTS = {
    "guard-L": f"{GUARDED} release refund",
    "guard-D": f"{GUARDED} doubt park",
    "guard-S": "look effect handler remember ack",
    "guard-A": f"{GUARDED} release fail dead",
    "inbox-T": f"{TRANSACTION} find",
    "inbox-first": "begin insert effect commit ack",
    "inbox-A": f"{TRANSACTION} count uncount",
    "intents-K": "claim note call complete ack",
    "intents-I": "claim note call complete ack",
    "outbox-relay": "lease publish settle",
    "outbox-send": f"{TRANSACTION} send lease publish settle",
    "saga-S": "claim call note complete ack",
    "saga-T": "claim call note complete ack wait",
    "saga-resume": "claim call note complete read_chunk",
    "worker-B": "receive claim effect handler complete",
    "worker-TB": "receive begin insert_many savepoint effect handler release commit",
    "intents-K-joined": "claim note call begin effect send join commit ack",
    "redrive": f"{GUARDED} browse predict publish remove",
}


def points(words: str) -> set[str]:
    """Return the crash points before and after each of these operations."""
    names = words.split()
    waiting = {"wait"} & set(names)
    return waiting | {f"{name}.{when}" for name in names if name != "wait" for when in ("before", "after")}


#: Those that take two faults to reach: see `test_a_process_is_killed_at_every_point`.
NEEDS_TWO_FAULTS = {
    "guard-L": points("release refund"),
    "guard-D": points("doubt park"),
    "guard-A": points("release fail dead"),
}
#: Those that only the large scenarios have, which stop after every execution.
STEPWISE = {"guard-L-3x3": {"handler.after", "effect.after"}, "guard-S-3x3": {"look.after"}}


def assert_promise_kept(report: SearchReport) -> None:
    """Require that no rule was broken. Shows the figures under ``pytest -s``, and the timeline of a violation."""
    print(f"\n{report}")
    assert report.finding is None, f"\n{report.finding}"
    assert report.lost == 0
    scenario = SCENARIOS[report.scenario.partition("+")[0]]
    if scenario.part not in ("guard", "worker") or scenario.at_most_once:
        assert report.doubled == 0


# -- the promise


@pytest.mark.quick_on(
    "guard-L",
    "guard-D",
    "guard-S",
    "guard-A",
    "inbox-T",
    "outbox-relay",
    "intents-R",
    "saga-S",
    "saga-T",
    "worker-L",
    "worker-T",
)
@pytest.mark.parametrize("name", SHORT)
def test_every_schedule_keeps_the_promise(name: str) -> None:
    """Two workers on one key, every crash point, every fault, every order: DESIGN section 1.

    The guard F01 to F04, F07 to F09, F13, F16, F17, F20, F68; the inbox F30, F33; intents F03; outbox and relay F41 to
    F45; sagas F48 to F50, and their recovery F07; redrive F51; the worker F05, F06, F20, F52, F54, F57, F58, in
    mode T F30 and F33, too; joined completions F33.
    """
    faults = SHORT[name]
    report = explore(name, faults)
    assert_promise_kept(report)
    assert report.complete
    reached_elsewhere = set().union(NEEDS_TWO_FAULTS.get(name, ()), *STEPWISE.values())
    base = name.partition("+")[0]
    assert points(POINTS.get(base, "")) - reached_elsewhere <= report.crash_points
    if SCENARIOS[base].at_most_once or base in ("intents-K", "intents-I", "intents-I-joined"):
        assert report.in_doubt > 0, "nothing was ever in doubt, so nothing was tried"
    elif name.startswith("guard-") and faults:
        assert report.doubled > 0, "the window that mode L and S name was never hit"


@pytest.mark.quick_once
@pytest.mark.parametrize("name", [large.name for large in LARGE])
def test_random_schedules_keep_the_promise(name: str) -> None:
    """Three workers on three keys, two copies of each, step by step, with up to six faults.

    F10 to F12, F26, F42, F43, F48, F49, F51, F69, F70.
    """
    report = sample(name, 120, seed=2026)
    assert_promise_kept(report)
    assert report.schedules == 120
    assert report.crash_points >= STEPWISE.get(name, set())


def test_f48_a_saga_whose_takeover_was_given_back_is_as_old_as_its_first_claim() -> None:
    """A process stalls in a step; a second one takes the saga over, is cancelled before it runs, and gives it back
    uncounted; a third one resumes it. The step is older than the provider's window, so it is not repeated blindly."""
    schedule = [0, 3, 2, 0, 1, 1, 0, 0, 3, 17, 0, 0, 0, 7]
    assert replay(system_for(scenario("saga-resume-3x3")), schedule).violation is None


def test_without_faults_there_is_exactly_one_effect() -> None:
    """In whatever order two workers run."""
    for name in SHORT:
        report = explore(name, 0)
        assert_promise_kept(report)
        assert report.doubled == 0 or scenario(name).seen


def test_the_table_has_every_mode() -> None:
    """`make prove` prints it; without enough time its rows say that they are not complete."""
    reported: list[SearchRow] = []
    rows = explore_all("short", seconds=0.0, schedules=len(LARGE), seed=7, progress=reported.append)
    assert reported == rows
    assert {row.mode for row in rows} == {"L", "S", "T", "K", "I", "outbox", "saga", "redrive", "naive"}
    assert {row.scenario for row in rows} >= {*SHORT, *(large.name for large in LARGE)}
    assert {row.max_faults for row in rows if row.seed == 7} == {6}
    assert all(bool(row.broken) == (row.mode == "naive") for row in rows)
    assert {row.seed for row in rows} == {None, 7}
    assert all(FULL[name.partition("+")[0]] >= faults for name, faults in SHORT.items())


def test_time_is_divided_between_the_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each has its share, however long the one before could run; the time that one leaves is for the next."""
    now, limits = [0.0], list[float]()

    def search(name: str, *bounds: int, limit: float, **options: object) -> SearchReport:
        limits.append(limit)
        now[0] += 0.0 if len(limits) == 1 else limit
        return SearchReport(name, finding=Counterexample(name, "lost", "", [], []))

    monkeypatch.setattr(table, "time", SimpleNamespace(monotonic=lambda: now[0]))
    monkeypatch.setattr(table, "explore", search)
    monkeypatch.setattr(table, "sample", search)
    rows = explore_all("full", seconds=60.0)
    assert len(rows) == len(limits) == len(NAIVE) + len(FULL) + len(LARGE)
    assert limits[0] == pytest.approx(60.0 / len(rows))
    assert limits[1:] == pytest.approx([60.0 / (len(rows) - 1)] * (len(rows) - 1))
    assert {row.max_faults for row in rows if row.scenario == "guard-L"} == {2}


# -- the oracle has teeth


#: What each control arm does wrong.
CONTROLS = {
    "naive-ack-first": "lost doubled",
    "naive-check-then-act": "doubled",
    "naive-mark-first": "lost",
    "naive-row-first": "lost",
    "naive-effect-first": "doubled",
    "naive-new-key": "doubled",
    "naive-mark-before": "lost doubled",
    "naive-publish-first": "doubled",
    "naive-commit-first": "lost doubled",
    "naive-undo-blindly": "lost doubled",
    "naive-remove-first": "lost",
}


@pytest.mark.quick_once
@pytest.mark.parametrize("name", CONTROLS)
def test_a_control_arm_loses_or_doubles(name: str) -> None:
    """The same scheduler, broker, database, provider and faults, without our code."""
    report = explore(name, 1 if name == "naive-remove-first" else 2, keep_going=True)
    print(f"\n{report}")
    assert report.finding is not None
    seen = {word for word, count in (("lost", report.lost), ("doubled", report.doubled)) if count}
    assert seen == set(CONTROLS[name].split())


def test_every_control_arm_is_tried() -> None:
    assert {control.name for control in NAIVE} == CONTROLS.keys()


@pytest.mark.quick_once
@pytest.mark.parametrize("mutant", MUTANTS, ids=str)
def test_a_mutant_is_caught(mutant: Mutant) -> None:
    """By the promises alone, where users notice it; else also by the store's contract."""
    rules = PROMISES if mutant.promise else PROMISES | CONTRACT
    report = mutant.search(rules)
    assert report.finding is not None, f"{mutant} ({mutant.failure}) has survived {report.schedules} schedules"
    assert report.finding.rule in RULES
    assert "VIOLATION" in report.finding.timeline[-1]
    with mutant.in_place():
        again = replay(system_for(scenario(report.finding.scenario)), report.finding.schedule, rules=rules)
    assert again.violation == (report.finding.rule, report.finding.text)
    assert replay(system_for(scenario(report.finding.scenario)), report.finding.schedule).violation is None


def test_there_are_a_hundred_mutants_with_names_of_their_own() -> None:
    assert len({mutant.name for mutant in MUTANTS}) == len(MUTANTS) >= 100
    assert all(mutant.about for mutant in MUTANTS)


# -- every crash point is visited


@pytest.mark.quick_on("saga-S")
@pytest.mark.parametrize(
    ("name", "count", "words"),
    [
        ("guard-L+crash+crash-after+raise", 2, "release"),
        ("guard-L-3x3+crash+cancel", 150, "refund"),
        ("guard-D+crash+crash-after+raise", 2, "doubt park"),
        ("guard-A+crash+crash-after+decline", 2, "fail dead"),
        ("intents-I+crash+crash-after+lose", 2, "doubt park"),
        ("intents-K+crash+crash-after+decline", 2, "fail dead"),
        ("saga-S+crash+crash-after+decline", 2, "fail dead"),
        ("worker-T-3x3+crash+redeliver", 100, "count"),
    ],
)
def test_a_process_is_killed_at_every_point(name: str, count: int, words: str) -> None:
    """Also at operations that only a failure needs: a release, a doubt, a dead letter, a counted start."""
    report = sample(name, count) if scenario(name).fine else explore(name, count)
    assert points(words) <= report.crash_points


def test_there_are_at_least_forty_crash_points() -> None:
    assert len(set().union(*map(points, POINTS.values()))) >= 40


def test_every_kind_of_fault_is_used_by_a_scenario() -> None:
    assert set().union(*(listed.faults for listed in SCENARIOS.values())) == set(FAULTS)


# -- the search is sound and deterministic, and its counterexamples are short


@pytest.mark.quick_on("guard-B")
@pytest.mark.parametrize(
    ("name", "faults"),
    [("guard-B", 1), ("guard-L+crash+lapse", 1), ("guard-S+crash", 1), ("worker-L", 0), ("worker-T", 0)],
)
def test_pruned_schedules_have_no_other_outcomes(name: str, faults: int) -> None:
    """Without pruning there are more schedules, with the same outcomes."""
    pruned, full = explore(name, faults), explore(name, faults, prune=False)
    assert full.schedules > pruned.schedules
    assert full.outcomes == pruned.outcomes


@pytest.mark.quick_on("saga-S")
@pytest.mark.parametrize("name", ["guard-L+lapse", "guard-D+crash", "guard-S+mute", "inbox-T+crash", "saga-S+crash"])
def test_moves_that_are_not_interleaved_commute(name: str) -> None:
    """Stopping at every point, between execution and reply too, leads to no other outcomes."""
    coarse, fine = explore(name, 1), explore(f"{name}+fine", 1)
    assert fine.schedules > coarse.schedules
    assert fine.finding is None
    assert fine.outcomes == coarse.outcomes


def test_a_schedule_determines_the_run() -> None:
    """The same numbers give the same story, and the same seed the same numbers; no thread, no clock is involved."""
    threads = threading.active_count()
    stories: list[list[str]] = [[], []]
    for story in stories:
        replay(system_for(scenario("guard-A-3x3")), [3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5, 8, 9, 7, 9], story=story)
    assert stories[0] == stories[1]
    assert any("killed" in line or "cancelled" in line or "lost" in line for line in stories[0])
    one, two = (sample("guard-A-3x3", 20, seed=5) for _ in range(2))
    assert_promise_kept(one)
    assert (one.steps, one.faults, one.outcomes) == (two.steps, two.faults, two.outcomes)
    assert threading.active_count() == threads


@pytest.mark.parametrize("max_crashes", [MAX_CRASHES, 3])
def test_f20_a_message_is_parked_after_that_many_crashes_and_not_before(
    max_crashes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two workers whose leases are never renewed, and handlers that outlast them: each takes the other's claim."""
    monkeypatch.setattr(worker, "MAX_CRASHES", max_crashes)
    # The schedule below counts every step: a duplicate comes back when the lease ends, and not before.
    monkeypatch.setattr(claim_errors, "FIRST_DUPLICATE_DELAY_S", LEASE / 1e6)
    takes_over = {3, 14, 20, 21, *range(56, 345, 36)}
    story: list[str] = []
    simulation = replay(system_for(scenario("worker-E")), [int(at in takes_over) for at in range(345)], story=story)
    assert any(f"claimed, attempt {max_crashes + 1}," in line for line in story)
    if max_crashes == MAX_CRASHES:
        assert simulation.violation is None
        assert sum("is dead" in line for line in story) == 3
    else:
        assert simulation.violation is not None
        assert simulation.violation[0] == "lost"


def test_a_violation_is_shortened_and_replayed_by_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    """From a random schedule on three keys to the few choices that matter."""
    system = system_for(replace(scenario("naive-mark-first"), workers=3, keys=3))
    noisy = [1, 0, 2, 0, 1, 1, 0, 3, 1, 0, 2, 2, 1, 0, 0, 1, 1, 2]
    before = replay(system, noisy)
    assert before.violation is not None
    short = shrink(system, noisy)
    after = replay(system, short)
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


def test_the_command_line_explores_replays_lists_and_refuses_unknown_scenarios(
    capsys: pytest.CaptureFixture[str],
) -> None:
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
