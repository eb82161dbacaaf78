"""A worker's promise on effects: once for each key, recorded before it is acked, never lost."""

from __future__ import annotations

import asyncio
import contextvars
import threading
from typing import Any

import msgspec
import pytest

import effectonce as eo
from effectonce.contracts import Delivery
from effectonce.core.run_sync import run_sync
from effectonce.record import Batchable, Claim, Settlement
from effectonce.testing import ManualClock

from .bench import Bench, paid, serving, until


async def test_a_duplicate_is_acked_and_its_effect_happens_once() -> None:
    bench = Bench()
    worker = bench.worker()
    charged: list[int] = []

    @worker.handler("orders", type="order.paid")
    async def charge(message: eo.Message[dict[str, int]]) -> None:
        charged.append(message.data["order"])

    messages = [paid(number) for number in range(50)]
    async with serving(worker):
        await bench.send("orders", *messages, *messages[::2])
        await until(lambda: bench.count("ack") == 75)
        await bench.send("orders", *messages[:10])
        await until(lambda: bench.count("ack") == 85)
    assert sorted(charged) == list(range(50))
    assert bench.left("orders") == 0
    assert bench.store.stats().counts["done"] == 50


async def test_a_delayed_message_that_was_published_twice_runs_once() -> None:
    """As after a publish whose confirm was lost: it is sent again with the same id, before or after it was due."""
    bench = Bench()
    worker = bench.worker()
    charged: list[int] = []

    @worker.handler("orders")
    async def charge(message: eo.Message[dict[str, int]]) -> None:
        charged.append(message.data["order"])

    async with serving(worker):
        await bench.broker.apublish("orders", paid(1, id="m1"), delay="50ms")
        await bench.broker.apublish("orders", paid(1, id="m1"), delay="20ms")
        await until(lambda: bench.count("ack") == 2)
        await bench.broker.apublish("orders", paid(1, id="m1"), delay="1ms")
        await until(lambda: bench.count("ack") == 3)
    assert charged == [1]


async def test_f05_f57_a_message_is_acked_only_after_its_fenced_record() -> None:
    bench = Bench()
    worker = bench.worker()

    @worker.handler("orders")
    async def charge(message: eo.Message[Any]) -> None:
        await asyncio.sleep(0)

    seen: list[str] = []

    def recorded(delivery: Delivery) -> None:
        record = bench.store.get("orders/*/billing", delivery.packet.id)
        seen.append(record.state if record is not None else "absent")

    bench.on_ack = recorded
    async with serving(worker):
        await bench.send("orders", *(paid(number) for number in range(20)))
        await until(lambda: len(seen) == 20)
    assert set(seen) == {"done"}


async def test_f57_a_zombie_whose_completion_is_fenced_does_not_ack() -> None:
    bench = Bench()
    worker = bench.worker()
    running = asyncio.Event()
    go = asyncio.Event()

    @worker.handler("orders")
    async def charge(message: eo.Message[Any]) -> None:
        running.set()
        await go.wait()

    message = paid()
    async with serving(worker):
        await bench.send("orders", message)
        await running.wait()
        bench.store.forget("orders/*/billing", message.id)  # an operator comes between: the owner is fenced out
        go.set()
        await until(lambda: bench.count("nack") == 1)
        assert bench.count("ack") == 0
        await until(lambda: bench.count("ack") == 1)  # it is redelivered, as a new generation
    assert [event.kind for event in bench.events].count("fenced") == 1


@pytest.mark.parametrize("counts_attempts", [True, False])
async def test_f06_a_duplicate_of_what_runs_elsewhere_is_delayed_and_never_acked(counts_attempts: bool) -> None:
    """The owner may still die: then this delivery is the one that is left. It may also end soon: so it comes back soon,
    and then after twice as long each time, until the lease ends."""
    clock = ManualClock()
    bench = Bench(clock, ack_window=300.0)
    if not counts_attempts:
        bench.count_nothing()
    worker = bench.worker()
    charged: list[str] = []

    @worker.handler("orders", lease="30s", fingerprint=False)
    async def charge(message: eo.Message[Any]) -> None:
        charged.append(message.id)

    message = paid()
    port: Any = bench.store.runtime.backend.sync_port()
    run_sync(port.run([Claim("orders/*/billing", message.id, b"another worker..", 30_000_000, 10**12)]))
    async with serving(worker):
        await bench.send("orders", message)
        for nacks in range(1, 9):
            await until(lambda nacks=nacks: bench.count("nack") == nacks)  # type: ignore[misc]
            clock.advance(bench.delays()[-1])
        assert bench.delays()[:7] == [0.2, 0.4, 0.8, 1.6, 3.2, 6.4, 12.8]
        assert 4.59 <= bench.delays()[7] <= 4.61, "what is left of the lease"
        assert (bench.count("ack"), charged) == (0, [])
        clock.advance("1s")  # the owner has died: its lease ends, and the delivery that was kept runs
        await until(lambda: bench.count("ack") == 1)
    assert charged == [message.id]


