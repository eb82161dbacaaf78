"""A worker resumes the sagas and intents that another process has left behind."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import Any

import pytest
from msgspec import structs

import effectonce as eo
from effectonce.providers import Verdict
from effectonce.worker.recovery_loop import RecoveryLoop
from tests.harness.failure_lines import failures, raised

from .bench import Bench, serving, until


def idle(bench: Bench, *left: Any) -> eo.Worker:
    worker = bench.worker(recover=left, recover_every="10ms")

    @worker.handler("orders")
    async def charge(message: eo.Message[Any]) -> None: ...

    return worker


@pytest.mark.parametrize("colour", ["sync", "async"])
async def test_a_saga_that_was_only_started_is_run(colour: str) -> None:
    bench = Bench()
    done: list[int] = []
    saga = eo.Saga("ship", bench.store, input=int)
    if colour == "sync":

        @saga.step()
        def send(input: int) -> None:
            done.append(input)

        await asyncio.to_thread(saga.start, "o-1", 7)
    else:

        @saga.step()
        async def send_async(input: int) -> None:
            done.append(input)

        await saga.astart("o-1", 7)
    async with serving(idle(bench, saga)):
        await until(lambda: done == [7])


class Left:
    """As `Intents`."""

    def __init__(self, error: BaseException) -> None:
        self.calls: list[str] = []
        self.error = error

    def recover(self, *, stop: Callable[[], bool]) -> None:
        self.calls.append("recover")
        if len(self.calls) == 1:
            raise self.error

    async def arecover(self, *, stop: Callable[[], bool]) -> None:
        self.calls.append("arecover")


@pytest.mark.parametrize(
    "error", [eo.StoreUnavailable("it is away"), ValueError("a bug"), SystemExit(3), asyncio.CancelledError()]
)
async def test_intents_of_both_colours_are_recovered_and_what_fails_is_tried_again(
    error: BaseException, caplog: pytest.LogCaptureFixture
) -> None:
    left = Left(error)
    async with serving(idle(Bench(), left)):
        await until(lambda: left.calls[:4] == ["recover", "recover", "arecover", "recover"])
    (line,) = failures(caplog)
    assert (line.levelname, raised(line)) == ("WARNING", error)
    assert line.getMessage().startswith(f"recovery of {left!r} failed and is tried again: {type(error).__name__}")


@pytest.mark.parametrize("colour", ["sync", "async"])
@pytest.mark.parametrize("end", [SystemExit, asyncio.CancelledError])
async def test_a_saga_that_ends_itself_ends_neither_the_worker_nor_the_others(
    colour: str, end: type[BaseException]
) -> None:
    bench = Bench()
    done: list[str] = []
    saga = eo.Saga("ship", bench.store, input=str)

    def send(input: str) -> None:
        if input == "bad":
            raise end
        done.append(input)

    async def asend(input: str) -> None:
        send(input)

    saga.step(name="send")(send if colour == "sync" else asend)
    await saga.astart("a-bad", "bad")
    await saga.astart("b-good", "good")
    async with serving(idle(bench, saga)):
        await until(lambda: done == ["good"])
        await saga.astart("c-later", "later")
        await until(lambda: done == ["good", "later"])
        await until(lambda: saga.get("a-bad").state == "in_doubt")  # type: ignore[union-attr]


async def test_a_worker_that_stops_leaves_the_rest_to_the_next() -> None:
    bench = Bench()
    saga = eo.Saga("ship", bench.store, input=int)
    entered, go = threading.Event(), threading.Event()
    done: list[int] = []

    @saga.step()
    def send(input: int) -> None:
        entered.set()
        go.wait(30)
        done.append(input)

    for number in range(20):
        await saga.astart(number, number)
    worker = idle(bench, saga)
    task = asyncio.create_task(worker.serve())
    await asyncio.to_thread(entered.wait, 30)
    worker.stop()
    await until(lambda: all(each._stopping.is_set() for each in worker._companions))  # type: ignore[attr-defined]
    go.set()
    await asyncio.wait_for(task, 20)
    assert len(done) == 1


async def test_a_worker_that_serves_again_resumes_unfinished_work_again() -> None:
    bench = Bench()
    done: list[int] = []
    saga = eo.Saga("ship", bench.store, input=int)

    @saga.step()
    async def send(input: int) -> None:
        done.append(input)

    worker = idle(bench, saga)
    for number in range(3):
        async with serving(worker):
            await saga.astart(number, number)
            await until(lambda number=number: done == [*range(number + 1)])  # type: ignore[misc]


def test_what_cannot_be_recovered_is_refused() -> None:
    with pytest.raises(eo.ConfigurationError, match="give a list of Intents and sagas"):
        Bench().worker(recover=["payments"])
    assert Bench().worker(recover=[eo.Intents(Bench().store, scope="billing")])


async def test_a_worker_does_not_start_where_a_message_may_come_after_the_provider_has_dropped_its_key() -> None:
    bench = Bench()
    bench.backend.capabilities = structs.replace(bench.backend.capabilities, redelivery_horizon_s=14 * 86_400.0)
    intents = eo.Intents(bench.store, scope="billing")

    @intents.operation("stripe", "charge")
    async def charge(intent: eo.Intent[int]) -> None: ...

    worker = idle(bench, intents)
    with pytest.raises(eo.ConfigurationError, match="stripe keeps keys for 1d, and messages may be redelivered for 14"):
        await worker.check()

    @intents.reconcile("stripe")
    async def look_up(intent: eo.Intent[int]) -> Verdict:
        return Verdict.unknown("")

    await worker.check()


async def test_retries_and_redrives_count_as_redelivery() -> None:
    bench = Bench()
    intents = eo.Intents(bench.store, scope="billing")

    @intents.operation("stripe", "charge", retention="2d")
    def charge(intent: eo.Intent[int]) -> None: ...

    intents.reconcile("stripe")(lambda intent: Verdict.unknown(""))
    worker = bench.worker(recover=[intents], redrive_within="2d")

    @worker.handler("orders", retry=eo.Retry(2, first="1h", cap="1h"), retention="3d")
    async def pay(message: eo.Message[Any]) -> None: ...

    with pytest.raises(eo.ConfigurationError, match=r"keeps finished intents for 2d, and messages may be .* for 2.04d"):
        await worker.check()


async def test_a_recovery_that_is_cancelled_ends_and_does_not_take_it_for_an_error(
    caplog: pytest.LogCaptureFixture,
) -> None:
    class Hanging:
        is_async = True
        begun = asyncio.Event()

        async def aresume(self, *, stop: Callable[[], bool]) -> None:
            self.begun.set()
            await asyncio.Event().wait()

    tool = Hanging()
    recovering = asyncio.create_task(RecoveryLoop([tool], 0.01).serve())  # type: ignore[list-item]
    await tool.begun.wait()
    recovering.cancel()
    done, _ = await asyncio.wait([recovering], timeout=30)
    assert done
    assert recovering.cancelled()
    assert caplog.text == ""
