"""F70: the rules of group commit, each from a failure that was seen."""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import ctypes
import gc
import os
import random
import signal
import sys
import threading
import time
import weakref
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from typing import Any

import pytest

import effectonce as eo
from effectonce.contracts import ConnectionLost, Contention
from effectonce.core.group_commit import threads as thread_groups
from effectonce.core.group_commit.batches import BatchSizes
from effectonce.core.group_commit.send_batch import send_batch, send_from_thread
from effectonce.core.group_commit.tasks import AsyncGroup
from effectonce.core.group_commit.threads import ThreadGroup
from effectonce.core.run_sync import run_sync
from effectonce.record import Answer, Batchable, Claim, Note, Reply, Settlement
from tests.harness.waiting import auntil, until

from .grouped import GroupedBackend


def claim(key: str, owner: str = "o", **options: Any) -> Claim:
    return Claim("s", key, owner.encode().ljust(16), 60_000_000, 10**10, **options)


def note(key: str) -> Note:
    return Note("s", key, b"o".ljust(16), 1, b"n")


def give_nothing_back(op: Claim, answer: Answer) -> None:
    raise AssertionError("nothing was orphaned here")


async def test_what_waits_goes_out_together_and_a_lone_call_waits_for_nothing() -> None:
    backend = GroupedBackend()
    group = AsyncGroup([backend.async_port()], 128, give_nothing_back, asyncio.get_running_loop())
    await group.submit(claim("alone"))
    await asyncio.gather(*(group.submit(claim(f"k{n}")) for n in range(100)))
    assert [len(batch) for batch in backend.batches] == [1, 100]


async def test_batches_are_counted_by_size_and_empty_ones_not_at_all() -> None:
    backend = GroupedBackend()
    group = AsyncGroup([backend.async_port()], 128, give_nothing_back, asyncio.get_running_loop())
    group.submit(claim("abandoned")).cancel()
    await asyncio.sleep(0)
    assert group.sizes == BatchSizes()
    await asyncio.gather(*(group.submit(claim(f"k{n}")) for n in range(5)))
    await group.submit(claim("alone"))
    assert group.sizes.operations == 6
    assert group.sizes.batches[:4] == [0, 1, 0, 1]


async def test_a_batch_is_sorted_and_names_no_identity_twice() -> None:
    """Unsorted, 82 of 84 statements deadlocked."""
    backend = GroupedBackend()
    group = AsyncGroup([backend.async_port()], 128, give_nothing_back, asyncio.get_running_loop())
    keys = [f"k{n % 20:02}" for n in range(100)]
    random.Random(1).shuffle(keys)
    await asyncio.gather(*(group.submit(claim(key, f"o{n}")) for n, key in enumerate(keys)))
    for batch in backend.batches:
        names = [op.key for op in batch]
        assert names == sorted(set(names))


async def test_a_batch_is_bounded_in_number_and_in_bytes() -> None:
    backend = GroupedBackend(batch=10)
    group = AsyncGroup([backend.async_port()], 10, give_nothing_back, asyncio.get_running_loop())
    await asyncio.gather(*(group.submit(claim(f"k{n}")) for n in range(25)))
    assert [len(batch) for batch in backend.batches] == [10, 10, 5]
    backend.batches.clear()
    heavy = [Settlement("s", f"h{n}", b"", 1, "done", 1, b"x" * 300_000) for n in range(5)]
    await asyncio.gather(*(group.submit(op) for op in heavy))
    assert [len(batch) for batch in backend.batches] == [3, 2]


class Slow:
    """A port whose round trips end when ``answers`` is set."""

    def __init__(self) -> None:
        self.batches: list[int] = []
        self.answers = asyncio.Event()

    async def run(self, batch: Sequence[Batchable]) -> Sequence[Reply]:
        self.batches.append(len(batch))
        await self.answers.wait()
        return [True] * len(batch)


def side(claims: Slow, settlements: Slow) -> tuple[AsyncGroup, AsyncGroup]:
    """The two groups of one loop, each with two ports."""
    loop = asyncio.get_running_loop()
    first = AsyncGroup([claims, claims], 128, give_nothing_back, loop)  # type: ignore[list-item]
    second = AsyncGroup([settlements, settlements], 128, give_nothing_back, loop)  # type: ignore[list-item]
    first.neighbour, second.neighbour = second, first
    return first, second