async def test_duplicates_in_hand_wait_for_the_first_and_are_acked_at_once() -> None:
    """A duplicate does not wait for the end of the lease where the first delivery runs in the same worker."""
    bench = Bench()
    worker = bench.worker()
    runs = 0

    @worker.handler("orders")
    async def charge(message: eo.Message[Any]) -> None:
        nonlocal runs
        runs += 1
        await asyncio.sleep(0.01)

    message = paid()
    async with serving(worker):
        await bench.send("orders", *([message] * 30))
        await until(lambda: bench.count("ack") == 30)
    assert (runs, bench.count("nack")) == (1, 0)


async def test_a_duplicate_of_what_failed_here_is_delayed_with_it() -> None:
    bench = Bench()
    worker = bench.worker()
    runs: list[int] = []

    @worker.handler("orders", retry=eo.Retry(first="50ms"))
    async def charge(message: eo.Message[Any]) -> None:
        runs.append(eo.current().attempt)
        if len(runs) == 1:
            raise ValueError("the first time")

    message = paid()
    async with serving(worker):
        await bench.send("orders", message, message, message)
        await until(lambda: bench.count("ack") == 3)
    assert runs == [1, 2]


async def test_one_key_with_another_payload_goes_to_the_dead_letters() -> None:
    bench = Bench()
    worker = bench.worker()
    charged: list[int] = []

    @worker.handler("orders")
    async def charge(message: eo.Message[dict[str, int]]) -> None:
        charged.append(message.data["order"])

    async with serving(worker):
        await bench.send("orders", paid(1, id="one"))
        await until(lambda: bench.count("ack") == 1)
        await bench.send("orders", paid(2, id="one"))
        await until(lambda: bench.count("dead") == 1)
    (dead,) = await bench.dead(worker, "orders").alist()
    assert (charged, dead.cause.why) == ([1], "payload-mismatch")


async def test_only_what_a_handler_names_as_its_fingerprint_has_to_be_the_same_in_a_duplicate() -> None:
    bench = Bench()
    worker = bench.worker()
    charged: list[int] = []

    @worker.handler("orders", key="message.data.order", fingerprint="message.data.amount")
    async def charge(message: eo.Message[dict[str, Any]]) -> None:
        charged.append(message.data["order"])

    async with serving(worker):
        for amount, note in ((10, "first"), (10, "again"), (11, "first")):
            settled = bench.count("ack") + bench.count("dead")
            await bench.send("orders", eo.Message(type="paid", data={"order": 1, "amount": amount, "note": note}))
            await until(lambda settled=settled: bench.count("ack") + bench.count("dead") > settled)  # type: ignore[misc]
    (dead,) = await bench.dead(worker, "orders").alist()
    assert dead.message is not None
    assert (charged, dead.cause.why, dead.message.data["amount"]) == ([1], "payload-mismatch", 11)


class Paid(msgspec.Struct):
    order: int
    currency: str = "EUR"


async def test_a_typed_handler_gets_its_type_and_a_new_default_is_no_other_payload() -> None:
    """Duplicates are compared by what came, not by what a release makes of it."""
    bench = Bench()
    before, after = bench.worker(), bench.worker()
    after.store = eo.Store(bench.store.runtime.backend, sweep_every=None)
    seen: list[Any] = []

    @before.handler("orders")
    async def plain(message: eo.Message[dict[str, Any]]) -> None:
        seen.append(message.data)

    @after.handler("orders")
    async def typed(message: eo.Message[Paid]) -> None:
        seen.append(message.data)

    message = paid(7)
    async with serving(before):
        await bench.send("orders", message)
        await until(lambda: bench.count("ack") == 1)
    async with serving(after):
        await bench.send("orders", message, paid(8))
        await until(lambda: bench.count("ack") == 3)
    assert (seen, bench.count("dead")) == ([{"order": 7}, Paid(8)], 0)


