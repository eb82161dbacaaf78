"""Dead letters: looked at, redriven, purged; and nothing of them lost on the way."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest
from msgspec import structs

import effectonce as eo
from effectonce.babelqueue import BabelQueue
from effectonce.contracts import Packet
from effectonce.core.run_sync import run_sync
from effectonce.display.redrives import describe_redrive
from effectonce.message import REDRIVEN_HEADER
from effectonce.record import Claim
from tests.worker.bench import Bench, paid, serving, until

SCOPE = "orders/*/billing"


class Shop:
    """A worker that charges, and a switch that makes it fail."""

    def __init__(self, **options: Any) -> None:
        self.bench = Bench()
        self.worker = self.bench.worker()
        self.failures = -1  # how often it fails; -1: always
        self.charged: list[str] = []
        self.runs: list[eo.Run] = []

        @self.worker.handler("orders", **{"retry": eo.Retry(2, first="5ms"), "lease": "1s", **options})
        async def charge(message: eo.Message[Any]) -> None:
            run = eo.current()
            self.runs.append(run)
            if self.failures:
                self.failures -= 1
                raise ValueError("the shop is broken")
            await eo.bypass_external_effects(self.mail)(message.id)
            self.charged.append(message.id)

        self.mails: list[str] = []
        self.dlq = eo.DeadLetterQueue(self.worker, "orders")

    async def mail(self, order: str) -> None:
        self.mails.append(order)

    async def bury(self, *messages: eo.Message[Any]) -> None:
        async with serving(self.worker):
            await self.bench.send("orders", *messages)
            await until(lambda: self.bench.count("dead") == len(messages))
        self.failures = 0
        self.bench.noted.clear()
        self.runs.clear()

    async def settle(self, acks: int) -> None:
        async with serving(self.worker):
            await until(lambda: self.bench.count("ack") == acks)


async def test_what_was_redriven_runs_with_its_attempts_counted_on_and_its_limit_anew() -> None:
    shop = Shop()
    messages = [paid(number) for number in range(3)]
    await shop.bury(*messages)
    shop.failures = -1
    report = await shop.dlq.aredrive()
    assert [(each.fate, each.sent) for each in report] == [("resume", True)] * 3
    assert await shop.dlq.acount() == 0
    async with serving(shop.worker):
        await until(lambda: shop.bench.count("dead") == 3)
    assert sorted(run.attempt for run in shop.runs) == [3, 3, 3, 4, 4, 4]
    assert {run.generation for run in shop.runs} == {0}, "a provider gets the same key as before"
    assert [dead.cause.attempts for dead in await shop.dlq.alist()] == [2, 2, 2]
    shop.failures = 0
    await shop.dlq.aredrive()
    await shop.settle(3)
    assert sorted(shop.charged) == sorted(message.id for message in messages)
    assert max(run.attempt for run in shop.runs) == 5


async def test_a_dead_letter_says_when_it_was_tried_first_and_last() -> None:
    shop = Shop(retry=eo.Retry(2, first="100ms", jitter=False))
    began = time.time()
    await shop.bury(paid())
    (dead,) = await shop.dlq.alist()
    assert began - 0.01 <= dead.cause.first_attempt_at <= dead.cause.given_up_at - 0.09 <= time.time()


async def test_f51_a_dry_run_says_what_would_become_of_each_and_changes_nothing() -> None:
    shop = Shop()
    names = ["execute", "resume", "no-op", "failed", "in-doubt", "in-progress", "mismatch"]
    messages = {name: paid(number, id=name) for number, name in enumerate(names)}
    await shop.bury(*messages.values())
    store, scope = shop.bench.store, SCOPE
    port: Any = store.runtime.backend.sync_port()

    def claimed(name: str) -> Any:
        claim = Claim(scope, name, name.ljust(16).encode(), 60_000_000, 10**12)
        return claim, run_sync(port.run([claim]))[0]

    def settled(name: str, state: Any) -> None:
        from effectonce.record import Settlement

        claim, answer = claimed(name)
        settlement = Settlement(scope, name, claim.owner, answer.token, state, 10**12, error=b'1{"code":"x"}')
        assert run_sync(port.run([settlement])) == [True]

    store.runtime.backend.scopes[scope].pop("execute")  # type: ignore[attr-defined]
    settled("no-op", "done")
    settled("failed", "failed")
    settled("in-doubt", "in_doubt")
    claimed("in-progress")
    store.forget(scope, "mismatch")
    run_sync(
        port.run([Claim(scope, "mismatch", b"another payload.", 60_000_000, 10**12, fingerprints=b"\1" + b"x" * 32)])
    )
    report = await shop.dlq.aredrive(dry_run=True)
    assert {each.dead.packet.id: each.fate for each in report} == {name: name for name in names}
    assert not any(each.sent for each in report)
    texts = {each.fate: describe_redrive(each).text for each in report}
    assert "--new-generation" in texts["failed"]
    assert "--new-generation" in texts["in-doubt"]
    assert await shop.dlq.acount() == 7
    anew = await shop.dlq.aredrive(dry_run=True, new_generation=True)
    reopened = {each.dead.packet.id for each in anew if each.new_generation}
    assert reopened == {"no-op", "failed", "in-doubt"}
    assert await shop.dlq.acount() == 7


async def test_f51_a_redrive_of_what_is_done_is_a_no_op() -> None:
    shop = Shop()
    message = paid()
    await shop.bury(message)
    async with serving(shop.worker):
        await shop.bench.send("orders", message)  # a duplicate that comes late...
        await until(lambda: shop.bench.count("dead") == 1)  # ...and is refused: its attempts are used up
        first, second = await shop.dlq.aredrive()
        assert first.fate == "resume"
        assert second.fate in {"resume", "no-op"}, "by now the first may be done"
        await until(lambda: shop.bench.count("ack") == 2)
    assert shop.charged == [message.id]


async def test_a_dry_run_says_that_what_the_handler_calls_is_in_doubt() -> None:
    """Its own record is not: it would run, meet the same doubt, and come back."""
    shop = Shop()

    @shop.worker.handler("mails")
    async def mail(message: eo.Message[Any]) -> None:
        raise eo.InDoubt("scope 'intents/mail/ses/send', key 'm-1' is in doubt: effectonce intents resolve")

    async with serving(shop.worker):
        await shop.bench.send("mails", paid())
        await until(lambda: shop.bench.count("dead") == 1)
    (report,) = await eo.DeadLetterQueue(shop.worker, "mails").aredrive(dry_run=True)
    assert (report.fate, report.was_in_doubt) == ("resume", True)
    assert describe_redrive(report).text == (
        "runs again; check whether what ended its last attempt was decided, or it comes back: "
        "scope 'intents/mail/ses/send', key 'm-1' is in doubt: effectonce intents resolve"
    )


async def test_f51_a_new_generation_runs_what_is_done_again_and_is_audited(caplog: pytest.LogCaptureFixture) -> None:
    shop = Shop()
    message = paid()
    await shop.bury(message)
    (dead,) = await shop.dlq.alist()
    await shop.dlq.aredrive()
    await shop.settle(1)
    dead_letters = shop.bench.backend.queues.queue("orders").groups["billing"].dead_letters
    dead_letters[99] = dead.packet  # it is there still, as after a crash between its re-publish and its removal
    (report,) = await shop.dlq.aredrive(dry_run=True)
    assert report.fate == "no-op"
    with caplog.at_level(logging.WARNING, "effectonce"):
        (report,) = await shop.dlq.aredrive(new_generation=True)
    assert (report.fate, report.sent, report.new_generation) == ("execute", True, True)
    await shop.settle(2)
    assert shop.charged == [message.id] * 2
    assert shop.runs[-1].generation == 1
    assert f"new generation of scope {SCOPE}, key {message.id}, which was: no-op" in caplog.text
    assert [(event.kind, event.key) for event in shop.bench.events if event.kind == "redriven"] == [
        ("redriven", message.id)
    ]


async def test_nothing_is_removed_before_its_republish_is_confirmed(monkeypatch: pytest.MonkeyPatch) -> None:
    shop = Shop()
    await shop.bury(*(paid(number) for number in range(4)))
    calls = 0

    class Publisher:
        async def publish(self, queue: str, packets: Sequence[Packet]) -> Sequence[Exception | None]:
            nonlocal calls
            calls += 1
            if calls == 2:
                return [eo.ConfigurationError("the queue is full")]
            if calls == 3:
                raise eo.BrokerUnavailable("gone")
            return [None]

        async def close(self) -> None: ...

    monkeypatch.setattr(shop.bench.backend, "publisher", Publisher)
    with pytest.raises(eo.BrokerUnavailable):
        await shop.dlq.aredrive()
    assert await shop.dlq.acount() == 3


async def test_the_bypass_survives_retries_and_handlers_see_it() -> None:
    """A peer's retry dropped the header, so the effect outside happened again."""
    shop = Shop()
    message = paid()
    await shop.bury(message)
    await shop.dlq.aredrive(bypass_effects=True)
    shop.failures = 1
    await shop.settle(1)
    assert [(run.redriven, run.bypassing) for run in shop.runs] == [(True, True)] * 2
    assert (shop.charged, shop.mails) == ([message.id], [])


