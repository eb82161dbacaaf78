"""`TransactionRunner` with a stand-in for the inbox: where its transactions run, and what it records of an attempt."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable
from types import SimpleNamespace
from typing import Any

import pytest

import effectonce as eo
from effectonce.contracts import ConnectionLost, Delivery, Packet
from effectonce.errors import AttemptsExhausted, InProgress, SchemaMissing, TransactionConflict
from effectonce.inbox.table import StartCount
from effectonce.worker import transaction_runner as module
from effectonce.worker.causes import Poison
from effectonce.worker.jobs import Job
from effectonce.worker.routes import RedeliverUncounted
from effectonce.worker.transaction_runner import AttemptEnd, TransactionRunner, WorkUnit


class Table:
    """The inbox's table: it notes what is written, and fails while the database is away."""

    def __init__(self) -> None:
        self.written: list[tuple[str, Any]] = []
        self.commits = 0
        self.threads: list[threading.Thread] = []
        self.is_away = False

    async def refund_attempt(self, session: Any, key: str) -> None:
        self.written.append(("refund", key))

    async def report_failure(self, session: Any, key: str, error: str, *, uncounted: bool) -> None:
        self.written.append((error, uncounted))

    async def forget_attempts(self, session: Any, key: str) -> None:
        self.written.append(("forget", key))

    async def commit(self) -> None:
        self.commits += 1


class Transaction:
    """Stands in for `InboxTransaction`: the session is the table."""

    def __init__(self, table: Table) -> None:
        self._table = table

    async def run_once(self, work: Callable[[Any], Awaitable[Any]]) -> Any:
        self._table.threads.append(threading.current_thread())
        if self._table.is_away:
            raise ConnectionLost("gone")
        return await work(self._table)


class Handler:
    """Stands in for `TransactionalHandler`: it notes the jobs that run, and raises what is listed for them."""

    def __init__(self) -> None:
        self.ran: list[str] = []
        self.errors: dict[str, list[BaseException]] = {}

    def run_sync(self, job: Job) -> None:
        self.ran.append(job.key)
        if errors := self.errors.get(job.key):
            job.started_at = 1.0
            raise errors.pop(0)

    async def run_async(self, job: Job) -> None:
        self.run_sync(job)


@pytest.fixture
def table(monkeypatch: pytest.MonkeyPatch) -> Table:
    table = Table()
    monkeypatch.setattr(module, "InboxTransaction", lambda handler: Transaction(table))
    return table


def make_runner(table: Table, *, is_async: bool = False, private: bool = False) -> Any:
    runner: Any = object.__new__(TransactionRunner)
    runner.route = make_route(is_async=is_async)
    runner.inbox = SimpleNamespace(private=private, table=lambda session: table, make_key=lambda key, prints: key)
    runner.plain, runner._counting, runner._unrecorded = Handler(), Handler(), {}
    return runner


def make_route(*, is_async: bool = False, retry: eo.Retry | None = None) -> Any:
    def decide_failure(error: BaseException, attempt: int) -> Any:
        return RedeliverUncounted(error) if isinstance(error, InProgress) else None

    return SimpleNamespace(is_async=is_async, decide_failure=decide_failure, retry=retry or eo.Retry(3, max_crashes=2))


def make_job(id: str = "a", *, lane: str = "", suspect: bool = False, route: Any = None) -> Job:
    delivery = Delivery(packet=Packet(body=b"", id=id), queue="q")
    message = eo.Message(data=None, id=id)
    return Job(delivery, route or make_route(), message, id, b"", lane or id, suspect=suspect)


def unit_of(*jobs: Job) -> WorkUnit:
    return WorkUnit(list(jobs), [None] * len(jobs))


# -- where it runs


@pytest.mark.parametrize("is_async", [True, False])
async def test_a_transaction_beside_the_handlers_blocks_the_event_loop_on_no_driver(
    table: Table, is_async: bool
) -> None:
    assert await make_runner(table, is_async=is_async).run_beside(_answer) == 7
    assert (table.threads == [threading.current_thread()]) is is_async


async def _answer(session: Any) -> int:
    return 7


async def test_a_check_commits_so_that_no_transaction_stays_open(table: Table) -> None:
    await make_runner(table).check()
    assert table.commits == 1


# -- the jobs of a unit


def test_what_a_job_raises_is_its_own(table: Table) -> None:
    runner, unit = make_runner(table), unit_of(make_job("a"))
    error = ValueError("x")
    runner.plain.errors["a"] = [error]
    runner.execute(unit)
    assert unit.errors == [error]