async def test_mode_s_records_after_success_and_skips_what_was_seen() -> None:
    bench = Bench()
    worker = bench.worker()
    seen: list[str] = []

    @worker.handler("orders", mode="seen")
    async def note(message: eo.Message[Any]) -> None:
        seen.append(message.id)

    message = paid()
    async with serving(worker):
        await bench.send("orders", message)
        await until(lambda: bench.count("ack") == 1)
        await bench.send("orders", message)
        await until(lambda: bench.count("ack") == 2)
    assert seen == [message.id]


@pytest.mark.parametrize("mode", ["lease", "seen"])
async def test_a_success_says_how_long_it_took(mode: Any) -> None:
    clock = ManualClock()
    bench = Bench(clock)
    worker = bench.worker()

    @worker.handler("orders", mode=mode)
    async def charge(message: eo.Message[Any]) -> None:
        clock.advance("3s")

    async with serving(worker):
        await bench.send("orders", paid())
        await until(lambda: bench.count("ack") == 1)
    assert [event.seconds for event in bench.events if event.kind == "completed"] == [3.0]


async def test_sync_handlers_run_in_threads_with_their_context() -> None:
    bench = Bench()
    worker = bench.worker()
    threads: set[int] = set()
    together = threading.Barrier(4)
    attempts: list[tuple[str, int]] = []

    @worker.handler("orders", concurrency=4)
    def charge(message: eo.Message[Any]) -> None:
        together.wait(10)
        threads.add(threading.get_ident())
        attempts.append((eo.current().key, eo.current().attempt))

    messages = [paid(number) for number in range(8)]
    async with serving(worker):
        await bench.send("orders", *messages)
        await until(lambda: bench.count("ack") == 8)
    assert len(threads) == 4
    assert threading.get_ident() not in threads
    assert sorted(attempts) == sorted((message.id, 1) for message in messages)


async def test_a_handler_that_raises_stop_iteration_or_returns_an_awaitable_has_failed() -> None:
    """F72"""
    bench = Bench()
    worker = bench.worker()

    @worker.handler("a", retry=eo.Retry(1))
    def stops(message: eo.Message[Any]) -> None:
        raise StopIteration

    @worker.handler("b", retry=eo.Retry(1))
    def lazy(message: eo.Message[Any]) -> Any:
        return asyncio.sleep(0)

    async with serving(worker):
        await bench.send("a", paid())
        await bench.send("b", paid())
        await until(lambda: bench.count("dead") == 2)
    (stopped,) = await bench.dead(worker, "a").alist()
    (unawaited,) = await bench.dead(worker, "b").alist()
    assert (stopped.cause.error, unawaited.cause.error) == (
        "builtins:StopIteration",
        "effectonce.errors:SyncAsyncMismatch",
    )


async def test_handlers_that_wait_run_beside_each_other_up_to_their_concurrency() -> None:
    bench = Bench()
    worker = bench.worker()
    running, most = 0, 0

    @worker.handler("orders", concurrency=7)
    async def charge(message: eo.Message[Any]) -> None:
        nonlocal running, most
        running += 1
        most = max(most, running)
        await asyncio.sleep(0.01)
        running -= 1

    async with serving(worker):
        await bench.send("orders", *(paid(number) for number in range(40)))
        await until(lambda: bench.count("ack") == 40)
    assert most == 7


async def test_each_message_has_a_context_of_its_own() -> None:
    """Slots outlive messages: what one handler sets must not be there for the next."""
    bench = Bench()
    worker = bench.worker()
    variable: contextvars.ContextVar[str] = contextvars.ContextVar("tenant", default="none")
    seen: list[str] = []

    @worker.handler("orders", concurrency=2)
    async def charge(message: eo.Message[dict[str, int]]) -> None:
        seen.append(variable.get())
        variable.set(message.id)
        if message.data["order"] % 2:
            await asyncio.sleep(0.001)
        assert variable.get() == message.id
        inner = await asyncio.create_task(asyncio.to_thread(lambda: (variable.get(), eo.current().key)))
        assert inner == (message.id, message.id)

    async with serving(worker):
        await bench.send("orders", *(paid(number) for number in range(20)))
        await until(lambda: bench.count("ack") == 20)
    assert seen == ["none"] * 20


