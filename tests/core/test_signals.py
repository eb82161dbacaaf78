"""SIGTERM and SIGINT stop what serves, and only while it serves."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Iterator
from contextlib import nullcontext

import pytest

from effectonce.core.signals import serve_until_signalled
from tests.harness.waiting import auntil


@pytest.fixture(autouse=True)
def handlers() -> Iterator[list[object]]:
    """The handlers that the program had before; they are restored."""
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    yield list(before.values())
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.mark.parametrize(
    ("sent", "was_ctrl_c"),
    [
        ([signal.SIGTERM], False),
        ([signal.SIGINT], True),
        ([signal.SIGTERM, signal.SIGINT], True),
        ([signal.SIGINT, signal.SIGTERM], True),
    ],
)
async def test_each_signal_asks_to_stop_and_only_ctrl_c_is_told_apart(
    sent: list[signal.Signals], was_ctrl_c: bool
) -> None:
    stops: list[int] = []

    async def serve() -> None:
        for count, number in enumerate(sent, start=1):
            os.kill(os.getpid(), number)
            await auntil(lambda count=count: len(stops) == count)  # type: ignore[misc]

    assert await serve_until_signalled(serve, lambda: stops.append(1)) is was_ctrl_c


async def test_without_a_signal_nothing_is_stopped() -> None:
    stops: list[int] = []

    async def serve() -> None: ...

    assert await serve_until_signalled(serve, lambda: stops.append(1)) is False
    assert stops == []


@pytest.mark.parametrize("error", [None, RuntimeError("the broker is gone")])
async def test_afterwards_a_signal_does_what_it_did_before(error: Exception | None) -> None:
    async def serve() -> None:
        assert asyncio.get_running_loop().remove_signal_handler(signal.SIGTERM), "it had none while serving"
        if error is not None:
            raise error

    with nullcontext() if error is None else pytest.raises(RuntimeError, match="is gone"):
        await serve_until_signalled(serve, lambda: None)
    assert not asyncio.get_running_loop().remove_signal_handler(signal.SIGINT)
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