@pytest.mark.parametrize("beside", [False, True])
async def test_a_second_round_trip_goes_out_beside_the_first_where_enough_wait(beside: bool) -> None:
    """Fewer are enough where the other group has nothing under way, so that the store has something to do."""
    claims, settlements = Slow(), Slow()
    first, second = side(claims, settlements)
    waiting = [first.submit(claim("beside"))] if beside else []
    waiting.append(second.submit(note("alone")))
    await asyncio.sleep(0)
    enough = 32 if beside else 16
    waiting += [second.submit(note(f"k{n}")) for n in range(enough - 1)]
    await asyncio.sleep(0)
    assert settlements.batches == [1]
    waiting.append(second.submit(note("one more")))
    await asyncio.sleep(0)
    assert settlements.batches == [1, enough]
    claims.answers.set()
    settlements.answers.set()
    await asyncio.gather(*waiting)


async def test_notes_in_step_go_out_in_halves_and_claims_do_not() -> None:
    """Fifty sagas at once would else wait for the store together, and then it for them."""
    claims, settlements = Slow(), Slow()
    first, second = side(claims, settlements)
    claims.answers.set()
    settlements.answers.set()

    async def caller(n: int) -> None:
        await first.submit(claim(f"k{n}"))
        for _ in range(3):
            await second.submit(note(f"k{n}"))

    await asyncio.gather(*(caller(n) for n in range(50)))
    assert claims.batches == [50]
    assert settlements.batches == [25] * 6


async def test_a_caller_that_submits_again_does_not_wait_for_the_other_half() -> None:
    """Else the two halves go out together from then on, and the loop and the store wait for each other in turn."""
    one, other = Slow(), Slow()
    loop = asyncio.get_running_loop()
    group = AsyncGroup([one, other], 128, give_nothing_back, loop)  # type: ignore[list-item]

    async def caller(number: int) -> None:
        await group.submit(note(f"k{number}"))
        await group.submit(note(f"k{number}, again"))

    callers = [asyncio.create_task(caller(number)) for number in range(40)]
    await settled()
    assert (one.batches, other.batches) == ([20], [20])
    one.answers.set()
    await settled()
    assert one.batches == [20, 20]
    assert other.batches == [20]
    other.answers.set()
    await asyncio.gather(*callers)


async def settled() -> None:
    """Let the loop run until nothing more happens by itself."""
    for _ in range(10):
        await asyncio.sleep(0)


async def test_refusals_are_shared_and_grants_are_not() -> None:
    backend = GroupedBackend()
    group = AsyncGroup([backend.async_port()], 128, give_nothing_back, asyncio.get_running_loop())
    answers = await asyncio.gather(*(group.submit(claim("hot", f"o{n}")) for n in range(500)))
    assert sorted(answer.kind for answer in answers).count("claimed") == 1
    assert backend.round_trips == 2


async def test_a_refusal_is_not_shared_with_another_payload() -> None:
    backend = GroupedBackend()
    group = AsyncGroup([backend.async_port()], 128, give_nothing_back, asyncio.get_running_loop())
    prints = [b"\1" + bytes([n % 2]) * 32 for n in range(10)]
    answers = await asyncio.gather(*(group.submit(claim("hot", f"o{n}", fingerprints=p)) for n, p in enumerate(prints)))
    assert [answer.kind for answer in answers[1::2]] == ["mismatch"] * 5
    assert sorted({answer.kind for answer in answers[0::2]}) == ["claimed", "in_progress"]


async def test_a_cancelled_waiter_leaves_the_queue_and_harms_nobody() -> None:
    """Cancelling the leader once hung its followers: the flusher is not a waiter's own task."""
    backend = GroupedBackend(latency=0.05)
    given_back: list[str] = []
    group = AsyncGroup(
        [backend.async_port()], 128, lambda op, answer: given_back.append(op.key), asyncio.get_running_loop()
    )

    async def caller(key: str) -> Answer:
        return await group.submit(claim(key))  # type: ignore[no-any-return]

    first = asyncio.create_task(caller("a"))
    while not backend.batches:  # noqa: ASYNC110  # until "a" is on its way; no timer is looked at in between
        await asyncio.sleep(0)
    queued = [asyncio.create_task(caller(key)) for key in ("b", "c")]
    await asyncio.sleep(0)
    first.cancel()
    queued[0].cancel()
    assert (await queued[1]).kind == "claimed"
    assert given_back == ["a"], "a grant that no waiter takes is given back"
    assert [op.key for batch in backend.batches for op in batch] == ["a", "c"]


async def test_a_settlement_goes_out_even_when_its_caller_is_cancelled() -> None:
    """F16: the effect has happened; only the waiter that would hear that it was recorded is gone."""
    async with eo.Store(GroupedBackend(latency=0.02), sweep_every=None) as store:
        ran = asyncio.Event()

        @eo.once(store, scope="s", key="k")
        async def handler(k: str) -> str:
            ran.set()
            return "receipt"

        busy = [asyncio.create_task(handler(f"other{n}")) for n in range(3)]
        task = asyncio.create_task(handler("k"))
        await ran.wait()
        task.cancel()
        await asyncio.wait([task, *busy])
        await asyncio.sleep(0.1)
        assert (await handler.call("k")).replayed


