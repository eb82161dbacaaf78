"""The types of the public names. Never executed: `mypy --strict` reads it, and every line is a claim.

`assert_type` says what a type is. A ``type: ignore`` says that the line must be an error: mypy reports those that are
not needed, so a decorator that swallowed a signature would fail here.
"""

from __future__ import annotations

import functools
import sqlite3
from collections.abc import Callable, Coroutine
from datetime import timedelta
from typing import Any, assert_type
from uuid import UUID

import aiosqlite
import psycopg
import pymysql
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncSession, async_sessionmaker
from sqlalchemy.orm import Session

import effectonce as eo
from effectonce.babelqueue import BabelQueue
from effectonce.babelqueue.seen_set import SeenSet, seen_set
from effectonce.contracts.outbox import OutboxBacklog, OutboxPage
from effectonce.envelopes import CloudEvents, Raw, Signed
from effectonce.intents.operation import IntentOperation
from effectonce.providers import Provider
from effectonce.record import Page, Stats, SweepResult
from effectonce.sessions import Pending


class Receipt:
    payment_id: str


# -- opening a store

store = eo.connect("sqlite:///shop.db")
assert_type(store, eo.Store)
assert_type(eo.connect(), eo.Store)
assert_type(eo.connect("memory://", private=b"secret", hooks=[print]), eo.Store)
eo.connect(7)  # type: ignore[arg-type]

assert_type(store.get("charge", ("acme", 7)), eo.Record | None)
assert_type(store.list(state="in_doubt"), Page)
assert_type(store.stats(), Stats)
assert_type(store.purge(limit=10), SweepResult)
assert_type(store.forget("charge", UUID(int=0)), bool)
store.list(state="lost")  # type: ignore[arg-type]
store.get("charge", 1.5)  # type: ignore[arg-type]
store.resolve("charge", "p1", "maybe")  # type: ignore[arg-type]


# -- a function keeps its signature


@eo.once(store, key="payment_id")
def charge(payment_id: str, amount: int = 1, *, currency: str = "EUR") -> Receipt:
    run = eo.current()
    assert_type(run, eo.Run)
    assert_type(run.attempt, int)
    assert_type(run.lease_lost, bool)
    assert_type(run.provider_key("stripe"), str)
    return Receipt()


assert_type(charge("p1"), Receipt)
assert_type(charge("p1", 4200, currency="USD"), Receipt)
assert_type(charge(payment_id="p1", amount=4200), Receipt)
assert_type(charge.scope, str)
assert_type(charge.__name__, str)
charge()  # type: ignore[call-arg]
charge("p1", "a lot")  # type: ignore[arg-type]
charge("p1", 1, "EUR")  # type: ignore[call-arg]
charge("p1", colour="red")  # type: ignore[call-arg]
plain: Callable[[str], Receipt] = charge
wrong: Callable[[int], Receipt] = charge  # type: ignore[assignment]

outcome = charge.call("p1", 4200)
assert_type(outcome, eo.Outcome[Receipt])
assert_type(outcome.value, Receipt)
assert_type(outcome.replayed, bool)
assert_type(outcome.key, str)
assert_type(outcome.attempt, int)
charge.call()  # type: ignore[call-arg]
charge.call("p1", "a lot")  # type: ignore[arg-type]


# -- async stays async


@eo.once(store, key="payment_id")
async def acharge(payment_id: str, amount: int = 1) -> Receipt:
    return Receipt()


async def calls() -> None:
    charging: Coroutine[Any, Any, Receipt] = acharge("p1")
    assert_type(await charging, Receipt)
    assert_type(await acharge("p1", 4200), Receipt)
    calling: Coroutine[Any, Any, eo.Outcome[Receipt]] = acharge.call("p1")
    assert_type(await calling, eo.Outcome[Receipt])
    assert_type(await acharge.call("p1"), eo.Outcome[Receipt])
    assert_type((await acharge.call("p1")).value, Receipt)
    await acharge()  # type: ignore[call-arg]
    await acharge("p1", "a lot")  # type: ignore[arg-type]
    await acharge.call(7)  # type: ignore[call-overload]
    await charge("p1")  # type: ignore[misc]


@eo.once(store, key="payment_id")
def nothing(payment_id: str) -> None: ...


@eo.once(store, key="payment_id")
async def anothing(payment_id: str) -> None: ...


async def nothings() -> None:
    assert_type(nothing.call("p1"), eo.Outcome[None])
    assert_type(await anothing.call("p1"), eo.Outcome[None])


# -- methods bind


class Shop:
    @eo.once(store, key="payment_id")
    def charge(self, payment_id: str, amount: int = 1) -> Receipt:
        return Receipt()

    @eo.once(store, key="payment_id")
    async def acharge(self, payment_id: str, amount: int = 1) -> Receipt:
        return Receipt()

    @staticmethod
    @eo.once(store, key="payment_id")
    def static(payment_id: str) -> int:
        return 1


