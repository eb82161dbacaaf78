"""F79: a failed attempt is one log line: with the traceback, with what ran, and with what happens next."""

from __future__ import annotations

import asyncio
import sqlite3
from typing import Any

import pytest

import effectonce as eo
from effectonce.errors import Poison
from effectonce.record import Claim
from tests.harness.failure_lines import facts, failures, raised

from .bench import Bench, paid, serving, until
from .test_outcome_recorder import RefusingOutlet
from .test_poison import SCOPE, Mortal
from .test_transactions import Database, sqlite

__all__ = ["sqlite"]  # a fixture


async def test_what_an_intent_in_a_handler_meets_is_logged_once_by_the_worker(caplog: pytest.LogCaptureFixture) -> None:
    bench = Bench()
    worker = bench.worker()
    intents = eo.Intents(bench.store, scope="billing")

    def broken(outcome: Any) -> None:
        raise LookupError("a defect of the classifier")

    intents.classify("stripe")(broken)

    @intents.operation("stripe", "charge")
    def send(intent: eo.Intent[int]) -> None:
        raise TimeoutError("no answer")

    @worker.handler("orders", retry=eo.Retry(1))
    def charge(message: eo.Message[Any]) -> None:
        send(4200, key=message.id)

    await fail(bench, worker, paid())
    (line,) = failures(caplog)
    assert (line.levelname, type(raised(line))) == ("ERROR", eo.OutcomeUnknown)
    assert all(function in caplog.text for function in ("in send", "in broken")), "both tracebacks are there"


async def fail(bench: Bench, worker: eo.Worker, *messages: eo.Message[Any], dead: int = 1) -> None:
    """Work until so many of ``messages`` are dead letters."""
    async with serving(worker):
        await bench.send("orders", *messages)
        await until(lambda: bench.count("dead") == dead)


@pytest.mark.parametrize("mode", ["lease", "seen"])
@pytest.mark.parametrize("is_async", [True, False])
async def test_each_failed_attempt_is_logged_once(caplog: pytest.LogCaptureFixture, mode: Any, is_async: bool) -> None:
    bench = Bench()
    worker = bench.worker()
    errors: list[KeyError] = []

    def book(message: eo.Message[Any]) -> None:
        try:
            message.data["sku"]
        except KeyError as error:
            errors.append(error)
            raise

    async def book_async(message: eo.Message[Any]) -> None:
        book(message)

    handler = book_async if is_async else book
    worker.handler("orders", scope="books", mode=mode, retry=eo.Retry(2, first="10ms", jitter=False))(handler)
    await fail(bench, worker, paid(1, id="m-1", key="Order:1"))
    first, last = failures(caplog)
    assert [first.levelname, last.levelname] == ["WARNING", "ERROR"]
    assert [raised(first), raised(last)] == errors
    assert 'message.data["sku"]' in caplog.text
    name = f"{__name__}:{handler.__qualname__}"
    common = {"queue": "orders", "handler": name, "message": "m-1", "scope": "books", "key": "Order:1"}
    common["error"] = "builtins:KeyError"
    assert facts(first) == {**common, "attempt": 1, "next": "is retried in 10ms"}
    assert facts(last) == {**common, "attempt": 2, "next": "goes to the dead letters: attempts-exhausted"}
    assert first.getMessage() == (
        f"queue orders, handler {name} failed and is retried in 10ms: KeyError: 'sku' "
        "(message=m-1 scope=books key=Order:1 attempt=1)"
    )


@pytest.mark.parametrize("batch", [False, True])
async def test_each_failed_attempt_in_a_transaction_is_logged_once(
    sqlite: Database, caplog: pytest.LogCaptureFixture, batch: bool
) -> None:
    """A batch that fails is redone one by one: only the message that fails again is logged."""
    worker = sqlite.worker()

    @worker.handler("orders", batch=batch, retry=eo.Retry(2, first="1ms", jitter=False))
    def insert(connection: sqlite3.Connection, message: eo.Message[dict[str, int]]) -> None:
        if message.data["order"] == 2:
            raise KeyError("sku")

    await fail(sqlite.bench, worker, *(paid(number, id=f"m-{number}") for number in range(4)))
    first, last = failures(caplog)
    assert [(record.levelname, facts(record)["message"], facts(record)["attempt"]) for record in (first, last)] == [
        ("WARNING", "m-2", 1),
        ("ERROR", "m-2", 2),
    ]
    assert "in insert" in caplog.text
    assert isinstance(raised(last), KeyError)


