"""Whether a user function exits by itself, or the process is told to end while it runs."""

from __future__ import annotations

import asyncio
import functools
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from effectonce.core import interrupts
from effectonce.core.interrupts import SignalHandlers, is_own_exit, remember_signal_handlers


def exit_on_signal(number: int, frame: Any) -> None:
    sys.exit(3)


def exit_for_a_reason(reason: str, number: int, frame: Any) -> None:
    sys.exit(reason)


class Service:
    def stop(self, number: int, frame: Any) -> None:
        sys.exit(3)

    def __call__(self, number: int, frame: Any) -> None:
        sys.exit(3)


@pytest.fixture(autouse=True)
def _signal_handlers_as_before(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(interrupts, "_handlers", SignalHandlers())
    before = signal.getsignal(signal.SIGUSR1)
    yield
    signal.signal(signal.SIGUSR1, before)


def error_of(function: Callable[[], Any]) -> BaseException:
    try:
        function()
    except BaseException as error:
        return error
    raise AssertionError("it did not raise")


def test_a_function_that_exits_ends_alone() -> None:
    signal.signal(signal.SIGUSR1, exit_on_signal)
    remember_signal_handlers()
    assert is_own_exit(error_of(sys.exit))


@pytest.mark.parametrize(
    "handler",
    [exit_on_signal, functools.partial(exit_for_a_reason, "stopped"), Service().stop, Service()],
    ids=["function", "partial", "method", "object"],
)
def test_a_signal_handler_that_exits_ends_the_process(handler: Any) -> None:
    signal.signal(signal.SIGUSR1, handler)
    assert not is_own_exit(error_of(lambda: signal.raise_signal(signal.SIGUSR1)))


def test_a_signal_handler_that_removes_itself_before_it_exits_is_still_known() -> None:
    def exit_once(number: int, frame: Any) -> None:
        signal.signal(signal.SIGUSR1, signal.SIG_DFL)
        sys.exit(3)

    signal.signal(signal.SIGUSR1, exit_once)
    remember_signal_handlers()
    assert not is_own_exit(error_of(lambda: signal.raise_signal(signal.SIGUSR1)))


def test_beside_a_handler_that_is_not_python_every_exit_of_the_main_thread_ends_the_process() -> None:
    signal.signal(signal.SIGUSR1, max)
    assert not is_own_exit(error_of(sys.exit))


def test_no_signal_ends_another_thread() -> None:
    signal.signal(signal.SIGUSR1, max)
    answers: list[bool] = []
    thread = threading.Thread(target=lambda: answers.append(is_own_exit(error_of(sys.exit))))
    thread.start()
    thread.join()
    assert answers == [True]


def test_an_error_is_no_exit() -> None:
    assert not is_own_exit(ValueError())
    assert not is_own_exit(KeyboardInterrupt())


def test_a_cancellation_outside_of_a_loop_is_the_functions_own() -> None:
    assert is_own_exit(asyncio.CancelledError())


@pytest.mark.parametrize("cancelled", [False, True])
async def test_a_cancellation_is_the_functions_own_unless_its_task_is_being_cancelled(cancelled: bool) -> None:
    answers: list[bool] = []

    async def judge() -> None:
        try:
            if cancelled:
                await asyncio.sleep(60)
            raise asyncio.CancelledError
        except asyncio.CancelledError as error:
            answers.append(is_own_exit(error))

    task = asyncio.create_task(judge())
    await asyncio.sleep(0)
    task.cancel()
    await asyncio.wait([task])
    assert answers == [not cancelled]