async def test_the_bypass_of_babelqueue_is_ours_and_ours_is_babelqueues() -> None:
    """A redrive by another SDK marks a message in its own way, and its consumers must know ours."""
    bench = Bench()
    bench.broker.envelope = BabelQueue()
    worker = bench.worker()
    runs: list[tuple[bool, bool]] = []
    fail = True

    @worker.handler("orders", retry=eo.Retry(1))
    async def charge(message: eo.Message[Any]) -> None:
        runs.append((eo.current().redriven, eo.current().bypassing))
        if fail:
            raise ValueError

    sent = bench.broker.envelope.encode(paid(1), "orders")
    foreign = structs.replace(sent, headers={**sent.headers, "bq-replay-bypass": "1"})
    async with serving(worker):
        await bench.backend.publisher().publish("orders", [foreign])
        await until(lambda: bench.count("dead") == 1)
        fail = False
        publisher = bench.backend.publisher()
        published: list[Packet] = []

        async def publish(queue: str, packets: Sequence[Packet]) -> Sequence[Exception | None]:
            published.extend(packets)
            return await publisher.publish(queue, packets)

        bench.backend.publisher = lambda: SimpleNamespace(publish=publish, close=publisher.close)  # type: ignore
        await bench.dead(worker, "orders").aredrive(bypass_effects=True)
        await until(lambda: bench.count("ack") == 1)
    assert runs == [(True, True)] * 2
    assert published[0].headers["bq-replay-bypass"] == "1"


