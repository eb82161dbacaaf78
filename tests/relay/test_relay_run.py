"""What a run of a relay does between the rounds of its pumps, with a stand-in for pump, store and broker."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from contextlib import AsyncExitStack
from types import SimpleNamespace
from typing import Any

import pytest

from effectonce.core import backoff
from effectonce.errors import BrokerUnavailable, StoreUnavailable
from effectonce.relay import relay_run
from effectonce.relay.relay_run import MAX_ROWS_PER_STATEMENT, RelayRun

real_sleep = asyncio.sleep
OUTAGE = BrokerUnavailable("it is away")


class Pump:
    """A pump whose rounds end as listed: with or without rows, or with an error. The last one stops the run."""

    def __init__(self, run: RelayRun, *rounds: bool | Exception) -> None:
        self.port = SimpleNamespace(table="outbox")
        self.pages: list[int | None] = []
        self._run = run
        self._rounds = list(rounds)

    async def run_round(self, pages: int | None = None) -> bool:
        self.pages.append(pages)
        result = self._rounds.pop(0)
        if not self._rounds:
            self._run.stop()
        self._run.state.outage = result if isinstance(result, BrokerUnavailable) else None
        if isinstance(result, StoreUnavailable):
            raise result
        return result is True


class Run(RelayRun):
    """A run that notes its sleeps and pauses instead of waiting."""

    def __init__(self, *, poll_s: float = 3600.0, hooks: bool = True) -> None:
        self.events: list[tuple[str, str]] = []
        settings: Any = SimpleNamespace(
            poll_s=poll_s,
            broker_backend="fake",
            totals=SimpleNamespace(cleaned=0),
            runtime=SimpleNamespace(hooks=hooks, emit=lambda kind, detail, **_: self.events.append((kind, detail))),
        )
        super().__init__(settings)
        self.waits: list[float | str] = []

    async def _sleep(self, seconds: float) -> bool:
        self.waits.append(seconds)
        await real_sleep(0)
        return False

    async def _pause(self, seconds: float, reason: Exception) -> None:
        self.waits.append(str(reason))


@pytest.fixture
def sleeps(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The seconds of every `asyncio.sleep`, which does not wait for them."""
    seconds: list[float] = []

    async def sleep(delay: float, result: object = None) -> None:
        seconds.append(delay)
        await real_sleep(0)

    monkeypatch.setattr(asyncio, "sleep", sleep)
    return seconds


# -- the first pump


async def test_after_a_database_was_away_its_outbox_is_looked_at_often_again() -> None:
    run = Run()
    await run._pump_until_stopped(Pump(run, False, False, StoreUnavailable("gone"), False, False))  # type: ignore[arg-type]
    assert run.waits == pytest.approx([0.005, 0.0075, "gone", 0.005, 0.0075])


async def test_rounds_with_rows_follow_each_other_without_a_sleep() -> None:
    run = Run()
    await run._pump_until_stopped(Pump(run, False, False, True, True, False))  # type: ignore[arg-type]
    assert run.waits == pytest.approx([0.005, 0.0075, 0.005])


