"""`HandlerPool`: which handlers run at once, how their ends are reported, and how many jobs are claimed ahead."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import Any, cast

import pytest
from msgspec import Struct

from effectonce.core.guarded_call.run import Run, current_run
from effectonce.worker import handler_pool
from effectonce.worker.handler_pool import HandlerPool
from effectonce.worker.jobs import Job

from .bench import Bench, until


class Numbered(Struct, eq=False):
    """Work for a pool. It is a job as far as `HandlerPool.begin_claim` and `end_claim` are concerned."""

    number: int
    run: Run | None = None
    ended_before_claim: int = 0


class PoolBench:
    """A pool whose handler is called with a number, and what the pool has reported."""

    def __init__(self, handler: Callable[[int], Any], *, concurrency: int = 4) -> None:
        worker = Bench().worker()
        sync = not asyncio.iscoroutinefunction(handler)
        worker.handler("orders", concurrency=concurrency)(_sync_stub if sync else _async_stub)
        self.succeeded: list[int] = []
        self.errors: dict[int, BaseException] = {}
        self.defects: list[BaseException] = []
        self.on_success: Callable[[int], None] = self.succeeded.append
        self.on_idle: Callable[[], None] = lambda: None
        self.pool: HandlerPool[Numbered] = HandlerPool(
            worker.routes[0],
            lambda work: handler(work.number),
            on_success=lambda work: self.on_success(work.number),
            on_error=lambda work, error: self.errors.update({work.number: error}),
            on_idle=lambda: self.on_idle(),
            fail=self.defects.append,
            loop=asyncio.get_running_loop(),
        )

    def run(self, *numbers: int) -> None:
        for number in numbers:
            self.pool.add_ready(Numbered(number))
        self.pool.wake()

    def begin_claim(self) -> Job:
        job = cast(Job, Numbered(0))
        self.pool.begin_claim(job)
        return job


def _sync_stub(message: Any) -> None: ...


async def _async_stub(message: Any) -> None: ...


async def do_nothing(number: int) -> None: ...


# -- running


async def test_handlers_that_never_wait_run_in_one_task() -> None:
    tasks = set[Any]()

    async def handle(number: int) -> None:
        tasks.add(asyncio.current_task())

    bench = PoolBench(handle)
    bench.run(*range(20))
    await until(lambda: bench.succeeded == list(range(20)))
    assert len(tasks) == 1


async def test_after_a_handler_whose_task_is_cancelled_the_next_one_has_a_task_of_its_own() -> None:
    """In a task that is being cancelled, the timeouts and task groups of the next handler would not work."""
    cancelling: list[int] = []

    async def handle(number: int) -> None:
        task = asyncio.current_task()
        assert task is not None
        cancelling.append(task.cancelling())
        if number == 0:
            task.cancel()
            await asyncio.sleep(0)

    bench = PoolBench(handle, concurrency=1)
    bench.run(0, 1)
    await until(lambda: bench.succeeded == [1])
    assert cancelling == [0, 0]
    assert isinstance(bench.errors[0], asyncio.CancelledError)


async def test_handlers_that_wait_run_side_by_side_up_to_the_concurrency() -> None:
    running, go = set[int](), asyncio.Event()

    async def handle(number: int) -> None:
        running.add(number)
        await go.wait()

    bench = PoolBench(handle, concurrency=3)
    bench.run(*range(5))
    await until(lambda: len(running) == 3)
    await asyncio.sleep(0.01)
    assert running == {0, 1, 2}
    go.set()
    await until(lambda: len(bench.succeeded) == 5)


async def test_sync_handlers_run_side_by_side_on_threads_up_to_the_concurrency() -> None:
    running, go = set[int](), threading.Event()

    def handle(number: int) -> None:
        running.add(number)
        go.wait(10)

    bench = PoolBench(handle, concurrency=2)
    bench.run(*range(4))
    await until(lambda: len(running) == 2)
    await asyncio.sleep(0.01)
    assert running == {0, 1}
    go.set()
    await until(lambda: len(bench.succeeded) == 4)
    await bench.pool.close()


async def test_handlers_that_never_wait_leave_the_event_loop_to_others_now_and_then(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(handler_pool, "TASK_TURN_S", 0.0)
    bench = PoolBench(do_nothing)
    bench.run(*range(100))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert 0 < len(bench.succeeded) < 100


# -- its end


@pytest.mark.parametrize("sync", [False, True])
async def test_what_a_handler_raises_is_reported_and_the_next_one_runs(sync: bool) -> None:
    def handle(number: int) -> None:
        if number == 1:
            raise ValueError("not today")

    async def handle_async(number: int) -> None:
        handle(number)

    bench = PoolBench(handle if sync else handle_async)
    bench.run(0, 1, 2)
    await until(lambda: bench.succeeded == [0, 2])
    assert repr(bench.errors) == "{1: ValueError('not today')}"
    await bench.pool.close()


@pytest.mark.parametrize("sync", [False, True])
async def test_stop_iteration_is_an_error_and_not_the_end_of_a_coroutine(sync: bool) -> None:
    """Also where the function that makes the coroutine raises it, a wrapper for example."""

    def handle(number: int) -> Any:
        raise StopIteration

    bench = PoolBench(handle if sync else do_nothing)
    bench.pool._function = lambda work: handle(work.number)
    bench.run(1)
    await until(lambda: bench.errors)
    assert (repr(bench.errors[1]), bench.succeeded) == ("StopIteration()", [])
    await bench.pool.close()


async def test_what_a_handler_returns_after_it_has_waited_is_no_error() -> None:
    async def handle(number: int) -> Exception:
        await asyncio.sleep(0)
        return ValueError("a result")

    bench = PoolBench(handle)
    bench.run(1)
    await until(lambda: bench.succeeded == [1])
    assert bench.errors == {}


async def test_a_defect_in_a_report_is_reported_and_the_runner_continues() -> None:
    bench = PoolBench(do_nothing)
    bench.on_success = lambda number: bench.succeeded.append(1 // number)
    bench.run(0, 1)
    await until(lambda: bench.succeeded == [1])
    assert [type(defect) for defect in bench.defects] == [ZeroDivisionError]


async def test_a_runner_with_nothing_left_to_run_says_so_outside_of_the_last_run() -> None:
    bench = PoolBench(do_nothing)
    idle: list[tuple[list[int], Run | None]] = []
    bench.on_idle = lambda: idle.append((list(bench.succeeded), current_run.get()))
    for number in (1, 2):
        bench.pool.add_ready(Numbered(number, run=cast(Run, "a run")))
    bench.pool.wake()
    await until(lambda: bool(idle))
    assert idle == [([1, 2], None)]


async def test_a_defect_of_an_idle_runner_is_reported_and_it_runs_what_comes_next() -> None:
    bench = PoolBench(do_nothing)
    bench.on_idle = lambda: print(1 // 0)
    bench.run(1)
    await until(lambda: bool(bench.defects))
    bench.run(2)
    await until(lambda: bench.succeeded == [1, 2])
    assert {type(defect) for defect in bench.defects} == {ZeroDivisionError}


async def test_another_runner_takes_over_from_one_that_was_cancelled() -> None:
    async def handle(number: int) -> None:
        if number == 0:
            task = asyncio.current_task()
            assert task is not None
            task.cancel()
            await asyncio.sleep(0)

    bench = PoolBench(handle, concurrency=1)
    bench.run(0, 1)
    await until(lambda: bench.succeeded == [1])
    assert isinstance(bench.errors[0], asyncio.CancelledError)


async def test_close_cancels_the_handlers_that_still_run() -> None:
    async def handle(number: int) -> None:
        await asyncio.sleep(60)

    bench = PoolBench(handle)
    bench.run(1, 2)
    await asyncio.sleep(0.01)
    await bench.pool.close()
    assert {number: type(error) for number, error in bench.errors.items()} == dict.fromkeys(
        (1, 2), asyncio.CancelledError
    )


async def test_close_leaves_a_handler_behind_that_ignores_its_cancellation(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(handler_pool, "CANCEL_GRACE_S", 0.01)
    go = asyncio.Event()

    async def handle(number: int) -> None:
        while not go.is_set():
            try:
                await go.wait()
            except asyncio.CancelledError:
                pass

    bench = PoolBench(handle)
    bench.run(1)
    await asyncio.sleep(0.01)
    await bench.pool.close()
    assert "1 runs of" in caplog.text
    go.set()
    await until(lambda: bench.succeeded == [1])


# -- claiming


async def test_as_many_jobs_are_claimed_as_handlers_can_run() -> None:
    bench = PoolBench(do_nothing, concurrency=4)
    bench.begin_claim()
    bench.pool.add_ready(Numbered(1))
    assert (bench.pool.claimed_count, bench.pool.free_slots) == (2, 2)


async def test_an_answered_claim_and_an_ended_handler_free_a_slot_each() -> None:
    bench = PoolBench(do_nothing, concurrency=4)
    job = bench.begin_claim()
    bench.run(1)
    assert bench.pool.claimed_count == 2
    await until(lambda: bench.succeeded == [1])
    bench.pool.end_claim(job)
    assert bench.pool.claimed_count == 0


async def test_handlers_that_end_during_a_claim_let_jobs_be_claimed_ahead_of_them() -> None:
    bench = PoolBench(do_nothing, concurrency=10)
    job = bench.begin_claim()
    bench.run(1, 2)
    await until(lambda: bench.succeeded == [1, 2])
    bench.pool.end_claim(job)
    assert bench.pool.free_slots == 10 + 2 * handler_pool.AHEAD_FACTOR

    bench.pool.end_claim(bench.begin_claim())  # none ends during the next one
    assert bench.pool.free_slots == 10


async def test_no_more_jobs_are_claimed_ahead_than_handlers_can_run() -> None:
    bench = PoolBench(do_nothing, concurrency=3)
    job = bench.begin_claim()
    bench.run(*range(50))
    await until(lambda: len(bench.succeeded) == 50)
    bench.pool.end_claim(job)
    assert bench.pool.free_slots == 3 + 3


async def test_what_has_not_started_can_be_taken_back_in_its_order() -> None:
    bench = PoolBench(do_nothing)
    for number in range(3):
        bench.pool.add_ready(Numbered(number))
    assert [work.number for work in bench.pool.take_ready()] == [0, 1, 2]
    assert (bench.pool.claimed_count, len(bench.pool.ready)) == (0, 0)
