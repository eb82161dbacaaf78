"""The way of one message through a worker stays short enough to be read: receive, claim, run, record, settle."""

from __future__ import annotations

import asyncio
import itertools
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import effectonce as eo

from .bench import until

ROOT = Path(eo.__file__).parent


class Walk:
    """The functions of ours that the event loop's thread calls, in their order, and the tasks that call them."""

    def __init__(self) -> None:
        self.functions: list[CodeType] = []
        self.callers: list[asyncio.Task[Any] | None] = []  # for each of the functions; None: a callback of the loop

    def note(self, frame: FrameType, event: str, argument: Any) -> None:
        if frame.f_code.co_name in ("<listcomp>", "<dictcomp>"):  # Python 3.12 makes no call of them
            return
        if event == "call" and frame.f_code.co_filename.startswith(f"{ROOT}{os.sep}"):
            self.functions.append(frame.f_code)
            self.callers.append(asyncio.current_task())

    def packages(self) -> list[str]:
        """The package of each call; each backend is one."""
        paths = [Path(code.co_filename).relative_to(ROOT).parts for code in self.functions]
        return ["/".join(parts[:2]) if parts[0] == "backends" else parts[0] for parts in paths]

    def until_acked(self) -> None:
        """Leave out what comes after the ack: the next fetch."""
        last = max(at for at, code in enumerate(self.functions) if code.co_name == "buffer_acks")
        del self.functions[last + 1 :], self.callers[last + 1 :]

    @contextmanager
    def noted(self) -> Iterator[None]:
        sys.setprofile(self.note)
        try:
            yield
        finally:
            sys.setprofile(None)


async def test_one_message_on_redis_streams_passes_few_functions(redis_url: str, unique_name: str) -> None:
    broker, store = eo.connect_broker(redis_url), eo.connect(redis_url)
    worker = eo.Worker(broker, store=store, name=unique_name)
    handled: list[str] = []

    @worker.handler(unique_name, scope=unique_name)
    async def handle(message: eo.Message[Any]) -> None:
        handled.append(message.id)

    serving = asyncio.create_task(worker.serve())
    walk = Walk()
    try:
        await broker.apublish(unique_name, [eo.Message(type="paid", data={"order": 1})])
        await until(lambda: worker.consumers and worker.consumers[0].settler.settled["acked"] == 1)
        settled = worker.consumers[0].settler.settled
        await asyncio.sleep(0.1)  # what follows the ack of the first message is not part of the walk
        with walk.noted():
            await asyncio.to_thread(_publish, redis_url, unique_name)
            await until(lambda: settled["acked"] == 2)
    finally:
        worker.stop()
        await asyncio.wait_for(serving, 20)
    walk.until_acked()
    packages = walk.packages()
    changes = sum(before != after for before, after in itertools.pairwise(packages))
    assert len(handled) == 2
    tasks = {task for task in walk.callers if task is not None}
    assert len(tasks) <= 3, "; ".join(str(task.get_coro()) for task in tasks)
    assert len(set(walk.functions)) <= 70, " ".join(sorted(code.co_qualname for code in set(walk.functions)))
    assert changes <= 35


def _publish(url: str, queue: str) -> None:
    with eo.connect_broker(url) as broker:
        broker.publish(queue, [eo.Message(type="paid", data={"order": 2})])