async def test_a_doubtful_attempt_says_what_to_do(caplog: pytest.LogCaptureFixture) -> None:
    bench = Bench()
    worker = bench.worker()

    @worker.handler("orders", on_error="doubt")
    async def charge(message: eo.Message[Any]) -> None:
        raise TimeoutError

    await fail(bench, worker, paid())
    (line,) = failures(caplog)
    assert line.levelname == "ERROR"
    assert "is in doubt, and goes to the dead letters: find out whether its effect happened" in line.getMessage()


@pytest.mark.parametrize("unknown", ["dead", "delete", "retry"])
async def test_a_refused_delivery_is_logged_once(caplog: pytest.LogCaptureFixture, unknown: Any) -> None:
    bench = Bench()
    worker = bench.worker(unknown=unknown)
    worker.handler("orders", type="order.paid")(handle)
    async with serving(worker):
        await bench.send("orders", paid(1, id="m-1", type="order.lost"))
        await until(lambda: bench.count({"dead": "dead", "delete": "ack", "retry": "nack"}[unknown]) == 1)
        line = failures(caplog)[0]
    assert (line.levelname, facts(line)["message"]) == ("ERROR" if unknown == "dead" else "WARNING", "m-1")
    assert "order.lost" in str(raised(line))


async def handle(message: eo.Message[Any]) -> None: ...


async def test_a_delivery_whose_claim_is_refused_for_good_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    bench = Bench()
    worker = bench.worker()
    worker.handler("orders")(handle)
    async with serving(worker):
        await bench.send("orders", paid(1, id="m-1"))
        await until(lambda: bench.count("ack") == 1)
        await bench.send("orders", paid(2, id="m-1"))
        await until(lambda: bench.count("dead") == 1)
    (line,) = failures(caplog)
    assert isinstance(raised(line), eo.PayloadMismatch)
    assert facts(line)["next"] == "goes to the dead letters: payload-mismatch"


async def test_a_cancelled_handler_has_not_failed(caplog: pytest.LogCaptureFixture) -> None:
    bench = Bench()
    worker = bench.worker(drain="10ms")
    started = asyncio.Event()

    @worker.handler("orders")
    async def wait(message: eo.Message[Any]) -> None:
        started.set()
        await asyncio.sleep(60)

    async with serving(worker):
        await bench.send("orders", paid())
        await started.wait()
    assert not [record for record in caplog.records if hasattr(record, "effectonce")]


async def test_a_dead_letter_has_the_end_of_the_traceback() -> None:
    bench = Bench()
    worker = bench.worker()

    @worker.handler("orders", retry=eo.Retry(1))
    async def book(message: eo.Message[Any]) -> None:
        even(300, "amqp://shop:s3cret@host/v?token=t0ken is away")

    await fail(bench, worker, paid())
    (dead,) = await bench.dead(worker, "orders").alist()
    tail = dead.cause.traceback
    assert dead.cause.error == "builtins:RuntimeError"
    assert dead.cause.text == "amqp://host/v is away"
    assert tail.startswith("…\n")
    assert tail.endswith("in even\n    raise RuntimeError(text)\nRuntimeError: amqp://host/v is away")
    assert len(tail) <= 2000


def even(depth: int, text: str) -> None:
    if depth:
        odd(depth - 1, text)
    raise RuntimeError(text)


def odd(depth: int, text: str) -> None:
    even(depth - 1, text)


async def test_of_a_private_store_neither_log_nor_traceback_has_the_key(caplog: pytest.LogCaptureFixture) -> None:
    bench = Bench()
    bench.store = eo.Store(bench.store_backend, sweep_every=None, private="s" * 32)
    worker = bench.worker()

    @worker.handler("orders", retry=eo.Retry(1))
    async def book(message: eo.Message[Any]) -> None:
        raise KeyError("ann@example.org")

    await fail(bench, worker, paid(1, key="ann@example.org"))
    (line,) = failures(caplog)
    assert "KeyError: #" in caplog.text
    assert "ann@" not in line.getMessage() + repr(facts(line)) + caplog.text.replace('raise KeyError("ann@', "")
    assert facts(line)["key"].startswith("#")
    (dead,) = await bench.dead(worker, "orders").alist()
    *_, frame = dead.cause.traceback.splitlines()
    assert frame.startswith(f"{__file__}:")
    assert frame.endswith(" in book")
    assert "ann" not in dead.cause.traceback