def test_redone_one_by_one_jobs_behind_one_of_their_lane_that_failed_wait(
    table: Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    runner = make_runner(table)

    async def roll_back(unit: WorkUnit) -> bool:
        return False

    runner._execute_batch = roll_back
    unit = unit_of(make_job("a", lane="k"), make_job("b", lane="k"), make_job("c"))
    runner.plain.errors["a"] = [ValueError("x")]
    runner.execute(unit)
    assert runner.plain.ran == ["a", "c"]
    assert [unit.waits_for_failed(at) for at in range(3)] == [False, True, False]


def test_jobs_of_a_batch_that_was_committed_do_not_run_again(table: Table) -> None:
    runner = make_runner(table)

    async def commit(unit: WorkUnit) -> bool:
        return True

    runner._execute_batch = commit
    runner.execute(unit_of(make_job("a"), make_job("b")))
    assert runner.plain.ran == []
    runner.execute(unit_of(make_job("a")))
    assert runner.plain.ran == ["a"], "a single job is no batch"


async def test_what_stops_the_process_leaves_the_runner(table: Table) -> None:
    runner, unit = make_runner(table, is_async=True), unit_of(make_job("a"))
    runner.plain.run_async = lambda job: asyncio.Event().wait()
    running = asyncio.create_task(runner.execute(unit))
    await asyncio.sleep(0)
    running.cancel()
    await asyncio.wait([running])
    assert running.cancelled()
    assert unit.errors == [None]


def test_f20_a_suspect_has_its_start_counted_before_it_runs(table: Table) -> None:
    runner = make_runner(table)
    runner.execute(unit_of(make_job("a", suspect=True)))
    runner.execute(unit_of(make_job("b")))
    assert (runner._counting.ran, runner.plain.ran) == (["a"], ["b"])


# -- how an attempt ended


@pytest.mark.parametrize(
    ("error", "suspect", "was_called", "written"),
    [
        (ValueError("x"), False, True, [("ValueError: x", True)]),
        (ValueError("x"), True, True, [("ValueError: x", False)]),
        (ValueError("x"), False, False, []),
        (ConnectionLost("gone"), False, True, []),
        (ConnectionLost("gone"), True, True, [("refund", "a")]),
        (TransactionConflict("deadlock"), True, True, [("refund", "a")]),
        (InProgress("runs", retry_after=1.0), True, True, [("refund", "a")]),
        (InProgress("runs", retry_after=1.0), True, False, []),
        (ValueError("x"), True, False, [("refund", "a")]),
        (SchemaMissing("of the handler"), False, True, [("SchemaMissing: of the handler", True)]),
        (SchemaMissing("of the inbox"), False, False, []),
    ],
)
def test_f20_only_starts_that_never_reported_an_outcome_stay_unreported(
    table: Table, error: Exception, suspect: bool, was_called: bool, written: list[tuple[str, Any]]
) -> None:
    runner, job = make_runner(table), make_job("a", suspect=suspect)
    job.started_at = float(was_called)
    if (end := runner._end_of(job, error)) is not None:
        assert runner_records(runner, job, end)
    assert table.written == written
    assert table.commits == len(written)


def runner_records(runner: Any, job: Job, end: AttemptEnd) -> bool:
    recorded: bool = asyncio.run(runner._record_end(job, end))
    return recorded


def test_f66_a_private_inbox_keeps_no_words_of_an_error(table: Table) -> None:
    runner, job = make_runner(table, private=True), make_job("a")
    job.started_at = 1.0
    assert runner._end_of(job, ValueError("canary")) == AttemptEnd("ValueError", uncounted=True)


def test_f20_an_end_that_could_not_be_recorded_is_recorded_before_the_next_attempt(table: Table) -> None:
    runner, job = make_runner(table), make_job("a", suspect=True)
    runner._counting.errors["a"] = [ValueError("x")]
    table.is_away = True
    first, second = unit_of(job), unit_of(job)
    runner.execute(first)
    runner.execute(second)
    assert [type(error) for error in (*first.errors, *second.errors)] == [ValueError, ConnectionLost]
    assert runner._counting.ran == ["a"], "the second attempt did not start"
    table.is_away = False
    runner.execute(third := unit_of(job))
    assert third.errors == [None]
    assert table.written == [("ValueError: x", False)]
    runner.execute(unit_of(job))
    assert len(table.written) == 1, "it is recorded once"


# -- whether an attempt may start


@pytest.mark.parametrize(
    ("starts", "expected"),
    [
        (StartCount(unreported=1), None),
        (StartCount(unreported=2, reported=1, last_error="x"), None),
        (StartCount(unreported=3), Poison),
        (StartCount(unreported=1, reported=3, last_error="it broke"), AttemptsExhausted),
        (StartCount(unreported=1, reported=3), AttemptsExhausted),
    ],
)
def test_f20_a_message_starts_as_often_as_its_retry_allows(
    starts: StartCount, expected: type[Exception] | None
) -> None:
    job = make_job("a")
    job.transaction_run = SimpleNamespace(answer=None, attempt=starts.total)  # type: ignore[assignment]
    if expected is None:
        module._check_start(job, starts)
        return
    with pytest.raises(expected) as caught:
        module._check_start(job, starts)
    if expected is AttemptsExhausted:
        assert str(caught.value).startswith("all 3 attempts failed")
        assert ("the last error was it broke" in str(caught.value)) == (starts.last_error is not None)
    else:
        assert caught.value.args == Poison(2).args


def test_retries_without_end_are_never_used_up() -> None:
    job = make_job("a", route=make_route(retry=eo.Retry(None, max_crashes=2)))
    job.transaction_run = SimpleNamespace(answer=None, attempt=1000)  # type: ignore[assignment]
    module._check_start(job, StartCount(unreported=1, reported=999, last_error="x"))