shop = Shop()


async def methods() -> None:
    assert_type(shop.charge("p1"), Receipt)
    assert_type(shop.charge.call("p1"), eo.Outcome[Receipt])
    assert_type(Shop.charge(shop, "p1"), Receipt)
    assert_type(Shop.charge.call(shop, "p1", 7), eo.Outcome[Receipt])
    assert_type(await shop.acharge("p1", 7), Receipt)
    assert_type(await shop.acharge.call("p1"), eo.Outcome[Receipt])
    assert_type(Shop.static("p1"), int)
    shop.charge()  # type: ignore[call-arg]
    shop.charge(7)  # type: ignore[arg-type]
    shop.charge(shop, "p1")  # type: ignore[arg-type]
    Shop.charge("p1")  # type: ignore[call-arg, arg-type]
    await shop.acharge("p1", 1, 2)  # type: ignore[call-arg]


# -- keys


@eo.once(store, key=lambda payment: payment["id"])
def by_one(payment: dict[str, str]) -> None: ...


@eo.once(store, key=lambda tenant, payment_id: (tenant, payment_id))
def by_two(tenant: str, payment_id: str) -> None: ...


@eo.once(store, key=lambda tenant, year, number: f"{tenant}-{year}-{number}")
def by_three(tenant: str, year: int, number: int) -> None: ...


@eo.once(store, key=("tenant", "order.id"), fingerprint=lambda order: order)
def by_paths(tenant: str, order: dict[str, str]) -> None: ...


@eo.once(store, key=eo.keys.content_hash("order"))
def by_content(order: dict[str, str]) -> None: ...


def typed_key(payment_id: str, amount: int) -> tuple[str, int]:
    return payment_id, amount


def float_key(amount: float) -> float:
    return amount


eo.once(store, key=typed_key)
eo.once(store, key=float_key)  # type: ignore[arg-type]
eo.once(store, key=lambda a, b, c, d: a)  # type: ignore[arg-type]
eo.once(store, key=7)  # type: ignore[arg-type]


# -- messages


@eo.once(store)
def on_paid(message: eo.Message[dict[str, int]]) -> int:
    assert_type(message.data, dict[str, int])
    assert_type(message.key, str)
    return message.data["amount"]


assert_type(on_paid(eo.Message(data={"amount": 1})), int)
on_paid({"amount": 1})  # type: ignore[arg-type]


# -- options

eo.once(store, key="k", lease="30s", retention=timedelta(days=30), wait=5, max_attempts=3, permanent=(ValueError,))
eo.once(store, key="k", mode="exactly-once")  # type: ignore[arg-type]
eo.once(store, key="k", on_error="ignore")  # type: ignore[arg-type]
eo.once(store, key="k", permanent=ValueError)  # type: ignore[arg-type]
eo.once(store, "charge")  # type: ignore[call-arg]
eo.once("memory://", key="k")  # type: ignore[arg-type]
eo.once(store, key="k")(7)  # type: ignore[arg-type]

money = functools.partial(eo.once, store, retention="30d")


@money(key="payment_id")
def refund(payment_id: str) -> bool:
    return True


assert_type(refund("p1"), bool)
refund(1)  # type: ignore[arg-type]


# -- blocks

with eo.block(store, scope="mailer", key="email:42", payload={"to": "ada"}) as b:
    assert_type(b, eo.Block)
    assert_type(b.first, bool)
    assert_type(b.run, eo.Run)
    assert_type(b.run.attempt, int)
    b.result = {"sent": True}

eo.block(store, key="email:42")  # type: ignore[call-arg]
eo.block(store, scope="mailer")  # type: ignore[call-arg]
eo.block(store, scope="mailer", key=None)  # type: ignore[arg-type]


async def blocks() -> None:
    async with store as same:
        assert_type(same, eo.Store)
    async with eo.block(store, scope="mailer", key=("email", 42)) as b:
        assert_type(b, eo.Block)
    # A block never swallows what is raised in it: what comes after it is reached only if it ended well.
    with eo.block(store, scope="mailer", key="email:43"):
        sure = Shop.static("p1")
    assert_type(sure, int)


# -- hooks and errors


def hook(event: eo.Event) -> None:
    assert_type(event.scope, str)
    assert_type(event.attempt, int)


store.add_hook(hook)
store.add_hook(lambda event: print(event.kind))
store.add_hook(on_paid)  # type: ignore[arg-type]

try:
    charge("p1")
except eo.Retryable as error:
    assert_type(error.retry_after, float)
    assert_type(error.code, str)
except eo.PermanentFailure as failure:
    assert_type(failure.error, str)


