"""A success that the store answers and does not record concerns its own message only."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import pytest

import effectonce as eo
from effectonce.record import Batchable, Remember, Settlement

from .bench import Bench, paid, serving, until


class PickyStore:
    """Rejects completions of one key with a ``ValueError``, as a driver does that cannot write a value."""

    def __init__(self, bench: Bench, key: str, rejects: Callable[[Settlement | Remember], bool]) -> None:
        self.rejected: list[Settlement | Remember] = []
        self._key = key
        self._rejects = rejects
        bench.store_backend.before = self._check

    def _check(self, op: Batchable) -> None:
        if op.key != self._key or not isinstance(op, Settlement | Remember):
            return
        if isinstance(op, Settlement) and op.state != "done":
            return
        if self._rejects(op):
            self.rejected.append(op)
            raise ValueError("out of range")


async def test_a_rejected_completion_holds_up_no_other_message(caplog: pytest.LogCaptureFixture) -> None:
    bench = Bench()
    worker = bench.worker()
    store = PickyStore(bench, "bad", lambda completion: True)

    @worker.handler("orders")
    async def charge(message: eo.Message[Any]) -> None: ...

    async with serving(worker):
        await bench.send("orders", paid(0, id="bad"))
        for number in range(1, 11):
            await bench.send("orders", paid(number))
            await until(lambda: bench.count("ack") == number)  # noqa: B023
    assert "trying again" not in caplog.text, "the store was never left alone"
    assert ("nack", "bad", 1.0) in bench.noted
    assert [completion.result is None for completion in store.rejected[-2:]] == [False, True]


async def test_a_completion_whose_result_is_rejected_is_recorded_without_it() -> None:
    bench = Bench()
    worker = bench.worker()
    runs: list[str] = []
    PickyStore(bench, "bad", lambda completion: completion.result is not None)

    @worker.handler("orders")
    async def charge(message: eo.Message[Any]) -> None:
        runs.append(message.id)

    async with serving(worker):
        await bench.send("orders", paid(id="bad"))
        await until(lambda: bench.count("ack") == 1)
    assert (runs, bench.count("nack")) == (["bad"], 0)


async def test_messages_to_send_on_are_never_recorded_as_nothing() -> None:
    bench = Bench()
    worker = bench.worker()
    PickyStore(bench, "bad", lambda completion: completion.result is not None)

    @worker.handler("orders", to="invoices")
    async def charge(message: eo.Message[Any]) -> eo.Message[Any]:
        return eo.Message(type="invoice", data={})

    async with serving(worker):
        await bench.send("orders", paid(id="bad"))
        await until(lambda: bench.count("nack") == 1)
    assert (bench.delays(), bench.count("ack")) == ([1.0], 0)


async def test_in_mode_s_a_completion_that_is_always_rejected_ends_in_the_dead_letters() -> None:
    bench = Bench()
    worker = bench.worker()
    PickyStore(bench, "bad", lambda completion: True)
    runs: Counter[str] = Counter()

    @worker.handler("orders", mode="seen", retry=eo.Retry(2))
    async def charge(message: eo.Message[Any]) -> None:
        runs[message.id] += 1

    async with serving(worker):
        await bench.send("orders", paid(0, id="bad"), paid(1, id="good"))
        await until(lambda: bench.count("dead") == 1)
    assert runs == {"bad": 2, "good": 1}
    assert bench.count("ack") == 1


async def test_a_completion_that_is_rejected_during_an_outage_waits_for_its_end() -> None:
    """Of two completions in one batch one meets the outage, and the other one the store's refusal."""
    bench = Bench()
    worker = bench.worker()
    picky = PickyStore(bench, "bad", lambda completion: completion.result is not None)
    check, outage = bench.store_backend.before, asyncio.Event()

    def check_after_outage(op: Batchable) -> None:
        check(op)
        if isinstance(op, Settlement) and not outage.is_set():
            raise eo.StoreUnavailable("it is away")

    bench.store_backend.before = check_after_outage

    @worker.handler("orders")
    async def charge(message: eo.Message[Any]) -> None: ...

    async with serving(worker):
        await bench.send("orders", paid(0), paid(1, id="bad"))
        await until(lambda: picky.rejected)
        await asyncio.sleep(0.05)
        assert bench.noted == []
        outage.set()
        await until(lambda: bench.count("ack") == 2)
    assert bench.count("nack") == 0