async def test_a_group_is_closed_between_two_round_trips_and_what_waits_goes_out_after_that() -> None:
    backend = GroupedBackend(latency=0.02)
    group = AsyncGroup([backend.async_port()], 128, lambda claim, answer: None, asyncio.get_running_loop())
    first = group.submit(claim("first"))
    async with asyncio.timeout(10):
        while not backend.batches:  # noqa: ASYNC110
            await asyncio.sleep(0)
        second = group.submit(claim("second"))
        await group.close()
        assert (first.done(), second.done()) == (True, False)
        assert (await second).kind == "claimed"


async def test_a_task_that_is_cancelled_while_it_claims_ends_as_cancelled() -> None:
    """And not with an error of ours about an answer that never came."""
    backend = GroupedBackend(latency=0.05)
    handled: list[str] = []

    @eo.once(eo.Store(backend, sweep_every=None), scope="charge", key="k")
    async def charge(k: str) -> None:
        handled.append(k)

    task = asyncio.create_task(charge("p1"))
    async with asyncio.timeout(10):
        while not backend.batches:  # noqa: ASYNC110
            await asyncio.sleep(0)
    task.cancel()
    await asyncio.wait([task])
    assert task.cancelled()
    assert handled == []


async def test_a_grant_that_arrives_with_the_cancellation_is_released() -> None:
    async with eo.Store(GroupedBackend(latency=0.01), sweep_every=None) as store:
        runs: list[int] = []

        @eo.once(store, scope="s", key="k")
        async def handler(k: str) -> None:
            runs.append(1)

        for delay in (0.002, 0.0098, 0.0101, 0.0103, 0.012):
            task = asyncio.create_task(handler("k"))
            await asyncio.sleep(delay)
            task.cancel()
            await asyncio.wait([task])
            for _ in range(500):
                record = store.get("s", "k")
                if record is None or record.state != "claimed":
                    break
                await asyncio.sleep(0.01)
            assert record is None or record.state in ("free", "done"), (delay, record)
            if record is not None and record.state == "free" and not runs:
                assert record.attempts == 0, "work that never started is not an attempt"


async def test_the_flusher_carries_no_callers_context() -> None:
    variable: contextvars.ContextVar[str] = contextvars.ContextVar("request", default="none")
    seen: list[str] = []

    class Port:
        async def run(self, batch: Sequence[Batchable]) -> Sequence[Reply]:
            seen.append(variable.get())
            return [True] * len(batch)

    variable.set("alice")
    group = AsyncGroup([Port()], 128, give_nothing_back, asyncio.get_running_loop())  # type: ignore[arg-type]
    await group.submit(claim("k"))
    assert seen == ["none"]