async def test_a_cancellation_inside_a_handler_is_its_failure_and_not_the_slots_end() -> None:
    bench = Bench()
    worker = bench.worker()
    runs = 0

    @worker.handler("orders", concurrency=1)
    async def charge(message: eo.Message[Any]) -> None:
        nonlocal runs
        runs += 1
        if runs == 1:
            task = asyncio.current_task()
            assert task is not None
            task.cancel()
        async with asyncio.timeout(5):
            await asyncio.sleep(0)

    async with serving(worker):
        await bench.send("orders", paid(1), paid(2))
        await until(lambda: bench.count("ack") == 2)
    assert runs == 3


async def test_f36_while_the_store_is_away_nothing_is_acked_and_nothing_is_lost() -> None:
    bench = Bench()
    worker = bench.worker()
    runs: list[str] = []

    @worker.handler("orders")
    async def charge(message: eo.Message[Any]) -> None:
        runs.append(message.id)

    down = asyncio.Event()

    def refuse(op: Batchable) -> None:
        if isinstance(op, Claim if claims else Settlement) and not down.is_set():
            raise eo.StoreUnavailable("it is away")

    bench.store_backend.before = refuse
    claims = True
    async with serving(worker):
        await bench.send("orders", *(paid(number) for number in range(5)))
        await asyncio.sleep(0.3)
        assert (runs, bench.noted) == ([], [])
        claims = False  # now claims are answered, and completions are not
        await until(lambda: len(runs) == 5)
        await asyncio.sleep(0.2)
        assert bench.noted == []
        down.set()
        await until(lambda: bench.count("ack") == 5)
    assert len(runs) == 5


async def test_f36_a_store_that_answers_completions_again_is_said_to(caplog: pytest.LogCaptureFixture) -> None:
    """Also where nothing is claimed meanwhile; and its next outage begins with a short pause."""
    bench = Bench()
    worker = bench.worker()
    refused: list[Batchable] = []

    @worker.handler("orders")
    async def charge(message: eo.Message[Any]) -> None: ...

    def refuse(op: Batchable) -> None:
        if isinstance(op, Settlement) and len(refused) < 2:
            refused.append(op)
            raise eo.StoreUnavailable("it is away")

    bench.store_backend.before = refuse
    async with serving(worker):
        await bench.send("orders", paid())
        await until(lambda: bench.count("ack") == 1)
    assert "it answers again (attempts: 2)" in caplog.text


async def test_f08_a_claim_that_is_asked_for_again_does_not_make_an_old_lease_look_new() -> None:
    """The reply to a claim was lost, and its lease is over when the store answers again: another may have it then."""
    clock = ManualClock()
    bench = Bench(clock, ack_window=300.0)
    worker = bench.worker()
    told: list[tuple[bool, bool]] = []

    @worker.handler("orders", lease="30s", fingerprint=False)
    async def charge(message: eo.Message[Any]) -> None:
        record = bench.store.get("orders/*/billing", message.id)
        assert record is not None
        told.append((eo.current().lease_lost, (record.lease_until or 0) <= clock.now()))

    lost = [True]

    def lose_one_reply(op: Batchable) -> None:
        if isinstance(op, Claim) and lost:
            lost.pop()
            clock.advance("40s")
            raise eo.StoreUnavailable("no answer")

    bench.store_backend.after = lose_one_reply
    async with serving(worker):
        await bench.send("orders", paid())
        await until(lambda: bench.count("ack") == 1)
    assert told == [(False, False)]


async def test_a_message_in_doubt_is_parked_with_its_bytes_and_redriven_once_it_is_resolved() -> None:
    bench = Bench()
    worker = bench.worker()
    runs = 0

    @worker.handler("orders", on_error="doubt", lease="1s")  # of two at once, one waits for so long
    async def charge(message: eo.Message[Any]) -> None:
        nonlocal runs
        runs += 1
        if runs == 1:
            raise TimeoutError("did it arrive?")

    message = paid()
    async with serving(worker):
        await bench.send("orders", message)
        await until(lambda: bench.count("dead") == 1)
        await bench.send("orders", message)  # its duplicate is in doubt, too
        await until(lambda: bench.count("dead") == 2)
        dlq = bench.dead(worker, "orders")
        assert {dead.cause.why for dead in await dlq.alist()} == {"in-doubt"}
        assert [each.sent for each in await dlq.aredrive()] == [False, False], "it would only come back"
        bench.store.resolve("orders/*/billing", message.id, "retry")
        first, second = await dlq.aredrive()
        assert first.fate == "resume"
        assert second.fate in {"resume", "no-op"}, "by now the first may be done"
        await until(lambda: bench.count("ack") == 2)
    assert (runs, await dlq.acount()) == (2, 0)