async def test_the_pause_for_a_broker_starts_short_again_once_it_has_taken_rows(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    run, failures = Run(), []
    record_failure = backoff.Backoff.record_failure

    def note(self: backoff.Backoff, error: BaseException) -> float:
        failures.append(self.failures)
        return record_failure(self, error)

    monkeypatch.setattr(backoff.Backoff, "record_failure", note)
    await run._pump_until_stopped(Pump(run, OUTAGE, OUTAGE, False, OUTAGE, True, OUTAGE))  # type: ignore[arg-type]
    assert failures == [0, 1, 2, 0]


async def test_a_pause_lasts_until_its_end_however_often_rows_are_expected() -> None:
    run = RelayRun(SimpleNamespace(runtime=SimpleNamespace(emit=lambda *args, **fields: None)))  # type: ignore[arg-type]
    started_at = time.monotonic()
    pausing = asyncio.create_task(run._pause(0.05, OUTAGE))
    while not pausing.done():
        run.state.rows_expected.set()
        await asyncio.sleep(0.001)
    assert time.monotonic() - started_at >= 0.04


async def test_a_pause_ends_when_the_run_stops() -> None:
    run = RelayRun(SimpleNamespace(runtime=SimpleNamespace(emit=lambda *args, **fields: None)))  # type: ignore[arg-type]
    pausing = asyncio.create_task(run._pause(3600.0, OUTAGE))
    await asyncio.sleep(0)
    run.stop()
    await asyncio.wait_for(pausing, 10)


async def test_a_drain_ends_with_the_error_of_its_broker_and_not_with_rows_left_in_silence() -> None:
    run = Run()
    pump = Pump(run, True, OUTAGE, True)
    pump.run_round = _keep_true(pump.run_round)  # type: ignore[method-assign]
    with pytest.raises(BrokerUnavailable, match="it is away"):
        await run._pump_until_empty(pump)  # type: ignore[arg-type]
    assert len(pump.pages) == 2


def _keep_true(run_round: Callable[..., Any]) -> Callable[..., Any]:
    async def keep_true(pages: int | None = None) -> bool:
        await run_round(pages)
        return True

    return keep_true


# -- the second pump


async def test_the_second_pump_runs_rounds_of_a_page_while_the_outbox_is_crowded(sleeps: list[float]) -> None:
    run = Run()
    run.state.crowded.set()
    pump = Pump(run, True, True, True)
    await asyncio.wait_for(run._help_when_crowded(pump), 10)  # type: ignore[arg-type]
    assert pump.pages == [1, 1, 1]
    assert sleeps == []


async def test_a_second_pump_without_rows_waits_longer_each_time_up_to_a_limit(sleeps: list[float]) -> None:
    run = Run()
    pump = Pump(run, *[False] * 8, True, False, True)
    helping = asyncio.create_task(run._help_when_crowded(pump))  # type: ignore[arg-type]
    while not helping.done():
        run.state.crowded.set()
        await real_sleep(0)
    await helping
    assert sleeps == pytest.approx([0.02, 0.04, 0.08, 0.16, 0.32, 0.64, 0.64, 0.64, 0.02])


async def test_a_second_pump_without_rows_waits_until_the_outbox_is_crowded_again(sleeps: list[float]) -> None:
    run = Run()
    pump = Pump(run, False, True)
    run.state.crowded.set()
    helping = asyncio.create_task(run._help_when_crowded(pump))  # type: ignore[arg-type]
    for _ in range(20):
        await real_sleep(0)
    assert len(pump.pages) == 1
    run.state.crowded.set()
    await asyncio.wait_for(helping, 10)
    assert len(pump.pages) == 2


async def test_the_second_pump_leases_nothing_during_an_outage_or_after_a_stop(sleeps: list[float]) -> None:
    for outage in (OUTAGE, None):
        run = Run()
        run.state.outage = outage
        pump = Pump(run, True)
        helping = asyncio.create_task(run._help_when_crowded(pump))  # type: ignore[arg-type]
        await real_sleep(0)
        if outage is not None:
            run.state.crowded.set()
            await real_sleep(0)
        run.stop()
        await asyncio.wait_for(helping, 10)
        assert pump.pages == []


async def test_a_database_that_is_away_does_not_end_the_second_pump(sleeps: list[float]) -> None:
    run = Run()
    pump = Pump(run, StoreUnavailable("gone"), True)
    helping = asyncio.create_task(run._help_when_crowded(pump))  # type: ignore[arg-type]
    while not helping.done():
        run.state.crowded.set()
        await real_sleep(0)
    await helping
    assert len(pump.pages) == 2


# -- waking up


class Notifications:
    """A port of an outbox whose waits end as they are listed, and then never."""

    table = "outbox"

    def __init__(self, *waits: bool | Exception) -> None:
        self._waits = list(waits)
        self.asked: list[float] = []

    async def wait(self, seconds: float) -> bool:
        self.asked.append(seconds)
        if not self._waits:
            await asyncio.Future()
        result = self._waits.pop(0)
        if isinstance(result, Exception):
            raise result
        return result


@pytest.mark.parametrize(
    ("result", "is_woken", "pauses"),
    [(True, True, []), (False, False, []), (OSError("gone"), True, [1.0])],
    ids=["a notification", "none", "a lost connection, of whose time nothing is known"],
)
async def test_the_pump_is_woken_where_rows_may_have_come(
    sleeps: list[float], result: bool | Exception, is_woken: bool, pauses: list[float]
) -> None:
    run, port = Run(), Notifications(result)
    listening = asyncio.create_task(run._listen(port))  # type: ignore[arg-type]
    while len(port.asked) < 2:
        await real_sleep(0)
    assert run.state.rows_expected.is_set() is is_woken
    assert sleeps == pauses
    listening.cancel()


async def test_a_sleep_says_whether_rows_are_expected_and_forgets_it() -> None:
    run = RelayRun(SimpleNamespace())  # type: ignore[arg-type]
    run._wake()
    assert await run._sleep(10.0) is True
    assert await run._sleep(0.001) is False
    run.state.rows_expected.set()
    assert await run._sleep(10.0) is True


# -- cleaning up


class Cleanups:
    """A port of an outbox whose clean-ups end as they are listed, and then never."""

    table = "outbox"

    def __init__(self, *cleaned: tuple[int, int, bool] | Exception) -> None:
        self._cleaned = list(cleaned)
        self.limits: list[int] = []

    async def clean(self, limit: int) -> Any:
        self.limits.append(limit)
        if not self._cleaned:
            await asyncio.Future()
        result = self._cleaned.pop(0)
        if isinstance(result, Exception):
            raise result
        return SimpleNamespace(published=result[0], inbox=result[1], more=result[2])


async def clean(port: Cleanups, *, hooks: bool = True) -> Run:
    run = Run(hooks=hooks)
    rounds = len(port._cleaned)
    cleaning = asyncio.create_task(run._clean_up(port))  # type: ignore[arg-type]
    while len(port.limits) <= rounds:
        await real_sleep(0)
    cleaning.cancel()
    return run


async def test_a_clean_up_that_left_rows_goes_on_at_once_and_is_reported_when_none_are_left(
    sleeps: list[float],
) -> None:
    port = Cleanups((1000, 0, True), (300, 20, False), (0, 0, False))
    run = await clean(port)
    assert sleeps == [0.0, 10.0, 10.0]
    assert set(port.limits) == {MAX_ROWS_PER_STATEMENT}
    assert run.events == [("swept", "outbox outbox: 1320 deleted so far")] * 2
    assert run._settings.totals.cleaned == 1320
    assert (await clean(Cleanups((1, 1, False)), hooks=False)).events == []


async def test_f37_a_clean_up_that_fails_is_reported_and_tried_again_later(
    sleeps: list[float], caplog: pytest.LogCaptureFixture
) -> None:
    run = await clean(Cleanups((5, 0, True), ZeroDivisionError("a defect"), (1, 0, False)))
    assert sleeps == [0.0, 10.0, 10.0]
    assert [kind for kind, _ in run.events] == ["sweep_failed", "swept"]
    assert "a defect" in run.events[0][1]
    assert "a defect" in caplog.text
    assert [line.levelname for line in caplog.records] == ["WARNING"], "it is tried again"


# -- stopping


async def test_when_one_pump_fails_the_other_is_stopped_and_waited_for() -> None:
    run = Run()
    ended: list[str] = []

    async def fail() -> None:
        raise ZeroDivisionError("a defect")

    async def settle() -> None:
        await run.state.crowded.wait()
        await real_sleep(0)
        ended.append("settled")

    with pytest.raises(ZeroDivisionError):
        await asyncio.wait_for(run._supervise([run._spawn(settle()), run._spawn(fail())]), 10)
    assert ended == ["settled"]


async def test_a_second_stop_cancels_what_the_first_has_waited_for() -> None:
    run = Run()
    task = run._spawn(asyncio.Event().wait())  # type: ignore[arg-type]
    run.stop()
    await real_sleep(0)
    assert not task.done()
    assert run.state.rows_expected.is_set()
    run.stop()
    await asyncio.wait([task], timeout=10)
    assert task.cancelled()


async def test_what_a_run_has_opened_is_closed_with_it(monkeypatch: pytest.MonkeyPatch) -> None:
    closed: list[str] = []

    class Opened:
        def __init__(self, name: str) -> None:
            self._name = name

        async def close(self) -> None:
            closed.append(self._name)

    outboxes = SimpleNamespace(async_outbox=lambda table: Opened(table))
    monkeypatch.setattr(relay_run, "require_outboxes", lambda store: outboxes)
    monkeypatch.setattr(relay_run, "RelayPump", lambda settings, signals, port, publisher: port)
    run: Any = Run()
    run._settings.store, run._settings.table = object(), "outbox"
    run._settings.broker_backend = SimpleNamespace(publisher=lambda: Opened("publisher"))
    waiting = run._spawn(asyncio.Event().wait())
    stack = AsyncExitStack()
    assert run._open_pump(stack) is not None
    assert run._open_port(stack) is not None
    await asyncio.wait_for(run._close(stack), 10)
    assert sorted(closed) == ["outbox", "outbox", "publisher"]
    assert waiting.cancelled()
    await asyncio.wait_for(Run()._close(AsyncExitStack()), 10)  # nothing was opened
