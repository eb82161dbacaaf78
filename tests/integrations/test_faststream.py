"""FastStream: its middleware, on its own test brokers."""

from __future__ import annotations

import asyncio
import sys
import types
from contextlib import suppress
from typing import Any

import pytest
from faststream import AckPolicy, BaseMiddleware
from faststream.exceptions import AckMessage, HandlerException, NackMessage
from faststream.rabbit import RabbitBroker, RabbitMessage, RabbitResponse, RabbitRouter, TestRabbitBroker
from pydantic import BaseModel

import effectonce as eo
from effectonce.integrations import faststream as ours_faststream


class Receipt(BaseModel):
    payment_id: str
    amount: int


async def test_a_message_delivered_twice_is_handled_once_and_answered_twice(
    store: eo.Store, charges: list[str]
) -> None:
    """Its models are stored, and what it publishes is published for the duplicate too (F52)."""
    once = ours_faststream.Idempotency(store, scope="billing", key="payment-id")
    broker = RabbitBroker()
    receipts: list[Receipt] = []

    @broker.subscriber("receipts")
    async def receipt(receipt: Receipt) -> None:
        receipts.append(receipt)

    router = RabbitRouter(middlewares=[once])

    @router.subscriber("payments")
    @router.publisher("receipts")
    async def charge(amount: int) -> Receipt:
        charges.append(eo.current().key)
        return Receipt(payment_id=eo.current().key, amount=amount)

    broker.include_router(router)
    async with TestRabbitBroker(broker) as delivering:
        for _ in range(2):
            await delivering.publish(7, "payments", headers={"payment-id": "p1"})
    assert (charges, receipts) == (["p1"], [Receipt(payment_id="p1", amount=7)] * 2)


@pytest.fixture
def rabbit(store: eo.Store, charges: list[str]) -> RabbitBroker:
    """A broker with one subscriber that fails at first when told to."""
    once = ours_faststream.Idempotency(store, scope="billing", key=lambda msg: msg.headers.get("payment-id"))
    broker = RabbitBroker(middlewares=[once])

    @broker.subscriber("payments", ack_policy=AckPolicy.NACK_ON_ERROR)
    async def charge(body: str) -> str:
        charges.append(body)
        if body == "fail" and len(charges) == 1:
            raise RuntimeError("card reader on fire")
        return "receipt"

    return broker


async def test_what_a_handler_raised_lets_the_next_delivery_run(rabbit: RabbitBroker, charges: list[str]) -> None:
    async with TestRabbitBroker(rabbit) as delivering:
        with pytest.raises(RuntimeError, match="on fire"):
            await delivering.publish("fail", "payments", headers={"payment-id": "p1"})
        for _ in range(2):
            await delivering.publish("fail", "payments", headers={"payment-id": "p1"})
    assert charges == ["fail", "fail"]


async def test_a_handler_that_acks_by_an_exception_is_done_and_one_that_nacks_is_not(store: eo.Store) -> None:
    """Whatever ``on_error`` says of other exceptions: acked and released, its duplicate ran again."""
    once = ours_faststream.Idempotency(store, scope="billing", key="payment-id", on_error="doubt")
    broker = RabbitBroker(middlewares=[once])
    handled: list[str] = []
    replies: list[str] = []

    @broker.subscriber("receipts")
    async def receipt(body: str) -> None:
        replies.append(body)

    @broker.subscriber("payments")
    @broker.publisher("receipts")
    async def charge(body: str) -> str:
        handled.append(body)
        if body == "ack":
            raise AckMessage
        if handled.count(body) == 1:
            raise NackMessage
        return "receipt"

    async with TestRabbitBroker(broker) as delivering:
        for body in ("ack", "ack", "nack", "nack", "nack"):
            await delivering.publish(body, "payments", headers={"payment-id": body})
    assert (handled, replies) == (["ack", "nack", "nack"], [])  # the receipts have no key of their own
    assert [record.state for record in store.list().records] == ["done", "done"]


@pytest.mark.parametrize(
    ("sent", "settled"), [(["one", "one"], "ACKED"), (["one", "other"], "REJECTED"), (["busy", "busy"], "NACKED")]
)
async def test_a_message_that_its_handler_never_sees_is_settled_also_where_handlers_ack_by_hand(
    store: eo.Store, sent: list[str], settled: str
) -> None:
    """It stayed unsettled, and took the place of another for as long as the connection lived."""
    seen: list[Any] = []

    class Watching(BaseMiddleware):
        async def consume_scope(self, call_next: Any, msg: Any) -> Any:
            seen.append(msg)
            return await call_next(msg)

    once = ours_faststream.Idempotency(store, scope="billing", key="payment-id")
    broker = RabbitBroker(middlewares=[Watching, once])

    @broker.subscriber("payments", ack_policy=AckPolicy.MANUAL)
    async def charge(body: str, msg: RabbitMessage) -> str:
        if body == "busy":
            raise eo.InProgress("the bank is", 0.01)
        await msg.ack()
        return "receipt"

    async with TestRabbitBroker(broker) as delivering:
        for body in sent:
            with suppress(HandlerException):
                await delivering.publish(body, "payments", headers={"payment-id": "p1"})
    assert seen[-1].committed.name == settled


