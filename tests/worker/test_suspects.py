"""Suspects run alone: the order in which a quarantine starts them and everything else, without a clock or a store."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from effectonce.worker.quarantine import Quarantine, SuspectTurns


class ManualLoop:
    """The loop as a quarantine uses it: its timers fire when the test says so."""

    def __init__(self) -> None:
        self._timers: list[tuple[Callable[[], None], asyncio.TimerHandle]] = []

    def call_later(self, delay: float, callback: Callable[[], None]) -> asyncio.TimerHandle:
        timer = asyncio.TimerHandle(0.0, callback, (), asyncio.get_running_loop())
        self._timers.append((callback, timer))
        return timer

    def pass_longest_wait(self) -> None:
        timers, self._timers = self._timers, []
        for callback, timer in timers:
            if not timer.cancelled():
                callback()


class Executor:
    """An executor that notes what it is told to start."""

    def __init__(self, quarantine: Quarantine, busy: int = 0) -> None:
        self.claimed_count = busy
        self.stopping = False
        self.started: list[Any] = []
        quarantine.register(self)

    def start(self) -> None:
        self.started.append("others")

    def start_alone(self, job: Any) -> bool:
        if not self.stopping:
            self.started.append(job)
        return not self.stopping


@pytest.fixture
def loop() -> ManualLoop:
    return ManualLoop()


@pytest.fixture
def quarantine(loop: ManualLoop) -> Any:
    return Quarantine(loop)  # type: ignore[arg-type]


async def test_a_suspect_starts_at_once_where_nothing_runs(quarantine: Any) -> None:
    executor = Executor(quarantine)
    assert not quarantine.blocks_new_work
    quarantine.add(executor, "suspect")
    assert (executor.started, quarantine.blocks_new_work) == (["suspect"], True)


async def test_a_suspect_waits_until_no_executor_has_work(quarantine: Any) -> None:
    executor, other = Executor(quarantine), Executor(quarantine, busy=1)
    quarantine.add(executor, "suspect")
    assert (executor.started, quarantine.blocks_new_work) == ([], True)
    other.claimed_count = 0
    quarantine.start_next_suspect()
    assert (executor.started, other.started) == (["suspect"], [])


async def test_suspects_run_one_after_another_and_then_all_others_start(quarantine: Any) -> None:
    executor, other = Executor(quarantine), Executor(quarantine)
    for suspect in ("first", "second"):
        quarantine.add(executor, suspect)
    assert executor.started == ["first"]
    quarantine.release("another message")
    assert executor.started == ["first"]
    quarantine.release("first")
    assert (executor.started, quarantine.blocks_new_work) == (["first", "second"], True)
    quarantine.release("second")
    assert (executor.started[2:], other.started, quarantine.blocks_new_work) == (["others"], ["others"], False)


async def test_a_suspect_that_waited_its_longest_for_others_still_has_its_own_time_alone(
    quarantine: Any, loop: ManualLoop
) -> None:
    executor = Executor(quarantine, busy=1)
    quarantine.add(executor, "suspect")
    loop.pass_longest_wait()
    assert (executor.started, quarantine.blocks_new_work) == (["suspect"], True), "no other starts beside it"
    loop.pass_longest_wait()
    assert (executor.started, quarantine.blocks_new_work) == (["suspect", "others"], False), "others waited enough"


async def test_a_suspect_whose_wait_ended_early_has_its_whole_time_alone(quarantine: Any, loop: ManualLoop) -> None:
    executor = Executor(quarantine, busy=1)
    quarantine.add(executor, "suspect")
    executor.claimed_count = 0
    quarantine.start_next_suspect()
    assert len([timer for _, timer in loop._timers if not timer.cancelled()]) == 1, "the wait's own timer is off"


@pytest.mark.parametrize("outcome", ["it ran", "it is not to run here"])
async def test_a_suspect_that_has_left_takes_no_time_from_the_next(
    quarantine: Any, loop: ManualLoop, outcome: str
) -> None:
    executor, other = Executor(quarantine), Executor(quarantine)
    other.stopping = outcome != "it ran"
    quarantine.add(other, "first")
    quarantine.release("first")
    loop.pass_longest_wait()
    executor.started.clear()
    executor.claimed_count = 1
    quarantine.add(executor, "suspect")
    assert (executor.started, quarantine.blocks_new_work) == ([], True), "it waits until it is alone"
    loop.pass_longest_wait()
    assert executor.started == ["suspect"], "but not for ever"


async def test_where_the_next_suspect_is_not_to_run_here_the_one_behind_it_starts(quarantine: Any) -> None:
    executor, stopping = Executor(quarantine, busy=1), Executor(quarantine)
    stopping.stopping = True
    quarantine.add(stopping, "first")
    quarantine.add(executor, "second")
    executor.claimed_count = 0
    quarantine.start_next_suspect()
    assert (stopping.started, executor.started) == ([], ["second"])


async def test_an_executor_that_leaves_takes_its_suspects_and_its_work_along(quarantine: Any) -> None:
    executor, leaving = Executor(quarantine), Executor(quarantine, busy=1)
    quarantine.add(leaving, "of the one that leaves")
    quarantine.add(executor, "suspect")
    quarantine.unregister(leaving)
    assert (executor.started, leaving.started) == (["suspect"], [])
    quarantine.release("suspect")
    assert (executor.started, leaving.started) == (["suspect", "others"], [])


def test_suspects_in_transactions_take_turns() -> None:
    turns, resumed = SuspectTurns(), list[Any]()

    def resume(job: Any) -> None:
        resumed.append(job)
        if job != "given up":  # without a turn
            turns.take(job)

    first: Any = "first"
    assert not turns.is_taken
    turns.take(first)
    for job in ("given up", "second", "third"):
        turns.wait(job, resume)  # type: ignore[arg-type]
    turns.release(["another"])  # type: ignore[list-item]
    assert (turns.is_taken, resumed) == (True, [])
    turns.release([first])
    assert (turns.is_taken, resumed) == (True, ["given up", "second"])