def test_threads_share_round_trips_and_each_gets_its_own_reply(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(thread_groups, "FOLLOWER_TIMEOUT_S", 60.0)  # each is woken, none has to look
    backend = GroupedBackend(latency=0.005)
    group = ThreadGroup(backend.sync_port(), 128, give_nothing_back)
    answers: dict[int, Answer] = {}

    def work(number: int) -> None:
        for turn in range(5):
            answers[number * 10 + turn] = group.submit(claim(f"k{number}-{turn}"))

    threads = [threading.Thread(target=work, args=(number,)) for number in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert len(answers) == 80
    assert {answer.kind for answer in answers.values()} == {"claimed"}
    assert backend.round_trips < 40


def test_a_leader_that_is_interrupted_leaves_no_thread_waiting() -> None:
    """A leader that raised without settling its followers once hung them all."""

    class Port:
        def __init__(self) -> None:
            self.calls = 0
            self.entered = threading.Event()
            self.go = threading.Event()

        async def run(self, batch: Sequence[Batchable]) -> Sequence[Reply]:
            self.calls += 1
            if self.calls == 1:
                self.entered.set()
                self.go.wait(10)
            if self.calls == 2:
                raise KeyboardInterrupt
            return [True] * len(batch)

    port = Port()
    group = ThreadGroup(port, 128, give_nothing_back)  # type: ignore[arg-type]
    results: list[str] = []

    def work(key: str) -> None:
        try:
            group.submit(claim(key))
            results.append("answered")
        except KeyboardInterrupt:
            results.append("interrupted")

    threads = [threading.Thread(target=work, args=(f"k{n}",)) for n in range(6)]
    threads[0].start()
    port.entered.wait(10)
    for thread in threads[1:]:
        thread.start()
    while len(group._queue) < 5:
        pass
    port.go.set()
    for thread in threads:
        thread.join(10)
    assert sorted(results) == ["answered"] * 5 + ["interrupted"]


class Script:
    """A port that fails as told, then answers."""

    def __init__(self, *failures: Exception, bad: str = "") -> None:
        self.failures = list(failures)
        self.bad = bad
        self.sizes: list[int] = []

    async def run(self, batch: Sequence[Batchable]) -> Sequence[Reply]:
        self.sizes.append(len(batch))
        if any(op.key == self.bad for op in batch):
            raise ValueError("this key is not for me")
        if self.failures:
            raise self.failures.pop(0)
        return [True] * len(batch)


def send(port: Script, *keys: str) -> list[Any]:
    return list(send_from_thread(port, [claim(key) for key in keys]))  # type: ignore[arg-type]


def test_a_lost_connection_is_tried_once_more() -> None:
    assert send(Script(ConnectionLost("reset")), "a", "b") == [True, True]
    replies = send(Script(ConnectionLost("reset"), ConnectionLost("reset")), "a", "b")
    assert all(isinstance(reply, eo.StoreUnavailable) for reply in replies)


def test_contention_is_tried_again_then_split_then_given_up() -> None:
    port = Script(*[Contention("deadlock")] * 3)
    assert send(port, "a", "b") == [True, True]
    assert port.sizes == [2, 2, 2, 2]
    port = Script(*[Contention("deadlock")] * 6)
    assert send(port, "a", "b") == [True, True]
    assert port.sizes == [2] * 6 + [1, 1]
    (reply,) = send(Script(*[Contention("deadlock")] * 20), "a")
    assert isinstance(reply, eo.StoreUnavailable)
    assert isinstance(reply.__cause__, Contention), "which says what it met"


def test_the_pauses_between_tries_for_a_contended_row_grow(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that rivals that met once do not meet again and again."""
    pauses: list[float] = []

    async def pause(seconds: float) -> None:
        pauses.append(seconds)

    def meet_five_rivals() -> None:
        port: Any = Script(*[Contention("deadlock")] * 5)
        run_sync(send_batch(port, [claim("a")], pause))

    meet_five_rivals()
    assert sum(pauses) < 0.15, "and are short: a caller waits"
    pauses.clear()
    monkeypatch.setattr(random, "uniform", lambda shortest, longest: longest)
    meet_five_rivals()
    assert 0 < pauses[0] < 0.01
    assert all(later == 2 * earlier for earlier, later in pairwise(pauses))


def test_one_bad_key_harms_itself_only() -> None:
    replies = send(Script(bad="b"), "a", "b", "c")
    assert replies[0] is replies[2] is True
    assert isinstance(replies[1], ValueError)


def test_a_dead_store_is_not_asked_for_each_key() -> None:
    port = Script(eo.StoreUnavailable("refused"))
    assert all(isinstance(reply, eo.StoreUnavailable) for reply in send(port, "a", "b", "c"))
    assert port.sizes == [3]


def test_a_store_that_goes_away_while_a_batch_is_sent_one_by_one_is_not_asked_for_the_rest() -> None:
    port = Script(ValueError("one of them is bad"), eo.StoreUnavailable("refused"))
    assert all(isinstance(reply, eo.StoreUnavailable) for reply in send(port, "a", "b", "c"))
    assert port.sizes == [3, 1]


@pytest.mark.parametrize("cancelled", [False, True])
async def test_a_batch_ends_with_its_task_and_not_with_a_driver_that_cancels_itself(cancelled: bool) -> None:
    class Port:
        calls = 0

        async def run(self, batch: Sequence[Batchable]) -> Sequence[Reply]:
            self.calls += 1
            if not cancelled:
                raise asyncio.CancelledError("the driver's own")
            await asyncio.Event().wait()
            raise AssertionError

    port = Port()
    sending = asyncio.create_task(send_batch(port, [claim("a"), claim("b")]))  # type: ignore[arg-type]
    await auntil(lambda: port.calls > 0)
    if cancelled:
        sending.cancel()
    await asyncio.wait([sending], timeout=30)
    assert sending.cancelled() is cancelled
    if not cancelled:
        assert all(isinstance(reply, eo.StoreUnavailable) for reply in sending.result())
    assert port.calls == 1


async def test_waiters_of_one_failed_batch_get_errors_of_their_own() -> None:
    class Port:
        async def run(self, batch: Sequence[Batchable]) -> Sequence[Reply]:
            raise eo.StoreUnavailable("refused", 3.0)

    group = AsyncGroup([Port()], 128, give_nothing_back, asyncio.get_running_loop())  # type: ignore[arg-type]
    errors = await asyncio.gather(*(group.submit(claim(f"k{n}")) for n in range(3)), return_exceptions=True)
    assert len({id(error) for error in errors}) == 3
    assert [(str(error), error.retry_after) for error in errors] == [("refused", 3.0)] * 3  # type: ignore[union-attr]


@pytest.mark.parametrize("tasks", [1, 50])
async def test_a_store_behind_groups_keeps_the_guards_promise(tasks: int) -> None:
    async with eo.Store(GroupedBackend(), sweep_every=None) as store:
        runs: list[str] = []

        @eo.once(store, scope="s", key="k", wait="10s")
        async def handler(k: str) -> str:
            runs.append(k)
            await asyncio.sleep(0)
            return k

        keys = [f"k{n % 10}" for n in range(tasks)]
        assert await asyncio.gather(*map(handler, keys)) == keys
        assert sorted(runs) == sorted(set(keys))


class Held:
    """A port whose first round trip takes until ``go``."""

    def __init__(self) -> None:
        self.entered, self.go = threading.Event(), threading.Event()
        self.sent: list[str] = []

    async def run(self, batch: Sequence[Batchable]) -> Sequence[Reply]:
        self.sent += [op.key for op in batch]
        self.entered.set()
        self.go.wait(10)
        return [Answer("claimed", 1, 1) if isinstance(op, Claim) else True for op in batch]


class Interruption(BaseException):
    pass


@contextlib.contextmanager
def interrupted_soon() -> Iterator[None]:
    """The main thread gets an exception while it blocks, as by Ctrl-C or a worker's time limit."""

    def interrupt(*_: object) -> None:
        raise Interruption

    before = signal.signal(signal.SIGUSR1, interrupt)
    timer = threading.Timer(0.2, lambda: os.kill(os.getpid(), signal.SIGUSR1))
    timer.start()
    try:
        yield
    finally:
        timer.join()
        signal.signal(signal.SIGUSR1, before)


def held_group() -> tuple[Held, ThreadGroup, list[str], threading.Thread]:
    port, orphans = Held(), []
    group = ThreadGroup(port, 128, lambda op, answer: orphans.append(op.key))  # type: ignore[arg-type]
    leader = threading.Thread(target=lambda: group.submit(claim("first")))
    leader.start()
    port.entered.wait(10)
    return port, group, orphans, leader


def test_an_interrupted_thread_still_sends_its_settlement() -> None:
    """F16: interrupted while the completion waits its turn, it goes out first, then the interruption is raised."""
    port, group, _, leader = held_group()
    threading.Timer(0.6, port.go.set).start()
    with interrupted_soon(), pytest.raises(Interruption):
        group.submit(Settlement("s", "done", b"", 1, "done", 1))
    leader.join(10)
    assert port.sent == ["first", "done"]


@pytest.mark.parametrize("key", ["other", "first"])
def test_an_interrupted_claim_is_taken_back_and_nobody_hangs(key: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where it waits behind another claim of its key: it must not come to lead when no other waits."""
    monkeypatch.setattr(
        thread_groups, "FOLLOWER_TIMEOUT_S", 60.0
    )  # those who were answered with it are woken all the same
    port, group, orphans, leader = held_group()
    behind = threading.Thread(target=lambda: group.submit(claim("last")))
    behind.start()
    with interrupted_soon(), pytest.raises(Interruption):
        group.submit(claim(key, "main"))
    port.go.set()
    for thread in (leader, behind):
        thread.join(10)
        assert not thread.is_alive()
    assert group.submit(claim("later")).kind == "claimed"
    assert orphans == [] or key in orphans


def test_a_claim_that_is_granted_after_its_thread_was_interrupted_is_given_back() -> None:
    """Its thread never hears of the grant, which would keep the key for a whole lease."""
    trips: list[list[str]] = []
    go = [threading.Event(), threading.Event()]
    orphans: list[str] = []

    class Port:
        async def run(self, batch: Sequence[Batchable]) -> Sequence[Reply]:
            trips.append([op.key for op in batch])
            go[len(trips) - 1].wait(60)
            return [Answer("claimed", 1, 1) for _ in batch]

    def interrupt(*_: object) -> None:
        raise Interruption

    def interrupt_main_thread_in_second_trip() -> None:
        until(lambda: len(group._queue) == 2)
        go[0].set()
        until(lambda: len(trips) == 2)
        os.kill(os.getpid(), signal.SIGUSR1)

    group = ThreadGroup(Port(), 128, lambda op, answer: orphans.append(op.key))  # type: ignore[arg-type]
    leader = threading.Thread(target=lambda: group.submit(claim("first")))
    leader.start()
    until(lambda: trips)
    behind = threading.Thread(target=lambda: group.submit(claim("behind")))
    behind.start()
    until(lambda: len(group._queue) == 1)
    before = signal.signal(signal.SIGUSR1, interrupt)
    helper = threading.Thread(target=interrupt_main_thread_in_second_trip)
    helper.start()
    try:
        with pytest.raises(Interruption):
            group.submit(claim("interrupted"))
    finally:
        helper.join()
        signal.signal(signal.SIGUSR1, before)
        go[1].set()
    for thread in (leader, behind):
        thread.join(60)
    assert (trips, orphans) == ([["first"], ["behind", "interrupted"]], ["interrupted"])


@pytest.mark.parametrize("callers", [1, 4])
def test_an_error_does_not_keep_what_its_caller_had(callers: int) -> None:
    """A consumer that tries again and again while the store is away: all that it had in hand each time stayed."""

    class Away:
        async def run(self, batch: Sequence[Batchable]) -> Sequence[Reply]:
            time.sleep(0.001)  # noqa: ASYNC251  # so that the others wait for it
            raise eo.StoreUnavailable("away")

    class Body:
        pass

    group = ThreadGroup(Away(), 128, give_nothing_back)  # type: ignore[arg-type]
    bodies: list[weakref.ref[Body]] = []

    def attempt(number: int) -> None:
        body = Body()
        bodies.append(weakref.ref(body))
        with contextlib.suppress(eo.StoreUnavailable):
            group.submit(claim(f"k{number}"))

    with ThreadPoolExecutor(callers) as pool:
        list(pool.map(attempt, range(40)))
    gc.collect()
    assert len(bodies) == 40
    assert not any(body() for body in bodies)


def at_line(at: int, act: Callable[[], object]) -> tuple[Any, list[int]]:
    """What traces a thread, and does ``act`` at its ``at``-th line in the group; and which line that was, if any."""
    file = ThreadGroup.submit.__code__.co_filename
    reached, lines = list[int](), [0]

    def trace(frame: Any, event: str, arg: Any) -> Any:
        if frame.f_code.co_filename != file:
            return None
        if event == "line":
            lines[0] += 1
            if lines[0] == at:
                reached.append(frame.f_lineno)
                act()
        return trace

    return trace, reached


def interrupt_at(at: int) -> tuple[Any, list[int]]:
    """What profiles a thread, and interrupts it at the ``at``-th place in the group where the interpreter looks for
    signals and thrown exceptions: when a function begins, and when a call of C code has returned. And in which line
    that was, if any."""
    file = ThreadGroup.submit.__code__.co_filename
    reached, places = list[int](), [0]

    def profile(frame: Any, event: str, arg: Any) -> None:
        if frame.f_code.co_filename == file and event in ("call", "c_return"):
            places[0] += 1
            if places[0] == at:
                reached.append(frame.f_lineno)
                raise Interruption

    return profile, reached


@pytest.mark.parametrize("part", ["lone leader", "leader of others", "follower"])
def test_no_thread_can_be_interrupted_so_that_others_hang(part: str) -> None:
    """By an exception at every place in turn, as a worker's time limit throws it: the others are all answered."""

    def attempt(at: int) -> bool:
        """Interrupt the thread at its ``at``-th place; whether there was one."""
        port = Held()
        group = ThreadGroup(port, 128, lambda op, answer: None)  # type: ignore[arg-type]
        profile, reached = interrupt_at(at)

        def interrupted() -> None:
            sys.setprofile(profile)
            with contextlib.suppress(Interruption):
                group.submit(claim("interrupted"))
            sys.setprofile(None)

        victim = threading.Thread(target=interrupted)
        others = [threading.Thread(target=lambda n=n: group.submit(claim(f"f{n}"))) for n in range(2)]
        threads = [*others, victim] if part == "follower" else [victim, *others]
        if part == "lone leader":
            port.go.set()
            for thread in threads:
                thread.start()
        else:  # they queue, in this order, behind one that is held up; who is first there leads the others
            first = threading.Thread(target=lambda: group.submit(claim("first")))
            first.start()
            port.entered.wait(10)
            for thread in threads:
                waiting = len(group._queue)
                thread.start()
                while len(group._queue) == waiting and thread.is_alive():
                    pass
            port.go.set()
        for thread in threads:
            thread.join(20)
            assert not thread.is_alive(), f"hung after line {reached}"
        assert group.submit(claim("later")).kind == "claimed", f"wedged after line {reached}"
        return bool(reached)

    tried = 0
    while attempt(tried + 1):
        tried += 1
    assert tried > 8


@pytest.mark.parametrize("company", [False, True])
@pytest.mark.parametrize("count", [1, 2, 3, 4])  # more would not fit onto the stack that faulthandler gives them
def test_signals_that_come_all_at_once_do_not_lose_the_lead(count: int, company: bool) -> None:
    """Each raises at the next place where the interpreter looks: also on the way out of what the one before ended."""
    signals = [signal.SIGRTMIN + number for number in range(count)]
    libc, nothing = ctypes.CDLL(None), ctypes.create_string_buffer(1024)
    struck: list[int] = []

    def interrupt(number: int, frame: object) -> None:
        struck.append(number)
        raise Interruption

    class Struck(Held):
        async def run(self, batch: Sequence[Batchable]) -> Sequence[Reply]:
            if threading.current_thread() is threading.main_thread():
                signal.pthread_sigmask(signal.SIG_BLOCK, signals)
                for number in signals:
                    signal.pthread_kill(threading.get_ident(), number)
                # Not by `signal.pthread_sigmask`, which would look at the first and forget to look again.
                libc.pthread_sigmask(signal.SIG_SETMASK, nothing, None)
            return await super().run(batch)

    def calmly(work: Callable[[], Any], more: int) -> None:
        try:
            calmly(work, more - 1) if more else work()
        except Interruption:
            time.sleep(0)  # where the next one may come

    port = Struck()
    group = ThreadGroup(port, 128, give_nothing_back)  # type: ignore[arg-type]
    group._had_company = company  # as after a batch of several
    port.go.set()
    before = [signal.signal(number, interrupt) for number in signals]
    gc.disable()  # an interruption of a callback of the collector (Hypothesis has one) would be swallowed
    try:
        calmly(lambda: group.submit(claim("struck")), count)
    finally:
        gc.enable()
        for number, handler in zip(signals, before, strict=True):
            signal.signal(number, handler)
    assert sorted(struck) == signals
    answered: list[str] = []
    later = threading.Thread(target=lambda: answered.append(group.submit(claim("later")).kind), daemon=True)
    later.start()
    later.join(10)
    assert answered == ["claimed"]


def test_exceptions_that_another_thread_throws_again_and_again_wedge_nobody() -> None:
    """Not enumerated, but thrown as task queues throw their time limits, wherever the thread is."""
    group = ThreadGroup(GroupedBackend(latency=0.0).sync_port(), 128, lambda op, answer: None)
    stop, counts = threading.Event(), Counter[str]()

    def submit_until_stopped(name: str) -> None:
        number = 0
        while not stop.is_set():
            number += 1
            try:
                group.submit(claim(f"{name}{number}"))
                counts[name] += 1
            except Interruption:
                counts[f"interrupted {name}"] += 1

    def victim() -> None:
        while not stop.is_set():
            with contextlib.suppress(Interruption):  # it may strike outside of the group, too
                submit_until_stopped("victim")

    threads = [
        threading.Thread(target=victim),
        *(threading.Thread(target=submit_until_stopped, args=(f"other{n}",)) for n in range(2)),
    ]
    for thread in threads:
        thread.start()
    for _ in range(300):
        ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(threads[0].ident), ctypes.py_object(Interruption))
        time.sleep(0.001)
    until(lambda: counts["interrupted victim"] > 0)
    before = counts["other0"], counts["other1"]
    until(lambda: counts["other0"] > before[0] and counts["other1"] > before[1])
    stop.set()
    for thread in threads:
        thread.join(20)
        assert not thread.is_alive()


@pytest.mark.parametrize("company", [False, True])
def test_no_line_of_a_thread_can_take_so_long_that_two_are_at_the_store(
    company: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A machine that is busy holds a thread up at every line in turn, until the others take it for dead."""
    monkeypatch.setattr(thread_groups, "FOLLOWER_TIMEOUT_S", 0.001)
    met: list[str] = []

    class Narrow:
        at_work = threading.Lock()

        async def run(self, batch: Sequence[Batchable]) -> Sequence[Reply]:
            if not self.at_work.acquire(False):
                met.append(batch[0].key)
                return [RuntimeError("two at once")] * len(batch)
            time.sleep(0.003)  # noqa: ASYNC251
            self.at_work.release()
            return [Answer("claimed", 1, 1)] * len(batch)

    def attempt(at: int) -> bool:
        """Hold the thread up at its ``at``-th line; whether there was one."""
        group = ThreadGroup(Narrow(), 128, give_nothing_back)  # type: ignore[arg-type]
        resumed = threading.Event()
        trace, reached = at_line(at, lambda: resumed.wait(0.03))

        def held_up() -> None:
            sys.settrace(trace)
            group.submit(claim("held up"))
            sys.settrace(None)

        def others(number: int) -> None:
            while not resumed.is_set():
                assert group.submit(claim(f"{number}")).kind == "claimed"

        threads = [threading.Thread(target=others, args=(n,)) for n in range(3)]
        victim = threading.Thread(target=held_up)
        for thread in [*threads, victim] if company else [victim, *threads]:
            thread.start()
        victim.join(20)
        resumed.set()
        for thread in threads:
            thread.join(20)
            assert not thread.is_alive(), f"hung after line {reached}"
        assert not met, f"two were at the store after line {reached}"
        return bool(reached)

    tried = 0
    while attempt(tried + 1):
        tried += 1
    assert tried > 15


class ClosedGate:
    """A taken lock without a clock: a blocked thread times out when the test says so."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._closed = True
        self.blocks = False  # somebody, until it is opened or told to time out

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:
        with self._changed:
            self.blocks = blocking and self._closed
            self._changed.wait_for(lambda: not self.blocks)
            opened, self._closed = not self._closed, True
            return opened

    def release(self) -> None:
        with self._changed:
            if not self._closed:
                raise RuntimeError("release unlocked lock")
            self._closed = self.blocks = False
            self._changed.notify()

    def time_out(self) -> None:
        with self._changed:
            self.blocks = False
            self._changed.notify()


@pytest.mark.parametrize("late", [0, 1, 2])
def test_a_follower_that_times_out_uses_up_nobodys_wake_up(late: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """At every line of its leader in turn, also in the instant of its reply: the others are all woken."""
    monkeypatch.setattr(thread_groups, "_closed_gate", ClosedGate)
    file = ThreadGroup.submit.__code__.co_filename

    def attempt(at: int) -> bool:
        """Let the follower time out at its leader's ``at``-th line; whether there was one."""
        port = Held()
        group = ThreadGroup(port, 128, give_nothing_back)  # type: ignore[arg-type]
        followers: list[tuple[threading.Thread, Any]] = []  # each with its gate
        reached, lines = [], [0]

        def trace(frame: Any, event: str, arg: Any) -> Any:
            if frame.f_code.co_filename != file:
                return None
            if event == "line" and port.go.is_set():
                lines[0] += 1
                if lines[0] == at:
                    reached.append(frame.f_lineno)
                    followers[late][1].time_out()
                    while any(thread.is_alive() and not gate.blocks for thread, gate in followers):
                        pass  # until each has left, or blocks again
            return trace

        def submit(key: str) -> None:
            group.submit(claim(key))

        def submit_traced(key: str) -> None:
            sys.settrace(trace)
            submit(key)
            sys.settrace(None)

        def start(key: str, target: Callable[[str], None] = submit) -> threading.Thread:
            thread = threading.Thread(target=target, args=(key,), daemon=True)
            thread.start()
            return thread

        def gate_of(place: int) -> Any:
            while len(group._queue) <= place or not getattr(group._queue[place].gate, "blocks", False):
                pass
            return group._queue[place].gate

        first = start("first")
        port.entered.wait(10)
        leader = start("leader", submit_traced)
        gate_of(0)
        followers += [(start(f"f{n}"), gate_of(1 + n)) for n in range(3)]
        port.go.set()
        for thread in (first, leader, *(thread for thread, _ in followers)):
            thread.join(10)
        asleep = [thread for thread, _ in followers if thread.is_alive()]
        for _, gate in followers:
            gate.time_out()
        assert not asleep, f"{len(asleep)} sleep on after line {reached}"
        return bool(reached)

    tried = 0
    while attempt(tried + 1):
        tried += 1
    assert tried > 15


def test_a_settlement_whose_lone_thread_was_interrupted_is_sent_again_by_the_next_one() -> None:
    """Ctrl-C in the middle of its round trip: the effect has happened, and its record must not wait for a duplicate."""

    class Port:
        def __init__(self) -> None:
            self.trips: list[list[str]] = []

        async def run(self, operations: Sequence[Batchable]) -> list[Reply]:
            self.trips.append([operation.key for operation in operations])
            if len(self.trips) == 1:
                raise KeyboardInterrupt
            return [True] * len(operations)

    port: Any = Port()
    group = ThreadGroup(port, 128, give_nothing_back)
    with pytest.raises(KeyboardInterrupt):
        group.submit(Settlement("s", "interrupted", b"", 1, "done", 1))
    assert group.submit(Settlement("s", "next", b"", 1, "done", 1)) is True
    assert [key for trip in port.trips[1:] for key in trip] == ["interrupted", "next"]