async def test_f24_two_handlers_of_one_message_do_not_hide_it_from_each_other(store: eo.Store) -> None:
    """One middleware on the broker, and the same message in two queues."""
    handled: list[str] = []
    broker = RabbitBroker(middlewares=[ours_faststream.Idempotency(store, scope="billing", key="payment-id")])

    @broker.subscriber("payments")
    async def charge(body: str) -> None:
        handled.append("charge")

    @broker.subscriber("ledger")
    def book(body: str) -> RabbitResponse:  # a result that cannot be kept
        handled.append("book")
        return RabbitResponse("booked")

    async with TestRabbitBroker(broker) as delivering:
        for queue in ("payments", "ledger", "payments", "ledger"):
            await delivering.publish("one", queue, headers={"payment-id": "p1"})
    assert handled == ["charge", "book"]
    scopes = sorted(record.scope for record in store.list().records)
    assert [scope.rpartition(".")[2] for scope in scopes] == ["book", "charge"]
    assert all(scope.startswith("billing:tests.integrations.test_faststream:") for scope in scopes)


async def test_f24_a_handler_without_a_name_of_its_own_is_refused(
    store: eo.Store, caplog: pytest.LogCaptureFixture
) -> None:
    """Two lambdas would have one scope, and hide their messages from each other."""
    broker = RabbitBroker(middlewares=[ours_faststream.Idempotency(store, scope="billing", key="payment-id")])
    handled: list[str] = []
    broker.subscriber("payments")(lambda body: handled.append(body))
    async with TestRabbitBroker(broker) as delivering:
        await delivering.publish("x", "payments", headers={"payment-id": "p1"})
    assert handled == []
    assert "failed and is retried in" in caplog.text
    assert "write a def" in caplog.text