async def test_messages_to_send_on_that_cannot_be_read_are_no_ack() -> None:
    """F52: the record is done and of a newer release; its result holds the messages that are still to be sent."""
    bench = Bench()
    worker = bench.worker()
    published: list[str] = []

    def write_as_a_newer_release(op: Batchable) -> None:
        if isinstance(op, Settlement) and op.state == "done" and op.result is not None:
            op.result = b"9" + op.result[1:]

    bench.store_backend.before = write_as_a_newer_release
    publish = worker.broker.apublish

    async def publish_to_orders_only(queue: str, messages: Any) -> None:
        if queue == "invoices":
            published.append(queue)
            raise eo.BrokerUnavailable("it is away", 0.01)
        await publish(queue, messages)

    worker.broker.apublish = publish_to_orders_only  # type: ignore[method-assign, assignment]

    @worker.handler("orders", to="invoices")
    async def charge(message: eo.Message[Any]) -> eo.Message[Any]:
        return eo.Message(type="invoice", data={})

    async with serving(worker):
        await bench.send("orders", paid(1))
        await until(lambda: bench.count("dead") == 1)
    assert (published, bench.count("ack")) == (["invoices"], 0)
    (dead,) = await eo.DeadLetterQueue(worker, "orders").alist()
    assert dead.cause.why == "unsent"


async def test_an_outage_of_the_target_uses_up_no_attempt_at_sending_on() -> None:
    bench = Bench()
    worker = bench.worker()
    publish = worker.broker.apublish
    failures: list[Exception] = [*[eo.BrokerUnavailable("it is away", 0.01)] * 6, ValueError("once")]

    async def fail_at_first(queue: str, messages: Any) -> None:
        if queue == "invoices" and failures:
            raise failures.pop(0)
        await publish(queue, messages)

    worker.broker.apublish = fail_at_first  # type: ignore[method-assign, assignment]

    @worker.handler("orders", to="invoices", retry=eo.Retry(5, first="5ms"))
    async def charge(message: eo.Message[Any]) -> eo.Message[Any]:
        return eo.Message(type="invoice", data={})

    async with serving(worker):
        await bench.send("orders", paid(1))
        await until(lambda: bench.count("ack") == 1 or bench.count("dead") == 1)
    assert (failures, bench.count("ack"), bench.count("dead")) == ([], 1, 0)


# -- what a handler sends on


TOO_UGLY = ValueError("the invoice is too ugly")


class RefusingOutlet:
    """A broker that answers with ``errors`` to what is sent to "invoices" first, and a worker that sends it there."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, errors: Sequence[Exception], retry: eo.Retry) -> None:
        self.bench = Bench()
        self.worker = self.bench.worker()
        publish = self.bench.broker.apublish
        left = list(errors)

        async def apublish(queue: str, messages: Any, **options: Any) -> None:
            if queue == "invoices" and left:
                raise left.pop(0)
            await publish(queue, messages, **options)

        monkeypatch.setattr(self.bench.broker, "apublish", apublish)

        @self.worker.handler("orders", to="invoices", retry=retry)
        async def charge(message: eo.Message[Any]) -> eo.Message[Any]:
            return eo.Message(type="invoice", data={})


@pytest.mark.parametrize("broker_counts", [True, False])
async def test_what_the_broker_refuses_to_send_on_is_tried_again_after_the_first_delay(
    monkeypatch: pytest.MonkeyPatch, broker_counts: bool
) -> None:
    outlet = RefusingOutlet(monkeypatch, [TOO_UGLY], eo.Retry(5, first="40ms", factor=3, cap="10s", jitter=False))
    if not broker_counts:
        outlet.bench.count_nothing()
    async with serving(outlet.worker):
        await outlet.bench.send("orders", paid())
        await until(lambda: outlet.bench.count("ack") == 1)
    assert outlet.bench.delays() == [0.04]


async def test_what_the_broker_refuses_to_send_on_too_often_is_a_dead_letter(monkeypatch: pytest.MonkeyPatch) -> None:
    outlet = RefusingOutlet(monkeypatch, [TOO_UGLY] * 2, eo.Retry(2, first="1ms"))
    async with serving(outlet.worker):
        await outlet.bench.send("orders", paid())
        await until(lambda: outlet.bench.count("dead") == 1)
        (letter,) = await outlet.bench.dead(outlet.worker, "orders").alist()
    assert (letter.cause.why, letter.cause.attempts, outlet.bench.count("nack")) == ("unsent", 2, 1)


async def test_while_the_broker_is_away_it_counts_no_attempt_to_send_on(monkeypatch: pytest.MonkeyPatch) -> None:
    away = eo.BrokerUnavailable("it is away", 0.01)
    outlet = RefusingOutlet(monkeypatch, [away, away, away, TOO_UGLY], eo.Retry(2, first="1ms"))
    async with serving(outlet.worker):
        await outlet.bench.send("orders", paid())
        await until(lambda: outlet.bench.count("ack") + outlet.bench.count("dead") == 1)
    assert outlet.bench.count("dead") == 0
