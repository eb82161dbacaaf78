"""Starting, stopping, and what is lost in between: nothing."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import threading
import time
from itertools import pairwise
from typing import Any

import msgspec
import pytest

import effectonce as eo
from effectonce.contracts import BrokerCapabilities
from effectonce.worker import delivery_settler

from .bench import Backend, Bench, Watched, paid, serving, until

# -- what a worker refuses to start with


class Paid(msgspec.Struct):
    order: int


class Lost(msgspec.Struct):
    order: int


def with_handler(worker: eo.Worker, **options: Any) -> eo.Worker:
    @worker.handler("orders", **options)
    async def charge(message: eo.Message[Any]) -> None: ...

    return worker


def capable(bench: Bench, **capabilities: Any) -> None:
    bench.backend.capabilities = BrokerCapabilities(name="slow", **capabilities)


async def test_f25_a_retention_shorter_than_the_last_possible_duplicate_is_refused() -> None:
    bench = Bench()
    capable(bench, redelivery_horizon_s=14 * 86400.0)
    with pytest.raises(
        eo.ConfigurationError,
        match=r"for 10d, but a duplicate may come after 14d.* \(14d redelivery by slow .* set retention=",
    ):
        await with_handler(bench.worker(), retention="10d").check()
    await with_handler(bench.worker(name="b")).check()
    with pytest.raises(eo.ConfigurationError, match="redrive_within"):
        await with_handler(bench.worker(name="c", redrive_within="7d")).check()
    retry = eo.Retry(40, first="1h", cap="1d")
    with pytest.raises(eo.ConfigurationError, match="of retries"):
        await with_handler(bench.worker(name="d"), retry=retry).check()


async def test_f25_retries_forever_whose_delays_grow_without_limit_are_refused() -> None:
    bench = Bench()
    with pytest.raises(eo.ConfigurationError, match="give its Retry a cap, or a number of attempts"):
        await with_handler(bench.worker(), retry=eo.Retry(None, cap=None)).check()
    await with_handler(bench.worker(name="b"), retry=eo.Retry(None, cap="1d")).check()
    await with_handler(bench.worker(name="c"), retry=eo.Retry(10, cap=None)).check()


async def test_f55_a_lease_of_the_ack_window_or_longer_is_refused() -> None:
    bench = Bench(ack_window=20.0)
    with pytest.raises(eo.ConfigurationError, match=r"lease of 20s, and memory delivers again after 20s"):
        await with_handler(bench.worker(), lease="20s").check()
    worker = with_handler(bench.worker(name="b"))
    await worker.check()
    assert worker.routes[0].policy.lease_us == 10_000_000, "a default lease fits itself"
    bench = Bench(ack_window=70.0)
    worker = with_handler(bench.worker())
    await worker.check()
    assert worker.routes[0].policy.lease_us == 30_000_000, "twice the default lease fits, so it stays"


def test_a_handler_that_cannot_work_is_refused_when_it_is_decorated() -> None:
    worker = Bench().worker()
    handler = worker.handler("orders")
    with pytest.raises(eo.ConfigurationError, match=r"must take \(message\)"):
        handler(lambda: None)
    with pytest.raises(eo.ConfigurationError, match="must take"):
        handler(lambda connection, message: None)
    with pytest.raises(eo.ConfigurationError, match="write Message\\[int\\]"):

        @worker.handler("orders")
        def wrong(message: int) -> None: ...

    with pytest.raises(eo.ConfigurationError, match="no message can be read"):

        @worker.handler("orders")
        def unreadable(message: eo.Message[Paid | Lost]) -> None: ...

    with pytest.raises(eo.ConfigurationError, match="generator"):

        @worker.handler("orders")
        def generates(message: eo.Message[Any]) -> Any:
            yield

    with pytest.raises(eo.InvalidOption, match="not a name for a queue"):
        worker.handler("orders; drop")(lambda message: None)
    with pytest.raises(eo.ConfigurationError, match="concurrency"):
        worker.handler("orders", concurrency=0)(lambda message: None)


def test_one_message_has_one_handler() -> None:
    worker = with_handler(Bench().worker())
    with pytest.raises(eo.ConfigurationError, match="has a handler for messages of other types already"):
        with_handler(worker, scope="another")


async def test_a_worker_without_handlers_or_that_serves_already_says_so() -> None:
    bench = Bench()
    worker = bench.worker()
    with pytest.raises(eo.ConfigurationError, match="no handlers"):
        await worker.serve()
    async with serving(with_handler(worker)):
        await asyncio.sleep(0)
        with pytest.raises(eo.ConfigurationError, match="already serving"):
            await worker.serve()


async def test_a_store_that_cannot_keep_its_promise_is_refused_and_one_that_is_away_is_waited_for(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    bench = Bench()
    answers: list[Exception] = [eo.StoreUnavailable("refused"), eo.UnsafeStore("it evicts")]

    def check() -> None:
        raise answers.pop(0)

    monkeypatch.setattr(bench.store, "check", check)
    with caplog.at_level(logging.WARNING, "effectonce"), pytest.raises(eo.UnsafeStore):
        await with_handler(bench.worker()).serve()
    assert "refused; trying again" in caplog.text


async def test_a_worker_that_waits_for_its_broker_can_be_stopped(monkeypatch: pytest.MonkeyPatch) -> None:
    bench = Bench()

    async def away(queue: str, *, group: str) -> None:
        raise eo.BrokerUnavailable("nobody is there")

    monkeypatch.setattr(bench.backend, "declare", away)
    opened: list[str] = []
    monkeypatch.setattr(bench.backend, "consumer", lambda queue, **options: opened.append(queue))
    worker = with_handler(bench.worker())
    task = asyncio.create_task(worker.serve())
    await asyncio.sleep(0.05)
    worker.stop()
    await asyncio.wait_for(task, 10)
    assert opened == []


# -- F58


async def test_f58_stopping_lets_what_runs_end_and_gives_the_rest_back() -> None:
    bench = Bench()
    worker = bench.worker(prefetch=10)
    running = asyncio.Event()
    go = asyncio.Event()
    done: list[str] = []

    @worker.handler("orders", concurrency=2)
    async def charge(message: eo.Message[Any]) -> None:
        running.set()
        await go.wait()
        done.append(message.id)

    await bench.send("orders", *(paid(number) for number in range(20)))
    task = asyncio.create_task(worker.serve())
    await running.wait()
    worker.stop()
    await until(lambda: bench.count("nack") > 0 or task.done())
    assert not task.done(), "it waits for its handlers"
    go.set()
    await asyncio.wait_for(task, 10)
    assert (len(done), bench.count("ack"), bench.left("orders")) == (2, 2, 18)
    counts = bench.store.stats().counts
    assert (counts["claimed"], counts["free"], counts["done"]) == (0, 0, 2), "what never started is not an attempt"
    async with serving(again(bench, done)):
        await until(lambda: len(done) == 20)


def again(bench: Bench, done: list[str]) -> eo.Worker:
    worker = bench.worker()
    worker.store = eo.Store(bench.store.runtime.backend, sweep_every=None)

    @worker.handler("orders")
    async def charge(message: eo.Message[Any]) -> None:
        done.append(message.id)

    return worker


async def test_f58_a_handler_that_outlasts_the_drain_is_cancelled_released_and_given_back(
    caplog: pytest.LogCaptureFixture,
) -> None:
    bench = Bench()
    worker = bench.worker(drain="50ms")
    running = asyncio.Event()
    cancelled: list[str] = []

    @worker.handler("orders")
    async def charge(message: eo.Message[Any]) -> None:
        running.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            cancelled.append(message.id)
            raise

    message = paid()
    await bench.send("orders", message)
    task = asyncio.create_task(worker.serve())
    await running.wait()
    worker.stop()
    await asyncio.wait_for(task, 10)
    assert (cancelled, bench.count("ack"), bench.left("orders")) == ([message.id], 0, 1)
    record = bench.store.get("orders/*/billing", message.id)
    assert record is not None
    assert record.state == "free"
    assert bench.store.runtime.leased_runs == set()
    assert "queue orders: 1 message(s) did not finish in time" in caplog.text


async def test_f58_a_thread_that_outlasts_the_drain_keeps_its_lease() -> None:
    """It cannot be cancelled, so no other may run beside it; its success is recorded if the process lives to see it."""
    bench = Bench()
    worker = bench.worker(drain="50ms")
    running, go = threading.Event(), threading.Event()

    @worker.handler("orders")
    def charge(message: eo.Message[Any]) -> None:
        running.set()
        go.wait(10)

    message = paid()
    await bench.send("orders", message)
    task = asyncio.create_task(worker.serve())
    await asyncio.to_thread(running.wait, 10)
    worker.stop()
    await asyncio.wait_for(task, 10)
    record = bench.store.get("orders/*/billing", message.id)
    assert record is not None
    assert (record.state, bench.left("orders"), bench.count("ack")) == ("claimed", 1, 0)
    go.set()
    await until(lambda: bench.store.stats().counts["done"] == 1)


async def test_a_second_stop_does_not_wait() -> None:
    bench = Bench()
    worker = bench.worker(drain="1h")
    running = asyncio.Event()

    @worker.handler("orders")
    async def charge(message: eo.Message[Any]) -> None:
        running.set()
        await asyncio.Event().wait()

    await bench.send("orders", paid())
    task = asyncio.create_task(worker.serve())
    await running.wait()
    worker.stop()
    worker.stop()
    await asyncio.wait_for(task, 10)
    assert bench.left("orders") == 1


async def test_a_cancelled_serve_gives_everything_back_and_leaves_no_task_behind() -> None:
    bench = Bench()
    worker = bench.worker(drain="1h")
    running = asyncio.Event()

    @worker.handler("orders", concurrency=2)
    async def charge(message: eo.Message[Any]) -> None:
        running.set()
        await asyncio.Event().wait()

    await bench.send("orders", *(paid(number) for number in range(10)))
    before = asyncio.all_tasks()
    task = asyncio.create_task(worker.serve())
    await running.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert asyncio.all_tasks() == before
    assert (bench.left("orders"), bench.store.stats().counts["claimed"], bench.store.runtime.leased_runs) == (
        10,
        0,
        set(),
    )


@pytest.mark.parametrize("cancellations", [1, 2, 3])
async def test_a_serve_cancelled_again_while_it_still_checks_leaves_no_task_behind(
    monkeypatch: pytest.MonkeyPatch, cancellations: int
) -> None:
    bench = Bench()
    declaring, ended = asyncio.Event(), asyncio.Event()

    async def declare_slowly(queue: str, *, group: str) -> None:
        declaring.set()
        try:
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(0.05)  # it closes its connection
            ended.set()

    monkeypatch.setattr(bench.backend, "declare", declare_slowly)
    before = asyncio.all_tasks()
    task = asyncio.create_task(with_handler(bench.worker()).serve())
    await declaring.wait()
    for _ in range(cancellations):
        task.cancel()
        await asyncio.sleep(0.01)
    with pytest.raises(asyncio.CancelledError):
        await task
    assert ended.is_set()
    assert asyncio.all_tasks() == before


@pytest.mark.parametrize("cancellations", [2, 3])
async def test_a_serve_cancelled_again_while_it_closes_leaves_no_task_behind(cancellations: int) -> None:
    bench = Bench()
    worker = bench.worker(drain="1h")
    running = asyncio.Event()

    @worker.handler("orders")
    async def charge(message: eo.Message[Any]) -> None:
        running.set()
        try:
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(0.05)

    await bench.send("orders", paid())
    before = asyncio.all_tasks()
    task = asyncio.create_task(worker.serve())
    await running.wait()
    for _ in range(cancellations):
        task.cancel()
        await asyncio.sleep(0.01)
    with pytest.raises(asyncio.CancelledError):
        await task
    assert asyncio.all_tasks() == before
    assert (bench.left("orders"), bench.store.runtime.leased_runs) == (1, set())


def test_f58_run_drains_on_sigterm() -> None:
    bench = Bench()
    worker = bench.worker()
    done: list[str] = []

    @worker.handler("orders")
    def charge(message: eo.Message[Any]) -> None:
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(0.05)
        done.append(message.id)

    bench.broker.publish("orders", paid())
    worker.run()
    assert (len(done), bench.count("ack")) == (1, 1)


def test_run_closes_its_broker_and_its_store(monkeypatch: pytest.MonkeyPatch) -> None:
    bench = Bench()
    worker = bench.worker()
    closed: list[object] = []

    @worker.handler("orders")
    async def charge(message: eo.Message[Any]) -> None:
        worker.stop()

    async def note(self: object) -> None:
        closed.append(self)

    monkeypatch.setattr(Backend, "close", note)
    monkeypatch.setattr(eo.Store, "aclose", note)
    bench.broker.publish("orders", paid())
    worker.run()
    assert bench.backend in closed
    assert bench.store in closed


def test_a_check_outside_of_an_event_loop_refuses_what_serve_would() -> None:
    worker = with_handler(Bench().worker(), retention="1s")
    with pytest.raises(eo.ConfigurationError, match="retention"):
        worker.run_check()


async def test_a_companion_runs_beside_the_handlers_and_is_stopped_with_them() -> None:
    bench = Bench()
    worker = with_handler(bench.worker())
    told: list[str] = []

    class Relay:
        def __init__(self) -> None:
            self.end = asyncio.Event()

        async def serve(self) -> None:
            told.append("serving")
            await self.end.wait()
            told.append("stopped")

        def stop(self) -> None:
            self.end.set()

    worker.add(Relay())
    async with serving(worker):
        await until(lambda: told == ["serving"])
    assert told == ["serving", "stopped"]


async def test_a_companion_that_fails_ends_the_worker() -> None:
    worker = with_handler(Bench().worker())

    class Broken:
        async def serve(self) -> None:
            raise eo.SchemaMissing("no outbox here")

        def stop(self) -> None: ...

    worker.add(Broken())
    with pytest.raises(eo.SchemaMissing):
        await worker.serve()


# -- F54, F59


async def test_f54_what_is_in_hand_is_extended_and_what_is_lost_is_not_started_and_not_acked() -> None:
    bench = Bench(ack_window=0.3)
    worker = bench.worker()
    release = asyncio.Event()
    ran: list[str] = []

    @worker.handler("orders", concurrency=1, lease="100ms")
    async def charge(message: eo.Message[Any]) -> None:
        ran.append(message.id)
        await release.wait()

    first, second = paid(1), paid(2)
    async with serving(worker):
        await bench.send("orders", first, second)
        await until(lambda: len(ran) == 1)
        await until(lambda: bench.count("extend") >= 12)
        assert bench.left("orders") == 2
        assert ran == [first.id], "three windows long, and it is still ours"
        group = bench.backend.queues.queue("orders").groups["billing"]
        for message in group.messages.values():
            message.delivery = None  # both are somebody else's now
        extended = bench.count("extend")
        await until(lambda: bench.count("extend") >= extended + 2)
        release.set()
        await asyncio.sleep(0.05)
        assert (ran, bench.count("ack")) == ([first.id], 0)
        await until(lambda: bench.count("ack") == 2)  # both are redelivered when their window ends
    assert ran == [first.id, second.id]


async def test_f59_a_lost_connection_is_said_once_and_made_again(caplog: pytest.LogCaptureFixture) -> None:
    bench = Bench()
    bench.broken = [eo.BrokerUnavailable("reset by peer") for _ in range(3)]
    worker = with_handler(bench.worker())
    with caplog.at_level(logging.WARNING, "effectonce"):
        async with serving(worker):
            await bench.send("orders", paid())
            await until(lambda: bench.count("ack") == 1)
    assert caplog.text.count("reset by peer; trying again") == 1
    assert "it answers again (attempts: 3)" in caplog.text


async def test_wrong_credentials_end_the_worker_at_once() -> None:
    bench = Bench()
    bench.broken = [eo.ConfigurationError("the password is wrong")]
    with pytest.raises(eo.ConfigurationError, match="password"):
        await asyncio.wait_for(with_handler(bench.worker()).serve(), 10)


async def test_f59_while_the_broker_is_away_an_ack_is_tried_again_after_a_pause(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(delivery_settler, "RETRY_PAUSE_S", 0.2)
    bench = Bench()
    ack, tries = Watched.ack, list[float]()

    async def away(self: Watched, deliveries: Any) -> Any:
        tries.append(time.monotonic())
        if len(tries) < 3:
            raise eo.BrokerUnavailable("reset by peer")
        return await ack(self, deliveries)

    monkeypatch.setattr(Watched, "ack", away)
    async with serving(with_handler(bench.worker())):
        await bench.send("orders", paid())
        await until(lambda: bench.count("ack") == 1)
    assert all(after - before >= 0.19 for before, after in pairwise(tries)), "not as fast as it can"


async def test_what_is_decided_while_others_are_being_sent_is_sent_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """Delays that were decided during a nack of the same delay were forgotten once: a message was never settled."""
    bench = Bench()
    worker = bench.worker()
    first, go = asyncio.Event(), asyncio.Event()

    @worker.handler("orders", concurrency=4, retry=eo.Retry(9, first="1ms"))
    async def charge(message: eo.Message[Any]) -> None:
        if message.attempt < 3:
            raise eo.StoreUnavailable("not yet", 0.05)

    nack = Watched.nack

    async def slow(self: Watched, deliveries: Any, delay: float = 0.0) -> Any:
        first.set()
        await go.wait()
        return await nack(self, deliveries, delay)

    monkeypatch.setattr(Watched, "nack", slow)
    async with serving(worker):
        await bench.send("orders", *(paid(number) for number in range(12)))
        await first.wait()
        await asyncio.sleep(0.05)
        go.set()
        await until(lambda: bench.count("ack") == 12)


async def test_f58_a_handler_that_does_not_heed_its_cancellation_keeps_no_worker_from_ending(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("effectonce.worker.handler_pool.CANCEL_GRACE_S", 0.1)
    bench = Bench()
    worker = bench.worker(drain="10ms")
    started, over = asyncio.Event(), asyncio.Event()

    @worker.handler("orders")
    async def charge(message: eo.Message[Any]) -> None:
        started.set()
        while not over.is_set():
            try:
                await over.wait()
            except asyncio.CancelledError:
                pass

    async with serving(worker):
        await bench.send("orders", paid(1))
        await started.wait()
    assert bench.count("nack") == 1
    over.set()
    await until(lambda: any(event.kind == "completed" for event in bench.events), 5)


async def test_f58_a_companion_that_cannot_be_stopped_keeps_no_handler_from_its_end() -> None:
    bench = Bench()
    worker = bench.worker()
    started = asyncio.Event()

    class Companion:
        async def serve(self) -> None:
            await asyncio.Event().wait()

        def stop(self) -> None:
            raise RuntimeError("it does not know how")

    @worker.handler("orders")
    async def charge(message: eo.Message[Any]) -> None:
        started.set()
        await asyncio.sleep(0.05)

    worker.add(Companion())
    task = asyncio.create_task(worker.serve())
    await bench.send("orders", paid(1))
    await started.wait()
    worker.stop()
    await until(lambda: bench.count("ack") == 1)
    worker.stop()
    with pytest.raises(RuntimeError, match="does not know"):
        await task


async def test_f58_a_stop_lets_a_dead_letter_that_is_on_its_way_arrive_and_sends_no_second_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    bench = Bench()
    worker = with_handler(bench.worker(), type="paid")
    sent, confirmed = asyncio.Event(), asyncio.Event()
    dead_letter, moves = Watched.dead_letter, []

    async def late(self: Watched, delivery: Any, headers: Any) -> bool:
        moves.append(delivery.packet.id)
        sent.set()
        await confirmed.wait()
        return await dead_letter(self, delivery, headers)

    monkeypatch.setattr(Watched, "dead_letter", late)
    await bench.send_raw("orders", b"no message")
    async with serving(worker):
        await sent.wait()
        worker.stop()
        asyncio.get_running_loop().call_later(0.3, confirmed.set)
    assert len(moves) == 1


async def test_a_companion_that_is_cut_off_at_the_end_of_the_drain_may_still_clean_up() -> None:
    bench = Bench()
    worker = with_handler(bench.worker(drain="50ms"))
    log: list[str] = []

    class Companion:
        async def serve(self) -> None:
            log.append("serving")
            try:
                await asyncio.Event().wait()
            finally:
                await asyncio.sleep(0.05)
                log.append("cleaned up")

        def stop(self) -> None: ...

    worker.add(Companion())
    async with serving(worker):
        await until(lambda: log == ["serving"])
    assert log == ["serving", "cleaned up"]


async def test_f58_a_stop_waits_for_a_dead_letter_whose_record_is_still_being_read() -> None:
    bench = Bench()
    worker, failed = bench.worker(), asyncio.Event()

    @worker.handler("orders", retry=eo.Retry(1))
    async def charge(message: eo.Message[Any]) -> None:
        failed.set()
        raise ValueError("declined")

    read = bench.store.get
    bench.store.get = lambda *key: (time.sleep(0.2), read(*key))[1]  # type: ignore[method-assign]
    async with serving(worker):
        await bench.send("orders", paid(1))
        await failed.wait()
    assert bench.count("dead") == 1
