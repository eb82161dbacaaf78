"""The run that `current()` returns: its context, and how long it lives."""

from __future__ import annotations

import asyncio
import contextvars
import gc
import sys
import weakref
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

import effectonce as eo
from effectonce.testing import ManualClock
from tests.core.grouped import GroupedBackend

from .conftest import HandlerForm


async def test_current_survives_that_another_task_ends_in_its_context(store: eo.Store) -> None:
    """Of two in one context the later one is current; that the first one ends does not end that."""

    @eo.once(store, scope="charge", key="k")
    async def charge(k: str, seconds: float) -> str:
        await asyncio.sleep(seconds)
        return eo.current().key

    context = contextvars.copy_context()
    loop = asyncio.get_running_loop()
    tasks = [loop.create_task(charge(*each), context=context) for each in (("a", 0.01), ("b", 0.05))]
    assert (await asyncio.gather(*tasks))[1] == "b"


def test_current_survives_that_another_coroutine_is_closed_in_its_context(store: eo.Store) -> None:
    @eo.once(store, scope="abandoned", key="k")
    async def abandoned(k: str) -> None:
        await asyncio.sleep(60)

    left = contextvars.Context().run(abandoned, "a")

    async def start() -> None:
        contextvars.copy_context().run(left.send, None)

    asyncio.run(start())

    @eo.once(store, scope="innocent", key="k")
    def innocent(k: str) -> str:
        left.close()
        return eo.current().key

    assert innocent("mine") == "mine"


def test_a_handler_is_told_that_the_attempt_before_it_never_reported_an_outcome(
    store: eo.Store, clock: ManualClock, form: HandlerForm
) -> None:
    """F02: it may have had its effect. One that raised did report."""
    lapsed: list[bool] = []
    in_another_thread = ThreadPoolExecutor(1)

    @form.once(store, scope="charge", key="k", lease="30s")
    def charge(k: str) -> None:
        lapsed.append(eo.current().lapsed)
        if len(lapsed) == 1:
            raise ValueError
        if len(lapsed) == 2:  # it hangs, and the next delivery comes when its lease has ended
            clock.advance(31)
            in_another_thread.submit(charge, k).result()

    for error in (ValueError, eo.LeaseLost):
        with pytest.raises(error):
            charge("p1")
    in_another_thread.shutdown()
    assert lapsed == [False, False, True]


def test_handlers_that_start_their_successor_keep_no_chain_of_the_past() -> None:
    async def main() -> int:
        store = eo.connect("memory://", sweep_every=None)
        done = asyncio.Event()
        depths: list[int] = []

        @eo.once(store, scope="s", key="n")
        async def step(n: int) -> None:
            depth, run = 0, eo.current()
            while run.parent is not None:
                depth, run = depth + 1, run.parent
            depths.append(depth)
            if n == 200:
                done.set()
            else:
                tasks.append(asyncio.create_task(step(n + 1)))

        tasks: list[Any] = []
        await step(0)
        await done.wait()
        return max(depths)

    assert asyncio.run(main()) <= 1


def test_a_result_that_holds_its_run_is_freed(store: eo.Store) -> None:
    class Holder:
        run: Any

    freed: list[weakref.ref[Holder]] = []

    @eo.once(store, scope="s", key="k")
    def handler(k: str) -> Any:
        holder = Holder()
        holder.run = eo.current()
        freed.append(weakref.ref(holder))
        return holder

    for number in range(10):
        handler(str(number))
    gc.collect()
    assert [ref() for ref in freed] == [None] * 10


@pytest.mark.skipif(sys.version_info < (3, 12), reason="eager tasks came with Python 3.12")
def test_eager_tasks_do_not_wedge_the_group() -> None:
    async def main() -> str:
        asyncio.get_running_loop().set_task_factory(asyncio.eager_task_factory)  # type: ignore[attr-defined]
        async with eo.Store(GroupedBackend(latency=0), sweep_every=None) as store:

            @eo.once(store, scope="s", key="k")
            async def handler(k: str) -> str:
                return k

            for number in range(5):
                await handler(str(number))
            return await handler("last")

    assert asyncio.run(main()) == "last"