def test_f61_the_scope_of_a_program_is_that_of_its_module(store: eo.Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """``python -m shop.worker`` and ``faststream run shop.worker:app`` are one consumer."""

    def charge(body: str) -> None: ...

    once = ours_faststream.Idempotency(store, scope="billing", key="payment-id")
    imported = once.policy_of(charge).scope
    monkeypatch.setattr(sys.modules["__main__"], "__spec__", types.SimpleNamespace(name=__name__), raising=False)
    again = types.FunctionType(charge.__code__, globals(), "charge")
    again.__qualname__, again.__module__ = charge.__qualname__, "__main__"
    assert once.policy_of(again).scope == imported


@pytest.mark.parametrize("kind", ["list", "stream", "kafka"])
async def test_a_batch_is_given_back_and_never_handled_under_its_first_key(store: eo.Store, kind: str) -> None:
    """What stands behind the first would be taken for done with it."""
    from faststream.confluent import KafkaBroker, TestKafkaBroker
    from faststream.redis import ListSub, RedisBroker, StreamSub, TestRedisBroker

    handled: list[Any] = []
    once = ours_faststream.Idempotency(store, scope="billing", key="payment-id")
    broker: Any = (KafkaBroker if kind == "kafka" else RedisBroker)(middlewares=[once])
    told = {"list": {"list": ListSub("payments", batch=True)}, "stream": {"stream": StreamSub("payments", batch=True)}}

    @broker.subscriber(**told[kind]) if kind != "kafka" else broker.subscriber("payments", batch=True)
    async def charge(payments: list[str]) -> None:
        handled.append(payments)

    where = {"topic" if kind == "kafka" else kind: "payments"}
    async with (TestKafkaBroker if kind == "kafka" else TestRedisBroker)(broker) as delivering:
        with pytest.raises(NackMessage):
            await delivering.publish("p1", headers={"payment-id": "p1"}, **where)
    assert (handled, store.list().records) == ([], [])


@pytest.mark.parametrize("kind", ["redis list", "redis stream", "redis channel", "nats", "kafka"])
async def test_the_middleware_is_the_same_for_all_brokers(store: eo.Store, kind: str) -> None:
    from faststream.confluent import KafkaBroker, TestKafkaBroker
    from faststream.nats import NatsBroker, TestNatsBroker
    from faststream.redis import RedisBroker, TestRedisBroker

    library, _, place = kind.partition(" ")
    made, tested = {
        "redis": (RedisBroker, TestRedisBroker),
        "nats": (NatsBroker, TestNatsBroker),
        "kafka": (KafkaBroker, TestKafkaBroker),
    }[library]
    where = {place or ("subject" if library == "nats" else "topic"): "payments"}
    broker: Any = made(middlewares=[ours_faststream.Idempotency(store, scope="billing", key="payment-id")])
    handled: list[Receipt] = []

    @broker.subscriber(**where) if library == "redis" else broker.subscriber("payments")
    async def charge(receipt: Receipt) -> None:
        handled.append(receipt)

    async with tested(broker) as delivering:
        for payment in ("p1", "p1", "p2"):
            receipt = Receipt(payment_id=payment, amount=7)
            await delivering.publish(receipt, headers={"payment-id": payment}, **where)
    assert [receipt.payment_id for receipt in handled] == ["p1", "p2"]


async def test_a_store_without_its_tables_loses_no_message(
    postgres_url: str, unique_name: str, caplog: pytest.LogCaptureFixture
) -> None:
    """A program that is wrong acks nothing: messages from before the migration are redelivered."""

    class Message:
        headers = {"payment-id": "p1"}  # noqa: RUF012
        body = b"{}"

    async def handler(msg: Any) -> None:
        raise AssertionError("it ran unprotected")

    async with eo.connect(f"{postgres_url}?prefix={unique_name}") as store:
        once = ours_faststream.Idempotency(store, scope="billing", key="payment-id")
        with pytest.raises(NackMessage):
            await once(Message(), context=None).consume_scope(handler, Message())
    assert "handler billing failed and is retried in 1s: SchemaMissing: the tables are missing" in caplog.text


async def test_a_message_whose_claim_is_lost_to_another_delivery_comes_again(store: eo.Store) -> None:
    """Rejected, it would be gone although its outcome is the other delivery's, which may still fail."""

    class Message:
        headers: dict[str, str] = {}  # noqa: RUF012
        body = b"{}"

    def key(message: Any) -> str:
        raise eo.LeaseLost("another delivery took over")

    async def handler(msg: Any) -> None:
        raise AssertionError("it ran unprotected")

    once = ours_faststream.Idempotency(store, scope="billing", key=key)
    with pytest.raises(NackMessage):
        await once(Message(), context=None).consume_scope(handler, Message())


async def test_another_body_under_one_key_and_no_key_at_all_are_not_handled(
    rabbit: RabbitBroker, charges: list[str], caplog: pytest.LogCaptureFixture
) -> None:
    """F21."""
    async with TestRabbitBroker(rabbit) as delivering:
        await delivering.publish("one", "payments", headers={"payment-id": "p1"})
        await delivering.publish("other", "payments", headers={"payment-id": "p1"})
        await delivering.publish("keyless", "payments")
    assert charges == ["one"]
    assert caplog.text.count("handler billing failed and the message is rejected: ") == 2


async def test_f06_a_message_beside_the_first_is_given_back(store: eo.Store) -> None:
    once = ours_faststream.Idempotency(store, scope="billing", key="payment-id", lease="200ms")
    begun, over = asyncio.Event(), asyncio.Event()
    runs: list[int] = []

    class Message:
        headers = {"payment-id": "p1"}  # noqa: RUF012
        body = b"{}"

    async def handler(msg: Any) -> str:
        runs.append(1)
        begun.set()
        await over.wait()
        return "receipt"

    first = asyncio.create_task(once(Message(), context=None).consume_scope(handler, Message()))
    await begun.wait()
    with pytest.raises(NackMessage):
        await once(Message(), context=None).consume_scope(handler, Message())
    over.set()
    assert (await first, await once(Message(), context=None).consume_scope(handler, Message())) == (
        "receipt",
        "receipt",
    )
    assert runs == [1]


async def test_when_a_message_is_handled_nothing_of_it_is_left(rabbit: RabbitBroker, store: eo.Store) -> None:
    """Else its lease would be renewed, and what comes after it would run as a part of it."""
    seen: list[bool] = []

    class Outside(BaseMiddleware[Any, Any]):
        async def consume_scope(self, call_next: Any, msg: Any) -> Any:
            try:
                return await call_next(msg)
            finally:
                with pytest.raises(eo.ConfigurationError, match="outside of a guarded handler"):
                    eo.current()
                seen.append(not store.runtime.leased_runs)

    rabbit.insert_middleware(Outside)
    async with TestRabbitBroker(rabbit) as delivering:
        with pytest.raises(RuntimeError, match="on fire"):
            await delivering.publish("fail", "payments", headers={"payment-id": "p1"})
        for _ in range(2):
            await delivering.publish("fail", "payments", headers={"payment-id": "p1"})
    assert seen == [True] * 3