async def test_a_redrive_without_bypass_does_everything_and_says_that_it_is_one() -> None:
    shop = Shop()
    message = paid()
    await shop.bury(message)
    await shop.dlq.aredrive()
    await shop.settle(1)
    assert [(run.redriven, run.bypassing) for run in shop.runs] == [(True, False)]
    assert shop.mails == [message.id]


def test_bypass_external_effects_outside_of_a_handler_changes_nothing() -> None:
    assert eo.bypass_external_effects(len)([1, 2]) == 2

    @eo.bypass_external_effects
    async def mail(order: int) -> int:
        return order

    assert asyncio.run(mail(3)) == 3


async def test_select_limit_rate_and_another_queue() -> None:
    shop = Shop()
    await shop.bury(*(paid(number) for number in range(6)))
    odd = [dead for dead in await shop.dlq.alist() if dead.message and dead.message.data["order"] % 2]
    chosen = await shop.dlq.aredrive(
        select=lambda dead: dead.message is not None and dead.message.data["order"] % 2 == 1,
        limit=2,
        rate=200,
        to="later",
    )
    assert [each.dead.id for each in chosen] == [dead.id for dead in odd[:2]]
    assert [each.fate for each in chosen] == ["unknown", "unknown"]
    assert await shop.dlq.acount() == 4
    consumer = shop.bench.backend.consumer("later", group="other", prefetch=10)
    found = await consumer.receive(10, 0)
    assert len(found) == 2
    assert all(
        REDRIVEN_HEADER in delivery.packet.headers and "eo-dead" not in delivery.packet.headers for delivery in found
    )


async def test_purge_removes_what_was_selected_and_nothing_else() -> None:
    shop = Shop()
    await shop.bury(*(paid(number) for number in range(5)))
    kept = (await shop.dlq.alist())[0]
    assert len(await shop.dlq.apurge(select=lambda dead: dead.id != kept.id, dry_run=True)) == 4
    assert await shop.dlq.acount() == 5
    assert len(await shop.dlq.apurge(select=lambda dead: dead.id != kept.id)) == 4
    assert [dead.id for dead in await shop.dlq.alist()] == [kept.id]


async def test_show_gives_one_and_says_where_there_is_none() -> None:
    shop = Shop()
    await shop.bury(paid())
    (dead,) = await shop.dlq.alist()
    assert (await shop.dlq.ashow(dead.id)).packet == dead.packet
    with pytest.raises(eo.InvalidOption, match="no dead letter 'x'"):
        await shop.dlq.ashow("x")


async def test_what_another_program_put_there_is_listed_and_left_alone() -> None:
    shop = Shop()
    await shop.bury(paid())
    shop.bench.backend.queues.queue("orders").groups["billing"].dead_letters[77] = Packet(body=b"\xff?", id="alien")
    alien = (await shop.dlq.alist())[-1]
    assert (alien.cause.why, alien.message) == ("unknown", None)
    report = await shop.dlq.aredrive()
    assert [(each.fate, each.sent) for each in report] == [("resume", True), ("unreadable", False)]