# -- babelqueue

assert_type(seen_set(store, scope="payments"), SeenSet)
assert_type(seen_set(store, scope="payments", retention="30d").seen("m1"), bool)
seen_set(store)  # type: ignore[call-arg]


# -- brokers and envelopes

broker = eo.connect_broker("memory://", envelope=Signed(CloudEvents(), keys={"k1": b"0123456789abcdef"}))
assert_type(broker, eo.Broker)
assert_type(eo.connect_broker(), eo.Broker)
broker.publish("orders", eo.Message(data=1))
broker.publish("orders", [eo.Message(data=1), eo.Message(data=2)], envelope=BabelQueue(meta={"ext": {}}))
broker.publish("orders", {"data": 1})  # type: ignore[arg-type]
broker.publish(eo.Message(data=1))  # type: ignore[call-arg, arg-type]
assert_type(eo.Message(data=Receipt()).with_attempt(2), eo.Message[Receipt])
Raw(key=("data.tenant", "data.order.id"))
Raw(key=7)  # type: ignore[arg-type]
CloudEvents("both")  # type: ignore[arg-type]


async def send() -> None:
    await broker.apublish("orders", [eo.Message(data=1)])
    broker.apublish("orders", eo.Message(data=1))  # type: ignore[unused-coroutine]


# -- the inbox is sync or async as the connection is

inbox = eo.Inbox(scope="billing", retention="30d", fingerprint=lambda message: message.data)
eo.Inbox("billing")  # type: ignore[call-arg]
eo.Inbox()  # type: ignore[call-arg]
order: eo.Message[Receipt] = eo.Message(data=Receipt())


def in_a_transaction(
    sqlite: sqlite3.Connection, postgres: psycopg.Connection[Any], mysql: pymysql.Connection[Any], orm: Session
) -> None:
    assert_type(inbox.first(sqlite, order), bool)
    assert_type(inbox.first(postgres, "key", payload={"amount": 1}), bool)
    assert_type(inbox.first(mysql, ("tenant", 7)), bool)
    assert_type(inbox.first_many(orm, [order, order]), list[bool])
    assert_type(inbox.call(postgres, order, settle), eo.Outcome[int])
    assert_type(inbox.purge(sqlite, limit=10), int)
    assert_type(inbox.on_table("payments", column="key").insert(orm, "key", {"amount": 1}).was_inserted, bool)
    inbox.first(sqlite, 1.5)  # type: ignore[call-overload]
    inbox.first("sqlite:///shop.db", order)  # type: ignore[call-overload]
    inbox.call(sqlite, order, settle)  # type: ignore[arg-type]


async def in_an_async_transaction(sqlite: aiosqlite.Connection, orm: AsyncSession, core: AsyncConnection) -> None:
    assert_type(inbox.first(sqlite, order), Pending[bool])
    assert_type(await inbox.first(orm, order), bool)
    assert_type(await inbox.first_many(core, [order]), list[bool])
    assert_type(await inbox.call(orm, order, asettle), eo.Outcome[int])
    assert_type((await inbox.on_table("payments", column="key").insert(core, "key", {})).row, dict[str, Any])


def settle(conn: psycopg.Connection[Any], message: eo.Message[Receipt]) -> int:
    return 1


async def asettle(conn: AsyncSession, message: eo.Message[Receipt]) -> int:
    return 1


settled = inbox.handler(connect=lambda: psycopg.connect(""), max_attempts=5, backoff="10ms")(settle)
assert_type(settled(order), int)
assert_type(settled.call(order), eo.Outcome[int])
settled()  # type: ignore[call-arg]
settled("key")  # type: ignore[arg-type]


@inbox.handler(connect=async_sessionmaker())
async def asettled(conn: AsyncSession, message: eo.Message[Receipt]) -> int:
    return 1


async def settling() -> None:
    assert_type(await asettled(order), int)
    assert_type(await asettled.call(order), eo.Outcome[int])


# -- an operation of an outside API has the types of its function

intents = eo.Intents(store, scope="billing")
acmepay = Provider("acmepay", window="24h", windows={"payout": timedelta(days=7)})
Provider("acmepay", window=b"24h")  # type: ignore[arg-type]


class Payment:
    amount: int


@intents.operation(acmepay, "charge")
def charge_card(intent: eo.Intent[Payment]) -> Receipt:
    assert_type(intent.request, Payment)
    return Receipt()


@intents.operation("stripe", "refund", lease="1m")
async def refund_card(intent: eo.Intent[Payment]) -> Receipt:
    return Receipt()


@intents.operation("stripe", "payout", returns=Receipt)
def pay_out(intent: eo.Intent[Payment]) -> object:
    return object()