async def test_a_permanent_error_is_stored_and_its_duplicates_are_dead_letters_too() -> None:
    bench = Bench()
    worker = bench.worker()

    class CardDeclined(Exception):
        pass

    runs = 0

    @worker.handler("orders", permanent=(CardDeclined,))
    async def charge(message: eo.Message[Any]) -> None:
        nonlocal runs
        runs += 1
        raise CardDeclined("no funds")

    message = paid()
    async with serving(worker):
        await bench.send("orders", message)
        await until(lambda: bench.count("dead") == 1)
        await bench.send("orders", message)
        await until(lambda: bench.count("dead") == 2)
    causes = [dead.cause for dead in await bench.dead(worker, "orders").alist()]
    assert (runs, {cause.why for cause in causes}) == (1, {"permanent-failure"})
    assert {cause.text for cause in causes} == {"no funds"}


@pytest.mark.parametrize("sync", [False, True])
def test_a_handler_that_ends_the_process_ends_the_worker_in_good_order(sync: bool) -> None:
    bench = Bench()
    worker = bench.worker()

    def leave(message: eo.Message[Any]) -> None:
        raise SystemExit(3)

    async def aleave(message: eo.Message[Any]) -> None:
        raise SystemExit(3)

    worker.handler("orders")(leave if sync else aleave)
    message = paid()

    async def scenario() -> None:
        await bench.send("orders", message)
        await worker.serve()

    with pytest.raises(SystemExit):
        asyncio.run(scenario())
    record = bench.store.get("orders/*/billing", message.id)
    assert record is not None
    assert (record.state, bench.left("orders"), bench.count("nack")) == ("free", 1, 1)


# -- what a handler sends on