async def test_a_dead_letter_without_room_for_the_traceback_goes_without_it(monkeypatch: pytest.MonkeyPatch) -> None:
    bench = Bench()
    worker = bench.worker()
    offered: list[int] = []

    @worker.handler("orders", retry=eo.Retry(1))
    async def book(message: eo.Message[Any]) -> None:
        raise KeyError("sku")

    make_consumer = bench.backend.consumer

    def consumer(queue: str, **options: Any) -> Any:
        opened = make_consumer(queue, **options)
        dead_letter = opened.dead_letter

        async def narrow(delivery: Any, headers: dict[str, str]) -> bool:
            offered.append(len(headers["eo-dead"]))
            if len(headers["eo-dead"]) > 500:
                raise eo.ConfigurationError("no room")
            moved: bool = await dead_letter(delivery, headers)
            return moved

        opened.dead_letter = narrow
        return opened

    monkeypatch.setattr(bench.backend, "consumer", consumer)
    await fail(bench, worker, paid())
    (dead,) = await bench.dead(worker, "orders").alist()
    assert len(offered) == 2
    assert (dead.cause.traceback, dead.cause.text, dead.cause.error) == ("", "'sku'", "builtins:KeyError")


async def test_a_poison_message_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    mortal = Mortal()
    await mortal.bench.send("orders", paid(3, id="m-3", key="Order:3"))
    while await mortal.live(poison=3, until_done=1):
        pass
    (line,) = [record for record in caplog.records if hasattr(record, "effectonce")]
    assert line.levelname == "ERROR"
    assert isinstance(raised(line), Poison)
    expected = {"message": "m-3", "key": "Order:3", "scope": SCOPE, "queue": "orders", "attempt": 2}
    assert expected.items() <= facts(line).items()
    assert facts(line)["next"] == "goes to the dead letters: poison"


async def test_a_claim_that_the_store_cannot_read_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    bench = Bench()
    worker = bench.worker()
    worker.handler("orders", scope="books", retry=eo.Retry(5, first="10ms", jitter=False))(handle)
    errors = [eo.CorruptRecord("of a newer release")]
    run_one = bench.store_backend.before

    def fail_once(op: Any) -> None:
        run_one(op)
        if isinstance(op, Claim) and errors:
            raise errors.pop()

    bench.store_backend.before = fail_once
    async with serving(worker):
        await bench.send("orders", paid(1, id="m-1"))
        await until(lambda: bench.count("ack") == 1)
    (line,) = failures(caplog)
    assert line.levelname == "WARNING"
    assert isinstance(raised(line), eo.CorruptRecord)
    assert {"message": "m-1", "scope": "books", "key": "m-1", "queue": "orders"}.items() <= facts(line).items()
    assert facts(line)["next"] == "its claim is retried in 10ms"


@pytest.mark.parametrize(
    ("error", "levels", "then"),
    [
        (eo.BrokerUnavailable("it is away", 0.01), ["WARNING"], "could not send on what it returned, which is retried"),
        (ValueError("too ugly"), ["WARNING"], "is retried in 1ms"),
        (ValueError("too ugly"), ["WARNING", "ERROR"], "goes to the dead letters: unsent"),
    ],
)
async def test_what_cannot_be_sent_on_is_logged_once_each_time(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, error: Exception, levels: list[str], then: str
) -> None:
    retry = eo.Retry(2, first="1ms", jitter=False)
    outlet = RefusingOutlet(monkeypatch, [error] * len(levels), retry)
    async with serving(outlet.worker):
        await outlet.bench.send("orders", paid(1, id="m-1"))
        await until(lambda: outlet.bench.count("ack") + outlet.bench.count("dead") == 1)
    lines = failures(caplog)
    assert [line.levelname for line in lines] == levels
    assert [raised(line) for line in lines] == [error] * len(levels)
    assert {facts(line)["message"] for line in lines} == {"m-1"}
    assert [facts(line)["attempt"] for line in lines] == list(range(1, len(lines) + 1))
    assert facts(lines[-1])["next"].startswith(then)


async def release_with_error(bench: Bench) -> None:
    async with eo.block(bench.store, scope="books", key="Order:1") as attempt:
        assert attempt.first
        raise KeyError("sku")


async def test_attempts_that_were_used_up_before_a_crash_name_the_last_error(caplog: pytest.LogCaptureFixture) -> None:
    """The process died after it had released the last attempt, and before it had moved the message to the dead
    letters."""
    bench = Bench()
    worker = bench.worker()
    worker.handler("orders", scope="books", retry=eo.Retry(1))(handle)
    with pytest.raises(KeyError):
        await release_with_error(bench)
    await fail(bench, worker, paid(1, key="Order:1"))
    (line,) = failures(caplog)
    assert line.levelname == "ERROR"
    assert isinstance(raised(line), eo.AttemptsExhausted)
    (dead,) = await bench.dead(worker, "orders").alist()
    assert dead.cause.text == (
        "all 1 attempts failed; the last error was KeyError: 'sku'; fix the cause, then redrive the message"
    )
    record = bench.store.get("books", "Order:1")
    assert record is not None
    assert b"KeyError" in (record.error or b""), "the refund keeps it for operators"