assert_type(charge_card, IntentOperation[Payment, Receipt])
assert_type(charge_card(Payment(), key="k"), Receipt)
assert_type(charge_card.call(Payment(), key="k"), eo.Outcome[Receipt])
charge_card("pay_1", key="k")  # type: ignore[arg-type]
charge_card(Payment())  # type: ignore[call-arg]
assert_type(pay_out, IntentOperation[Payment, Any])
with charge_card.send(Payment(), key="k", account="a1", step="s") as sent:
    assert_type(sent.result, Receipt)
    sent.complete(psycopg.connect(""))


async def refunding() -> None:
    assert_type(await refund_card(Payment(), key="k"), Receipt)
    assert_type(await refund_card.call(Payment(), key="k"), eo.Outcome[Receipt])
    refund_card(Payment(), key="k")  # type: ignore[unused-coroutine]
    async with refund_card.send(Payment(), key="k") as refunded:
        assert_type(refunded.result, Receipt)
        await refunded.complete(await psycopg.AsyncConnection.connect(""))
        refunded.complete(await psycopg.AsyncConnection.connect(""))  # type: ignore[unused-coroutine]


# -- the outbox, too; the relay takes it on

outbox = eo.Outbox(to="orders", max_size=100_000, notify=True)
eo.Outbox("orders")  # type: ignore[call-arg]
eo.Outbox()  # type: ignore[call-arg]
assert_type(outbox.schema_sql("postgresql"), str)
outbox.schema_sql("oracle")  # type: ignore[arg-type]


def sending_in_a_transaction(sqlite: sqlite3.Connection, postgres: psycopg.Connection[Any], orm: Session) -> None:
    outbox.send(sqlite, order)
    outbox.send_many(postgres, iter([order, order]))
    outbox.send(orm, order)
    outbox.send(sqlite, {"amount": 1})  # type: ignore[call-overload]
    outbox.send("sqlite:///shop.db", order)  # type: ignore[call-overload]


async def sending_in_an_async_transaction(sqlite: aiosqlite.Connection, orm: AsyncSession) -> None:
    outbox.send(sqlite, order)  # type: ignore[unused-coroutine]
    outbox.send_many(orm, [order])  # type: ignore[unused-coroutine]
    inbox.check(sqlite)  # type: ignore[unused-coroutine]
    inbox.migrate(sqlite)  # type: ignore[unused-coroutine]
    await outbox.send(orm, order)


relay = eo.Relay(store, broker, order=None, retry=eo.Retry(5), batch=100, keep=0, poll=timedelta(seconds=1))
eo.Relay(store)  # type: ignore[call-arg]
eo.Relay(store, broker, order="queue")  # type: ignore[arg-type]
assert_type(relay.run(), None)
assert_type(relay.stats(), OutboxBacklog)
assert_type(relay.list("parked", limit=10), OutboxPage)
assert_type(relay.unpark(), int)
assert_type(relay.discard(1, 2), int)
relay.list("lost")  # type: ignore[arg-type]


async def relaying() -> None:
    assert_type(await relay.drain(), int)
    await relay.serve()
    eo.Worker(broker, store=store).add(relay)


# -- workers keep their handlers' types, and take what `once` takes

worker = eo.Worker(broker, store=store, name="billing", drain="10s", unknown="retry")
eo.Worker(broker, store=store, unknown="ignore")  # type: ignore[arg-type]
eo.Worker("redis://localhost", store=store)  # type: ignore[arg-type]


@worker.handler("orders", type="order.paid", key="message.data.order", retry=eo.Retry(3, on={OSError: "dead"}))
async def paid(message: eo.Message[dict[str, int]]) -> None: ...


@worker.handler("orders", to="invoices", permanent=(ValueError,), lease=timedelta(seconds=10))
def refunded(message: eo.Message[Any]) -> eo.Message[Any]:
    return message


worker.handler("orders", on_error="ignore")  # type: ignore[arg-type]
worker.handler(queue="orders", mode="twice")  # type: ignore[arg-type]
eo.Retry(3, on={OSError: "later"})  # type: ignore[dict-item]
assert_type(refunded(eo.Message(data=1)), eo.Message[Any])

dlq = eo.DeadLetterQueue(worker, "orders")
assert_type(dlq.count(), int)
assert_type(dlq.show("1").cause.why, str)
dlq.redrive(select=lambda dead: dead.cause.attempts > 3, limit=10, rate=5, to="later", dry_run=True)
dlq.redrive(select="poison")  # type: ignore[arg-type]


@eo.bypass_external_effects
async def send_mail(order: str) -> int:
    return 1


async def mailing() -> None:
    assert_type(await send_mail("1"), int | None)
    assert_type(await paid(eo.Message(data={"order": 1})), None)
    await send_mail(1)  # type: ignore[arg-type]