class Kitchen:
    """A handler that sends an invoice for each order, and a broker whose queue of invoices may be away."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.bench = Bench()
        self.worker = self.bench.worker()
        self.runs = 0
        self.away = False
        publish = self.bench.broker.apublish

        async def apublish(queue: str, messages: Any, **options: Any) -> None:
            if self.away and queue == "invoices":
                raise eo.BrokerUnavailable("it is away", 0.02)
            await publish(queue, messages, **options)

        monkeypatch.setattr(self.bench.broker, "apublish", apublish)

        @self.worker.handler("orders", to="invoices")
        async def charge(message: eo.Message[dict[str, int]]) -> Any:
            self.runs += 1
            if message.data["order"] == 0:
                return None
            invoice = eo.Message(type="invoice", data={"order": message.data["order"]})
            return invoice if message.data["order"] == 1 else [invoice, eo.Message(type="mail", data="x")]

    async def sent(self) -> list[tuple[str, str]]:
        consumer = self.bench.backend.consumer("invoices", group="reader", prefetch=100)
        found = await consumer.receive(100, 0)
        decoded = [self.bench.broker.envelope.decode(delivery.packet) for delivery in found]
        return [(message.type, message.id) for message in decoded]


async def test_what_a_handler_returns_is_sent_on_before_its_message_is_acked(monkeypatch: pytest.MonkeyPatch) -> None:
    kitchen = Kitchen(monkeypatch)
    async with serving(kitchen.worker):
        await kitchen.bench.send("orders", *(paid(number) for number in range(3)))
        await until(lambda: kitchen.bench.count("ack") == 3)
    assert sorted(kind for kind, _ in await kitchen.sent()) == ["invoice", "invoice", "mail"]


async def test_f52_a_skipped_duplicate_sends_again_what_may_never_have_left_with_the_same_ids(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    kitchen = Kitchen(monkeypatch)
    kitchen.away = True
    message = paid(1)
    async with serving(kitchen.worker):
        await kitchen.bench.send("orders", message)
        await until(lambda: kitchen.bench.count("nack") >= 2)
        assert kitchen.bench.count("ack") == 0, "it is done, and what it sends has not left"
        kitchen.away = False
        await until(lambda: kitchen.bench.count("ack") == 1)
        await kitchen.bench.send("orders", message)
        await until(lambda: kitchen.bench.count("ack") == 2)
    sent = await kitchen.sent()
    assert kitchen.runs == 1
    assert [kind for kind, _ in sent] == ["invoice", "invoice"]
    assert len({id for _, id in sent}) == 1


async def test_what_cannot_be_kept_is_not_sent_and_is_the_handlers_failure() -> None:
    bench = Bench()
    worker = bench.worker()

    @worker.handler("a", to="invoices", retry=eo.Retry(1))
    async def returns(message: eo.Message[Any]) -> Any:
        return {"no": "message"}

    @worker.handler("b", to="invoices", retry=eo.Retry(1))
    def keeps(message: eo.Message[Any]) -> Any:
        return eo.Message(data=object())

    async with serving(worker):
        await bench.send("a", paid())
        await bench.send("b", paid())
        await until(lambda: bench.count("dead") == 2)
    causes = [(await bench.dead(worker, queue).alist())[0].cause.text for queue in ("a", "b")]
    assert "returns a Message, a list of them or None" in causes[0]
    assert "cannot be kept" in causes[1]


@pytest.mark.parametrize("suspect", [False, True])
async def test_f76_a_grant_that_arrives_after_its_lease_is_claimed_again(suspect: bool) -> None:
    """The one of a message that runs alone, too, since its last attempt may have taken the process down."""
    clock = ManualClock()
    bench = Bench(clock, ack_window=3000.0)
    worker = bench.worker()
    seen: list[tuple[bool, int]] = []

    @worker.handler("orders", lease="30s", fingerprint=False)
    async def charge(message: eo.Message[Any]) -> None:
        seen.append((eo.current().lease_lost, eo.current().attempt))

    message = paid()
    if suspect:
        await bench.store_backend.async_port().run(
            [Claim("orders/*/billing", message.id, bytes(16), lease_us=1_000_000, retention_us=86_400_000_000)]
        )
        clock.advance("2s")
    slow = [True] * (2 if suspect else 1)

    def delay_reply(op: Batchable) -> None:
        if isinstance(op, Claim) and slow:
            slow.pop()
            clock.advance("31s")

    bench.store_backend.after = delay_reply
    async with serving(worker):
        await bench.send("orders", message)
        await until(lambda: bench.count("ack") == 1)
    assert (seen, slow) == ([(False, 2 if suspect else 1)], [])


@pytest.mark.parametrize("suspect", [False, True])
async def test_f76_a_late_grant_whose_release_fails_is_released_before_the_key_is_claimed_again(suspect: bool) -> None:
    """Else the next claim would find a lapsed lease, and count a crash that never was."""
    clock = ManualClock()
    bench = Bench(clock, ack_window=3000.0)
    worker = bench.worker()
    seen: list[tuple[bool, int]] = []

    @worker.handler("orders", lease="30s", fingerprint=False)
    async def charge(message: eo.Message[Any]) -> None:
        seen.append((eo.current().lease_lost, eo.current().attempt))

    message = paid()
    if suspect:
        await bench.store_backend.async_port().run(
            [Claim("orders/*/billing", message.id, bytes(16), lease_us=1_000_000, retention_us=86_400_000_000)]
        )
        clock.advance("2s")
    slow_claims = [True] * (2 if suspect else 1)
    failed_releases: list[bool] = []

    def delay_reply(op: Batchable) -> None:
        if isinstance(op, Claim) and slow_claims:
            slow_claims.pop()
            clock.advance("31s")

    def lose_release(op: Batchable) -> None:
        if isinstance(op, Settlement) and op.state == "free" and not slow_claims and not failed_releases:
            failed_releases.append(True)
            raise eo.StoreUnavailable("it is away")

    bench.store_backend.after, bench.store_backend.before = delay_reply, lose_release
    async with serving(worker):
        await bench.send("orders", message)
        await until(lambda: bench.count("ack") == 1)
    assert (seen, failed_releases) == ([(False, 2 if suspect else 1)], [True])


async def test_f76_a_lease_that_ends_between_its_grant_and_the_start_of_the_handler() -> None:
    """Both are granted at once; the first handler keeps the loop to itself for longer than the second one's lease."""
    clock = ManualClock()
    bench = Bench(clock, ack_window=3000.0)
    worker = bench.worker()
    lost: list[bool] = []

    @worker.handler("orders", lease="30s", fingerprint=False, concurrency=2)
    async def charge(message: eo.Message[Any]) -> None:
        lost.append(eo.current().lease_lost)
        clock.advance("31s")

    await bench.backend.declare("orders", group="billing")
    await bench.send("orders", paid(1), paid(2))
    async with serving(worker):
        await until(lambda: bench.count("ack") == 2)
    assert lost == [False, False]
    assert sum(event.kind == "claimed" for event in bench.events) == 3
