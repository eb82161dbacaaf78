"""A worker goes on with the sagas and intents that another process has left behind."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

import effectonce as eo

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

    def __init__(self) -> None:
        self.calls: list[str] = []

    def recover(self) -> None:
        self.calls.append("recover")
        if len(self.calls) == 1:
            raise eo.StoreUnavailable("it is away")

    async def arecover(self) -> None:
        self.calls.append("arecover")


async def test_intents_of_both_colours_are_recovered_and_a_store_that_is_away_is_asked_again() -> None:
    left = Left()
    async with serving(idle(Bench(), left)):
        await until(lambda: left.calls[:4] == ["recover", "recover", "arecover", "recover"])


def test_what_cannot_be_recovered_is_refused() -> None:
    with pytest.raises(eo.ConfigurationError, match="give a list of Intents and sagas"):
        Bench().worker(recover=["payments"])
    assert Bench().worker(recover=[eo.Intents(Bench().store, scope="billing")])