@pytest.mark.parametrize("odd", ["many", "-1", "", "9" * 5000])
async def test_a_count_of_attempts_that_is_none_does_not_stop_a_redrive(odd: str) -> None:
    shop = Shop()
    await shop.bury(paid(1), paid(2))
    dead_letters = shop.bench.backend.queues.queue("orders").groups["billing"].dead_letters
    for number, packet in list(dead_letters.items()):
        dead_letters[number] = structs.replace(packet, headers={**packet.headers, "eo-used-attempts": odd})
    assert [each.sent for each in await shop.dlq.aredrive()] == [True, True]
    await shop.settle(2)


def fill(shop: Shop, count: int) -> None:
    """Put ``count`` dead letters into the queue, as another program does."""
    dead_letters = shop.bench.backend.queues.queue("orders").groups["billing"].dead_letters
    for number in range(count):
        dead_letters[1000 + number] = Packet(body=b"\xff?", id=f"alien-{number}")


async def test_hundreds_are_listed_in_pages_from_the_oldest_and_purged_together() -> None:
    shop = Shop()
    await shop.bury(paid())
    await shop.dlq.apurge()
    fill(shop, 250)
    first = await shop.dlq.alist()
    assert [dead.packet.id for dead in first] == [f"alien-{number}" for number in range(100)], "by default"
    assert len(await shop.dlq.alist(limit=None)) == 250
    following = await shop.dlq.alist(limit=120, after=first[-1].id)
    assert [dead.packet.id for dead in following] == [f"alien-{number}" for number in range(100, 220)]
    assert await shop.dlq.alist(after=(await shop.dlq.alist(limit=None))[-1].id) == []
    assert len(await shop.dlq.apurge(limit=30)) == 30
    assert len(await shop.dlq.apurge()) == 220
    assert await shop.dlq.acount() == 0


async def test_a_page_behind_a_dead_letter_that_is_gone_is_refused() -> None:
    shop = Shop()
    await shop.bury(paid())
    with pytest.raises(eo.InvalidOption, match="the dead letter 'gone' was redriven or purged meanwhile"):
        await shop.dlq.alist(after="gone")


@pytest.mark.parametrize("rate", [0, -1.0, float("nan")])
async def test_a_rate_is_a_positive_number(rate: float) -> None:
    with pytest.raises(eo.InvalidOption, match="use a positive number"):
        await Shop().dlq.aredrive(rate=rate)


def test_a_dead_letter_queue_needs_to_know_its_worker() -> None:
    shop = Shop()
    with pytest.raises(eo.ConfigurationError, match="group="):
        eo.DeadLetterQueue(shop.bench.broker, "orders")
    with pytest.raises(eo.InvalidOption, match="no handler for queue 'other'"):
        eo.DeadLetterQueue(shop.worker, "other")


def test_the_plain_names_are_sync() -> None:
    shop = Shop()
    asyncio.run(shop.bury(paid(1), paid(2)))
    assert (shop.dlq.count(), len(shop.dlq.list())) == (2, 2)
    assert shop.dlq.show(shop.dlq.list()[0].id).cause.why == "attempts-exhausted"
    assert [each.fate for each in shop.dlq.redrive(limit=1)] == ["resume"]
    assert len(shop.dlq.purge()) == 1
    shop.bench.broker.close()


async def test_a_broker_alone_can_redrive_but_cannot_tell_what_comes_of_it() -> None:
    shop = Shop()
    await shop.bury(paid())
    dlq = eo.DeadLetterQueue(shop.bench.broker, "orders", group="billing")
    with pytest.raises(eo.ConfigurationError, match="needs the worker"):
        await dlq.aredrive(new_generation=True)
    assert [(each.fate, each.sent) for each in await dlq.aredrive()] == [("unknown", True)]
    await shop.settle(1)
    assert len(shop.charged) == 1


async def test_a_rate_spreads_a_redrive_over_time() -> None:
    """So that what comes back is not more than a service that has just recovered can take."""
    shop = Shop()
    await shop.bury(*(paid(number) for number in range(4)))
    began = time.monotonic()
    await shop.dlq.aredrive(rate=20)
    assert time.monotonic() - began >= 3 / 20
    async with serving(shop.worker):
        await until(lambda: len(shop.charged) == 4)


async def test_a_rate_may_be_less_than_one_a_second_and_not_nothing() -> None:
    shop = Shop()
    assert await shop.dlq.aredrive(rate=0.1) == []
    for rate in (0, -1, float("nan")):
        with pytest.raises(eo.ConfigurationError, match="rate"):
            await shop.dlq.aredrive(rate=rate)
