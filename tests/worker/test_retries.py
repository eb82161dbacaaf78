"""How often, how long in between, and what is written on a message that is given up."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

import effectonce as eo
from effectonce.core.retry import Retry

from .bench import Bench, give_back_in_disorder, paid, serving, until


def longest(low: float, high: float) -> float:
    return high


def test_the_backoff_doubles_up_to_its_cap_with_full_jitter() -> None:
    retry = Retry(10, first="1s", cap="10s")
    error = ValueError()
    assert [retry.delay_after(error, attempt, longest) for attempt in range(1, 7)] == [1, 2, 4, 8, 10, 10]
    delays = [retry.delay_after(error, 3) for _ in range(2000)]
    assert all(delay is not None and 0 <= delay <= 4 for delay in delays)
    assert min(d for d in delays if d is not None) < 0.5
    assert max(d for d in delays if d is not None) > 3.5


def test_the_first_delay_may_be_none_at_all_and_a_number_is_in_seconds() -> None:
    assert Retry(3, first=0).delay_after(ValueError(), 1) == 0.0
    assert Retry(3, first=1, jitter=False).delay_after(ValueError(), 1) == 1.0


def test_without_options_there_are_five_attempts_whose_delays_double_from_a_second_up_to_five_minutes() -> None:
    retry = Retry()
    assert (retry.max_attempts, retry.max_crashes) == (5, 2)
    assert (retry.first_s, retry.factor, retry.cap_s, retry.jitter) == (1.0, 2.0, 300.0, True)


def test_delays_that_do_not_grow_are_all_alike() -> None:
    retry = Retry(None, first="2s", factor=1, jitter=False)
    assert [retry.delay_after(ValueError(), attempt) for attempt in (1, 2, 1000)] == [2.0, 2.0, 2.0]


@pytest.mark.parametrize("factor", [0.5, 100.5])
def test_delays_neither_shrink_nor_explode(factor: float) -> None:
    assert Retry(3, factor=100).max_delay(2) == 100.0
    with pytest.raises(eo.InvalidOption, match="to 100"):
        Retry(3, factor=factor)


def test_after_the_last_attempt_there_is_none() -> None:
    assert Retry(3).delay_after(ValueError(), 2) is not None
    assert Retry(3).delay_after(ValueError(), 3) is None
    assert Retry(None).delay_after(ValueError(), 10_000, longest) == 300


def test_the_nearest_class_decides_about_an_error() -> None:
    retry = Retry(5, on={OSError: Retry(2, first="7s"), ConnectionError: "dead", LookupError: Retry(None, first="1m")})
    assert retry.delay_after(OSError(), 1, longest) == 7
    assert retry.delay_after(OSError(), 2) is None
    assert retry.delay_after(ConnectionResetError(), 1) is None
    assert retry.refuses(ConnectionResetError())
    assert retry.delay_after(KeyError(), 1, longest) == 60
    assert retry.delay_after(ValueError(), 1, longest) == 1


def test_an_error_that_says_when_to_come_back_is_believed() -> None:
    assert Retry(5).delay_after(eo.InProgress("busy", 42.0), 1, longest) == 42


def test_the_horizon_is_the_longest_time_that_retries_can_take() -> None:
    assert Retry(1).horizon_s == 0
    assert Retry(5, first="1s", cap="5m").horizon_s == 1 + 2 + 4 + 8
    assert Retry(10, first="1m", cap="5m").horizon_s == 60 + 120 + 240 + 6 * 300
    assert Retry(2, on={OSError: Retry(3, first="1h", cap="1h")}).horizon_s == 7200
    assert Retry(None).horizon_s == float("inf")


@pytest.mark.parametrize(
    "options",
    [{"max_attempts": 0}, {"max_attempts": True}, {"first": "0s"}, {"first": "2m", "cap": "1m"}, {"max_crashes": 0},
     {"on": {ValueError: "later"}}, {"on": {"ValueError": "dead"}}],
)  # fmt: skip
def test_a_retry_that_makes_no_sense_is_refused(options: dict[str, Any]) -> None:
    with pytest.raises(eo.InvalidOption):
        Retry(**options)


async def test_a_handler_that_raises_is_tried_again_and_then_given_up_with_its_whole_story() -> None:
    bench = Bench()
    worker = bench.worker()
    attempts: list[int] = []

    @worker.handler("orders", retry=Retry(3, first="20ms"))
    async def charge(message: eo.Message[Any]) -> None:
        attempts.append(eo.current().attempt)
        raise ValueError(f"no such order: {message.data['order']}")

    message = paid(7)
    async with serving(worker):
        await bench.send("orders", message)
        await until(lambda: bench.count("dead") == 1)
    assert attempts == [1, 2, 3]
    assert all(0 <= delay <= 0.02 * 2**number for number, delay in enumerate(bench.delays()))
    (dead,) = await bench.dead(worker, "orders").alist()
    cause = dead.cause
    assert (cause.why, cause.attempts, cause.error) == ("attempts-exhausted", 3, "builtins:ValueError")
    assert (cause.text, cause.worker, cause.queue) == ("no such order: 7", "billing", "orders")
    assert (cause.scope, cause.key) == ("orders/*/billing", message.id)
    assert cause.handler.endswith(":test_a_handler_that_raises_is_tried_again_and_then_given_up_with_its_whole_story"
                                  ".<locals>.charge")  # fmt: skip
    assert 0 < cause.first_attempt_at <= cause.given_up_at
    assert dead.packet.body == bench.broker.envelope.encode(message).body
    assert dead.message is not None
    assert (dead.message.data, dead.message.headers) == ({"order": 7}, {})
    assert [event.kind for event in bench.events].count("dead_lettered") == 1


async def test_an_error_that_is_refused_is_not_tried_again() -> None:
    bench = Bench()
    worker = bench.worker()

    @worker.handler("orders", retry=Retry(5, on={KeyError: "dead"}))
    async def charge(message: eo.Message[Any]) -> None:
        raise KeyError("order")

    async with serving(worker):
        await bench.send("orders", paid())
        await until(lambda: bench.count("dead") == 1)
    (dead,) = await bench.dead(worker, "orders").alist()
    assert (dead.cause.why, dead.cause.attempts, bench.count("nack")) == ("refused", 1, 0)


async def test_a_duplicate_of_an_exhausted_message_does_not_run() -> None:
    bench = Bench()
    worker = bench.worker()
    runs = 0

    @worker.handler("orders", retry=Retry(2, first="10ms"))
    async def charge(message: eo.Message[Any]) -> None:
        nonlocal runs
        runs += 1
        raise ValueError

    message = paid()
    async with serving(worker):
        await bench.send("orders", message)
        await until(lambda: bench.count("dead") == 1)
        await bench.send("orders", message)
        await until(lambda: bench.count("dead") == 2)
    assert runs == 2
    assert [dead.cause.attempts for dead in await bench.dead(worker, "orders").alist()] == [2, 2]


async def test_mode_s_counts_by_the_broker() -> None:
    bench = Bench()
    worker = bench.worker()
    runs = 0

    @worker.handler("orders", mode="seen", retry=Retry(3, first="10ms"))
    async def charge(message: eo.Message[Any]) -> None:
        nonlocal runs
        runs += 1
        assert message.attempt == runs
        raise ValueError

    async with serving(worker):
        await bench.send("orders", paid())
        await until(lambda: bench.count("dead") == 1)
    assert runs == 3


async def test_mode_s_does_not_start_a_message_whose_attempts_ended_their_processes() -> None:
    """Nothing has recorded them but the broker, which delivers it for the third time."""
    bench = Bench()
    worker = bench.worker()
    runs: list[str] = []

    @worker.handler("orders", mode="seen", retry=Retry(2))
    async def charge(message: eo.Message[Any]) -> None:
        runs.append(message.id)

    await bench.send("orders", paid())
    earlier = bench.backend.consumer("orders", group="billing", prefetch=1)
    for _ in range(2):
        await earlier.nack(await earlier.receive(1, 5.0))
    async with serving(worker):
        await until(lambda: bench.count("dead") == 1)
    (dead,) = await bench.dead(worker, "orders").alist()
    assert (runs, dead.cause.why, dead.cause.attempts) == ([], "attempts-exhausted", 2)


async def test_where_the_broker_does_not_count_the_worker_does() -> None:
    bench = Bench()
    bench.count_nothing()
    worker = bench.worker()
    attempts: list[int] = []

    @worker.handler("orders", mode="seen", retry=Retry(3, first="10ms"))
    async def charge(message: eo.Message[Any]) -> None:
        attempts.append(message.attempt)
        raise ValueError

    async with serving(worker):
        await bench.send("orders", paid())
        await until(lambda: bench.count("dead") == 1)
    assert attempts == [1, 2, 3]


async def test_where_the_broker_does_not_count_what_is_sent_again_after_its_ack_is_counted_anew() -> None:
    bench = Bench()
    bench.count_nothing()
    worker = bench.worker()
    attempts: list[int] = []

    @worker.handler("orders", mode="seen", retry=Retry(3, first="10ms"))
    async def charge(message: eo.Message[Any]) -> None:
        attempts.append(message.attempt)
        if len(attempts) < 3:
            raise ValueError

    message = paid()
    async with serving(worker):
        await bench.send("orders", message)
        await until(lambda: bench.count("ack") == 1)
        assert await asyncio.to_thread(bench.store.forget, "orders/*/billing", message.id)  # an operator lets it rerun
        await bench.send("orders", message)
        await until(lambda: bench.count("ack") == 2)
    assert attempts == [1, 2, 3, 1]


# -- order


async def test_one_ordering_key_runs_one_after_another_and_others_beside_it() -> None:
    bench = Bench()
    worker = bench.worker()
    order: list[tuple[str | None, int]] = []
    running: set[str | None] = set()
    most = 0

    @worker.handler("orders")
    async def charge(message: eo.Message[dict[str, int]]) -> None:
        nonlocal most
        assert message.ordering_key not in running
        running.add(message.ordering_key)
        most = max(most, len(running))
        await asyncio.sleep(0.002)
        running.discard(message.ordering_key)
        order.append((message.ordering_key, message.data["order"]))

    async with serving(worker):
        await bench.send_unordered("orders", *(paid(n, ordering_key=f"k{n % 3}") for n in range(30)))
        await until(lambda: bench.count("ack") == 30)
    for key in ("k0", "k1", "k2"):
        numbers = [number for each, number in order if each == key]
        assert numbers == sorted(numbers)
    assert most == 3


async def test_what_is_behind_a_delayed_message_comes_after_it_and_other_keys_do_not_wait() -> None:
    bench = Bench()
    worker = bench.worker()
    order: list[tuple[str | None, int]] = []
    failed = asyncio.Event()

    @worker.handler("orders", retry=Retry(5, first="1ms"))
    async def charge(message: eo.Message[dict[str, int]]) -> None:
        if message.data["order"] == 0 and message.attempt == 1:
            failed.set()
            raise eo.StoreUnavailable("not yet", 0.3)
        order.append((message.ordering_key, message.data["order"]))

    async with serving(worker):
        await bench.send_unordered("orders", *(paid(n, ordering_key="bad") for n in range(4)))
        await failed.wait()
        await until(lambda: bench.count("nack") == 4)
        await bench.send_unordered(
            "orders", paid(4, ordering_key="bad"), *(paid(n, ordering_key="good") for n in range(5, 8))
        )
        await until(lambda: bench.count("ack") == 8)
    assert order[:3] == [("good", number) for number in range(5, 8)], "one bad key does not stop the others"
    assert [number for key, number in order if key == "bad"] == [0, 1, 2, 3, 4]


async def test_those_behind_a_message_that_fails_again_and_again_keep_their_order(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """What was behind the first retry is behind the second, too, though none of it has been redelivered by then."""
    give_back_in_disorder(monkeypatch)
    bench = Bench()
    worker = bench.worker()
    runs: list[int] = []

    @worker.handler("orders", retry=Retry(5, first="1ms", cap="1ms"))
    async def charge(message: eo.Message[dict[str, int]]) -> None:
        number = message.data["order"]
        runs.append(number)
        if number < 2 and runs.count(number) < 4:
            raise ValueError

    async with serving(worker):
        await bench.send_unordered("orders", *(paid(n, ordering_key="k") for n in range(5)))
        await until(lambda: bench.count("ack") == 5)
    assert runs == [0, 0, 0, 0, 1, 1, 1, 1, 2, 3, 4]


async def test_a_dead_letter_lets_those_behind_it_go_on() -> None:
    bench = Bench()
    worker = bench.worker()
    done: list[int] = []

    @worker.handler("orders", retry=Retry(1))
    async def charge(message: eo.Message[dict[str, int]]) -> None:
        if message.data["order"] == 0:
            raise ValueError
        done.append(message.data["order"])

    async with serving(worker):
        await bench.send_unordered("orders", *(paid(n, ordering_key="k") for n in range(4)))
        await until(lambda: bench.count("ack") == 3)
    assert (done, bench.count("dead")) == ([1, 2, 3], 1)


@pytest.mark.parametrize("kind", ["task", "thread"])
async def test_a_cancellation_of_the_handlers_own_making_is_a_failure(kind: str) -> None:
    """Something that it awaited was cancelled. In a thread the message was held for ever by that."""
    bench = Bench()
    worker = bench.worker()

    def charge(message: eo.Message[Any]) -> None:
        raise asyncio.CancelledError

    async def charge_async(message: eo.Message[Any]) -> None:
        raise asyncio.CancelledError

    worker.handler("orders", retry=Retry(2, first="5ms"))(charge if kind == "thread" else charge_async)
    async with serving(worker):
        await bench.send("orders", paid(1))
        await until(lambda: bench.count("dead") == 1)
    (dead,) = await bench.dead(worker, "orders").alist()
    assert (dead.cause.why, dead.cause.attempts) == ("attempts-exhausted", 2)


async def test_a_message_whose_intent_is_in_doubt_is_a_dead_letter_at_once() -> None:
    """No attempt can run until an operator has decided; a `Retry` that names the error tries all the same."""
    bench = Bench()
    worker = bench.worker()
    runs: list[str | None] = []

    def charge(message: eo.Message[Any]) -> None:
        runs.append(message.type)
        raise eo.InDoubt("nobody knows whether the card was charged")

    worker.handler("orders", type="once", retry=Retry(5, first="1ms"))(charge)
    worker.handler("orders", type="again", retry=Retry(5, first="1ms", on={eo.InDoubt: Retry(2, first="1ms")}))(charge)
    async with serving(worker):
        await bench.send("orders", paid(1, type="once"), paid(2, type="again"))
        await until(lambda: bench.count("dead") == 2)
    causes = {dead.message.type: dead.cause for dead in await bench.dead(worker, "orders").alist()}
    assert (sorted(filter(None, runs)), causes["once"].why) == (["again", "again", "once"], "in-doubt")
    assert causes["again"].why == "attempts-exhausted"
