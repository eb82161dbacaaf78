"""What cannot be handled goes to the dead letters with its reason and its exact bytes: no crash loop, no silent ack."""

from __future__ import annotations

import logging
from typing import Any

import msgspec
import pytest

import effectonce as eo
from effectonce.contracts import Delivery, Packet
from effectonce.dead_letters.queue import DeadLetterDetails
from effectonce.envelopes import CloudEvents, Raw, Signed
from effectonce.keys import KAFKA_OFFSET

from .bench import Bench, Watched, paid, serving, until


class Paid(msgspec.Struct):
    order: int


async def buried(bench: Bench, worker: eo.Worker, number: int = 1) -> list[DeadLetterDetails]:
    async with serving(worker):
        await until(lambda: bench.count("dead") == number)
    assert bench.count("ack") == 0
    return list(await bench.dead(worker, "orders").alist())


def ready(bench: Bench, **options: Any) -> eo.Worker:
    worker = bench.worker(**options)

    @worker.handler("orders", type="order.paid")
    async def charge(message: eo.Message[Paid]) -> None:
        raise AssertionError("it must not run")

    return worker


BODIES = {
    b"": "undecodable",
    b"\xff\xfe not JSON": "undecodable",
    b"[]": "undecodable",
    b'{"specversion":"0.3","id":"1","source":"s","type":"order.paid"}': "undecodable",
    b'{"specversion":"1.0","source":"s","type":"order.paid"}': "undecodable",
    b'{"specversion":"1.0","id":"1","source":"s","type":"order.paid","data":{"order":"seven"}}': "undecodable",
    b'{"specversion":"1.0","id":"1","source":"s","type":"order.lost","data":{}}': "unknown-type",
    b'{"specversion":"1.0","id":"%b","source":"s","type":"order.paid","data":{"order":1}}'
    % (b"x" * 2000): "key-too-long",
    b"[" * 100_000: "undecodable",
}


@pytest.mark.parametrize(("id", "key"), [("", "orders:3:42"), ("pay_1", "pay_1")])
def test_an_offset_is_the_key_of_a_message_that_has_none(id: str, key: str) -> None:
    bench = Bench()
    worker = bench.worker(envelope=Raw())

    @worker.handler("orders", key=KAFKA_OFFSET)
    async def charge(message: eo.Message[Any]) -> None: ...

    delivery = Delivery(packet=Packet(body=b"{}", id=id), queue="orders", offset="orders:3:42")
    job = worker.reader("orders").read(delivery)
    assert (job.key, job.message.key, job.message.id) == (key, key, key)


@pytest.mark.parametrize(("header", "attempts"), [("3", 3), ("many", 0), ("-1", 0), ("1" * 20, 0), ("", 0)])
def test_only_a_reasonable_number_is_taken_for_the_attempts_before_a_redrive(header: str, attempts: int) -> None:
    """Anyone who may publish can write that header."""
    bench = Bench()
    packet = bench.broker.envelope.encode(paid())
    packet.headers["eo-used-attempts"] = header
    job = ready(bench).reader("orders").read(Delivery(packet=packet, queue="orders"))
    assert job.attempts_before_redrive == attempts


@pytest.mark.parametrize(("body", "why"), BODIES.items(), ids=[str(number) for number in range(len(BODIES))])
async def test_a_body_that_is_no_message_is_a_dead_letter_with_its_exact_bytes(body: bytes, why: str) -> None:
    bench = Bench()
    worker = ready(bench)
    await bench.send_raw("orders", body, shop="north")
    (dead,) = await buried(bench, worker)
    assert (dead.cause.why, dead.packet.body, dead.packet.headers["shop"]) == (why, body, "north")
    assert (dead.cause.worker, dead.cause.queue) == ("billing", "orders")
    assert dead.cause.text
    assert dead.cause.host
    assert dead.cause.given_up_at >= dead.cause.first_attempt_at > 0


async def test_a_body_over_the_limit_is_not_even_looked_into() -> None:
    bench = Bench()
    worker = ready(bench, envelope=CloudEvents(max_body=100))
    await bench.send_raw("orders", b'{"specversion":"1.0"' + b" " * 100 + b"}")
    (dead,) = await buried(bench, worker)
    assert "over the limit" in dead.cause.text


async def test_f67_a_forged_message_is_not_decoded_and_not_run() -> None:
    bench = Bench()
    worker = ready(bench, envelope=Signed(CloudEvents(), keys={"k1": b"secret" * 8}))
    await bench.send("orders", paid())  # without a signature
    (dead,) = await buried(bench, worker)
    assert (dead.cause.why, dead.message) == ("forged-message", None)


async def test_a_key_that_is_missing_or_cannot_be_made_is_a_dead_letter() -> None:
    bench = Bench()
    worker = bench.worker()

    @worker.handler("orders", type="path", key="message.data.order")
    async def by_path(message: eo.Message[Any]) -> None: ...

    @worker.handler("orders", type="callable", key=lambda message: message.data["order"]["id"])
    async def by_callable(message: eo.Message[Any]) -> None: ...

    await bench.send("orders", *(eo.Message(type=kind, data={"no": 1}) for kind in ("path", "callable")))
    first, second = await buried(bench, worker, 2)
    assert (first.cause.why, second.cause.why) == ("missing-key", "undecodable")
    assert second.cause.error == "builtins:KeyError"


