"""The event loop that sync calls share: one per process, driven by its own thread or by `run()` in the main thread."""

from __future__ import annotations

import asyncio
import contextvars
import subprocess
import sys
import threading
from collections.abc import Iterator

import pytest

import effectonce as eo
from effectonce.core.shared_loop import SharedLoop
from tests.harness import waiting


@pytest.fixture
def loop() -> Iterator[SharedLoop]:
    loop = SharedLoop()
    yield loop
    loop.close(5.0)


async def running_loop() -> asyncio.AbstractEventLoop:
    return asyncio.get_running_loop()


def test_every_call_of_every_thread_runs_on_the_same_loop(loop: SharedLoop) -> None:
    loops = [loop.run(running_loop())]
    thread = threading.Thread(target=lambda: loops.append(loop.run(running_loop())))
    thread.start()
    thread.join()
    loops.append(loop.drive(running_loop()))
    loops.append(loop.run(running_loop()))
    assert len(set(loops)) == 1


def test_a_call_has_the_context_of_its_caller(loop: SharedLoop) -> None:
    name = contextvars.ContextVar("name", default="none")
    name.set("caller")

    async def read() -> str:
        return name.get()

    assert loop.run(read()) == "caller"


def test_an_error_arrives_with_its_traceback_and_the_loop_goes_on(loop: SharedLoop) -> None:
    async def fail(error: BaseException) -> None:
        raise error

    for error in (KeyError("total"), SystemExit(3), KeyboardInterrupt()):
        with pytest.raises(type(error)) as raised:
            loop.run(fail(error))
        assert raised.traceback[-1].name == "fail"
    assert loop.run(running_loop()).is_running()


def test_an_exit_of_one_call_does_not_end_the_others(loop: SharedLoop) -> None:
    results: list[str] = []
    may_end = threading.Event()

    async def wait() -> str:
        await asyncio.to_thread(may_end.wait)
        return "ended"

    async def leave() -> None:
        raise SystemExit(3)

    thread = threading.Thread(target=lambda: results.append(loop.run(wait())))
    thread.start()
    with pytest.raises(SystemExit):
        loop.run(leave())
    may_end.set()
    thread.join()
    assert results == ["ended"]


def test_a_call_is_served_while_another_thread_drives_the_loop_and_after_it(loop: SharedLoop) -> None:
    """Tasks that were started before, during and after `drive` go on: the loop is always driven by somebody."""
    results: list[str] = []
    started, may_end = threading.Event(), threading.Event()

    async def wait(name: str) -> None:
        started.set()
        await asyncio.to_thread(may_end.wait)
        results.append(name)

    async def driving() -> None:
        started.clear()
        during.start()
        await asyncio.to_thread(started.wait)

    before, during = (threading.Thread(target=loop.run, args=(wait(name),)) for name in ("before", "during"))
    before.start()
    assert started.wait(5)
    loop.drive(driving())
    may_end.set()
    before.join(5)
    during.join(5)
    assert sorted(results) == ["before", "during"]


def test_an_exception_in_the_waiting_thread_cancels_its_call_and_waits_for_its_end() -> None:
    """Ctrl-C while `resume()` waits: the saga that runs ends before the program goes on."""
    program = """if True:
        import asyncio, os, signal
        from effectonce.core.shared_loop import shared_loop

        ended = []

        async def work():
            try:
                os.kill(os.getpid(), signal.SIGINT)
                await asyncio.sleep(60)
            finally:
                await asyncio.sleep(0.05)
                ended.append("cleaned up")

        try:
            shared_loop.run(work())
        except KeyboardInterrupt:
            print(*ended)
    """
    assert _run(program) == "cleaned up\n"


def test_a_program_that_leaves_tasks_and_a_broker_open_ends_in_silence() -> None:
    program = """if True:
        import asyncio
        import effectonce as eo
        from effectonce.core.shared_loop import shared_loop

        async def leave():
            asyncio.get_running_loop().create_task(asyncio.sleep(60))

        shared_loop.run(leave())
        broker = eo.connect_broker("memory://")
        broker.publish("orders", eo.Message(type="order.paid", data=1))
        print("end")
    """
    assert _run(program) == "end\n"


def _run(program: str) -> str:
    ended = subprocess.run(
        [sys.executable, "-X", "dev", "-c", program], capture_output=True, text=True, timeout=60, check=False
    )
    assert ended.stderr == ""
    return ended.stdout


def test_a_forked_child_has_a_loop_of_its_own() -> None:
    program = """if True:
        import asyncio, os
        from effectonce.core.shared_loop import shared_loop

        async def answer():
            return os.getpid()

        assert shared_loop.run(answer()) == os.getpid()
        child = os.fork()
        if child == 0:
            os._exit(0 if shared_loop.run(answer()) == os.getpid() else 1)
        assert os.waitpid(child, 0)[1] == 0
        print(shared_loop.run(answer()) == os.getpid())
    """
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False)
    assert ended.stdout == "True\n", ended.stderr


async def test_a_sync_call_inside_an_event_loop_is_refused(loop: SharedLoop) -> None:
    with pytest.raises(eo.SyncAsyncMismatch, match="await the async form"):
        loop.run(running_loop())
    with pytest.raises(eo.SyncAsyncMismatch, match=r"await serve\(\)"):
        loop.drive(running_loop())


def test_a_second_driver_is_refused(loop: SharedLoop) -> None:
    may_end = threading.Event()

    async def wait() -> None:
        await asyncio.to_thread(may_end.wait)

    first = threading.Thread(target=loop.drive, args=(wait(),))
    first.start()
    waiting.until(lambda: loop._driven)
    with pytest.raises(eo.SyncAsyncMismatch, match=r"worker\.add\(relay\)"):
        loop.drive(running_loop())
    may_end.set()
    first.join()


def test_the_loop_is_opened_by_the_first_call(loop: SharedLoop) -> None:
    assert not loop.is_open
    loop.run(running_loop())
    assert loop.is_open
    loop.close(5.0)
    assert not loop.is_open


@pytest.mark.parametrize("state", ["its lock is held", "it is driven"])
def test_a_child_waits_for_no_thread_of_its_parent(state: str) -> None:
    """The fork may come while another thread of the parent is opening the loop, or drives it."""
    loop = SharedLoop()
    if state == "its lock is held":
        loop._lock.acquire()
    else:
        loop._driven = True
    loop.after_fork()

    async def answer() -> int:
        return 7

    answers: list[int] = []
    caller = threading.Thread(target=lambda: answers.append(loop.run(answer())), daemon=True)
    caller.start()
    caller.join(10)
    assert answers == [7]
    loop.close(1)