async def test_an_unknown_type_is_deleted_if_the_worker_says_so(caplog: pytest.LogCaptureFixture) -> None:
    bench = Bench()
    worker = ready(bench, unknown="delete")
    await bench.send("orders", eo.Message(type="order.lost", data=1))
    with caplog.at_level(logging.WARNING, "effectonce"):
        async with serving(worker):
            await until(lambda: bench.count("ack") == 1)
    assert "order.lost" in caplog.text


async def test_an_unknown_type_is_delivered_again_later_if_the_worker_says_so() -> None:
    bench = Bench()
    worker = ready(bench, unknown="retry")
    await bench.send("orders", eo.Message(type="order.lost", data=1))
    async with serving(worker):
        await until(lambda: bench.count("nack") >= 2)
    assert bench.left("orders") == 1


@pytest.mark.parametrize("broker_counts", [True, False])
async def test_an_unknown_type_is_delivered_again_within_the_first_delay_at_first(broker_counts: bool) -> None:
    bench = Bench()
    if not broker_counts:
        bench.count_nothing()
    worker = ready(bench, unknown="retry")
    await bench.send("orders", *(eo.Message(type="order.lost", data=number) for number in range(30)))
    async with serving(worker):
        await until(lambda: bench.count("nack") >= 30)
    assert all(delay <= 1.0 for delay in bench.delays()[:30])


async def test_an_unknown_type_ends_the_worker_if_it_says_so_and_is_kept() -> None:
    bench = Bench()
    worker = ready(bench, unknown="fail")
    await bench.send("orders", eo.Message(type="order.lost", data=1))
    with pytest.raises(eo.EffectOnceError, match=r"takes type 'order\.lost'"):
        await worker.serve()
    assert (bench.left("orders"), bench.count("ack")) == (1, 0)


async def test_a_handler_without_a_type_takes_what_no_other_takes() -> None:
    bench = Bench()
    worker = bench.worker()
    seen: list[tuple[str, str]] = []

    @worker.handler("orders", type="order.paid")
    async def charge(message: eo.Message[Any]) -> None:
        seen.append(("charge", message.type))

    @worker.handler("orders")
    async def rest(message: eo.Message[Any]) -> None:
        seen.append(("rest", message.type))

    async with serving(worker):
        await bench.send("orders", paid(), eo.Message(type="order.lost", data=1), eo.Message(data=2))
        await until(lambda: bench.count("ack") == 3)
    assert sorted(seen) == [("charge", "order.paid"), ("rest", ""), ("rest", "order.lost")]


@pytest.mark.parametrize("bad", ["'; DROP", "\x1b[31m", "<script>", "a\r\nb", "naïve ☃ 😀"])
async def test_f65_what_a_producer_writes_is_escaped_in_the_cause(bad: str) -> None:
    bench = Bench()
    worker = ready(bench)
    await bench.send("orders", eo.Message(type=bad, data=1, id="1"))
    (dead,) = await buried(bench, worker)
    assert dead.packet.headers["eo-dead"].isascii()
    assert dead.packet.headers["eo-dead"].isprintable()
    assert dead.cause.text.isprintable()


async def test_dead_letters_that_leave_no_room_for_the_cause_get_less_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """A body as large as the broker takes, and a header more, ended the worker, and the next one."""
    monkeypatch.setattr(Watched, "dead_letter", _narrow(Watched.dead_letter, 60))
    bench = Bench()
    worker = ready(bench)
    await bench.send_raw("orders", b"x" * 1000)
    (dead,) = await buried(bench, worker)
    assert (dead.cause.why, dead.cause.text, dead.packet.body) == ("undecodable", "", b"x" * 1000)


async def test_what_no_dead_letters_take_stays_in_its_queue_and_holds_up_nobody(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(Watched, "dead_letter", _narrow(Watched.dead_letter, 0))
    bench = Bench()
    worker = bench.worker()

    @worker.handler("orders", type="order.paid")
    async def charge(message: eo.Message[Paid]) -> None: ...

    async with serving(worker):
        await bench.send_raw("orders", b"junk")
        await until(lambda: bench.delays() == [300.0])
        await bench.send("orders", paid(1))
        await until(lambda: bench.count("ack") == 1)
    assert bench.left("orders") == 1
    assert "(undecodable); it stays in its queue and is redelivered in 5m: no room" in caplog.text


def _narrow(dead_letter: Any, most: int) -> Any:
    async def refusing(self: Watched, delivery: Delivery, headers: dict[str, str]) -> bool:
        if sum(map(len, headers.values())) > most:
            raise eo.ConfigurationError("no room")
        answer: bool = await dead_letter(self, delivery, headers)
        return answer

    return refusing
