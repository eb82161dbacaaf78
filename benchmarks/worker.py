"""The worker beside raw loops and other frameworks: Redis Streams, RabbitMQ, the inbox, duplicates, a million messages.

Every case gets its messages before the clock starts, and ends with the last ack. The frameworks beside it run without
any deduplication.
"""

from __future__ import annotations

import asyncio
import itertools
import threading
import time
from collections.abc import Callable, Coroutine, Iterator
from typing import Any

import effectonce as eo
from tests.harness import servers

from .measure import Case, Table

_serial = itertools.count()

Measure = Callable[[int], Coroutine[Any, Any, float]]


def fresh() -> str:
    """The name of an unused queue."""
    return f"bench-{next(_serial)}"


def orders(count: int) -> list[eo.Message[dict[str, int]]]:
    return [eo.Message(type="order.paid", data={"order": number, "amount": 4200}) for number in range(count)]


async def fill(broker: eo.Broker, queue: str, messages: list[eo.Message[Any]], group: str = "bench") -> None:
    await broker.backend.declare(queue, group=group)
    for start in range(0, len(messages), 500):
        await broker.apublish(queue, messages[start : start + 500])


async def consume(worker: eo.Worker, count: int, handled: Callable[[], int]) -> float:
    """Messages a second of ``worker``, which is stopped, and has acked, when ``count`` are handled."""
    began = time.perf_counter()
    serving = asyncio.create_task(worker.serve())
    while handled() < count and not serving.done():  # noqa: ASYNC110  # it costs the handlers nothing
        await asyncio.sleep(0.005)
    worker.stop()
    await serving
    return count / (time.perf_counter() - began)


def counting(worker: eo.Worker, queue: str, **options: Any) -> Callable[[], int]:
    """A handler that does nothing but count."""
    count = 0

    @worker.handler(queue, **options)
    async def handle(message: eo.Message[Any]) -> None:
        nonlocal count
        count += 1

    return lambda: count


def guarded(broker: eo.Broker, store: eo.Store, count: int) -> Measure:
    async def measure(number: int) -> float:
        queue = fresh()
        worker = eo.Worker(broker, store=store, name="bench")
        handled = counting(worker, queue)
        await fill(broker, queue, orders(count))
        return await consume(worker, count, handled)

    return measure


def in_loop(runner: asyncio.Runner, measure: Measure) -> Callable[[int], float]:
    return lambda number: runner.run(measure(number))


# -- Redis Streams ----------------------------------------------------------------------------------------------


def redis(scale: float) -> Iterator[Table]:
    from redis import asyncio as async_library

    count, few = max(1000, int(20_000 * scale)), max(200, int(2000 * scale))
    with servers.redis() as server, servers.redis() as other, asyncio.Runner() as runner:
        broker, store = eo.connect_broker(server.url), eo.connect(server.url, sweep_every=None)
        client = async_library.Redis.from_url(server.url)

        async def raw(number: int) -> float:
            queue = fresh()
            stream = f"eo:{{{queue}}}"
            await fill(broker, queue, orders(count))
            began, done = time.perf_counter(), 0
            while done < count:
                found: Any = await client.xreadgroup("bench", "raw", {stream: ">"}, count=100)
                entries = found[0][1]
                await client.xack(stream, "bench", *[entry[0] for entry in entries])
                done += len(entries)
            return count / (time.perf_counter() - began)

        yield Table(
            "Redis Streams, no-op handler",
            "messages a second",
            "more",
            [
                Case("raw XREADGROUP 100 + XACK, no dedup", in_loop(runner, raw)),
                Case(
                    "effectonce, dedup in Redis",
                    in_loop(runner, guarded(broker, store, count)),
                    {
                        "raw XREADGROUP 100 + XACK, no dedup": 0.25,
                        "FastStream, no dedup": 12.0,
                        "dramatiq, no dedup": 12.0,
                    },
                    ours=True,
                ),
                Case("FastStream, no dedup", in_loop(runner, faststream_on_redis(server.url, few))),
                Case("dramatiq, no dedup", lambda number: dramatiq_on_redis(other.url, few)),
            ],
            note="one process each, async handlers (dramatiq: 8 threads)",
        )
        runner.run(client.aclose())
        runner.run(store.aclose())
        runner.run(broker.aclose())


def faststream_on_redis(url: str, count: int) -> Measure:
    from faststream.redis import RedisBroker, StreamSub
    from redis import asyncio as async_library

    async def measure(number: int) -> float:
        broker, stream = RedisBroker(url, logger=None), fresh()  # type: ignore[arg-type]
        finished, done = asyncio.Event(), 0

        @broker.subscriber(stream=StreamSub(stream, group="bench", consumer="one", max_records=100))
        async def handle(body: dict[str, int]) -> None:
            nonlocal done
            done += 1
            if done == count:
                finished.set()

        client = async_library.Redis.from_url(url)
        await client.xgroup_create(stream, "bench", id="0", mkstream=True)
        await client.aclose()
        await broker.connect()
        for n in range(count):
            await broker.publish({"order": n, "amount": 4200}, stream=stream)
        began = time.perf_counter()
        await broker.start()
        await finished.wait()
        elapsed = time.perf_counter() - began
        await broker.stop()
        return count / elapsed

    return measure


def dramatiq_on_redis(url: str, count: int) -> float:
    import dramatiq
    from dramatiq.brokers.redis import RedisBroker

    broker: Any = RedisBroker(url=url, middleware=[])  # type: ignore[no-untyped-call]
    queue, finished, done = fresh(), threading.Event(), itertools.count(1)

    def handle(order: int, amount: int) -> None:
        if next(done) == count:
            finished.set()

    actor: Any = dramatiq.actor(broker=broker, queue_name=queue)(handle)
    for number in range(count):
        actor.send(number, 4200)
    worker = dramatiq.Worker(broker, worker_timeout=100, worker_threads=8)
    began = time.perf_counter()
    worker.start()
    finished.wait(120)
    elapsed = time.perf_counter() - began
    worker.stop()
    broker.close()
    return count / elapsed


# -- RabbitMQ ---------------------------------------------------------------------------------------------------


def rabbitmq(scale: float) -> Iterator[Table]:
    import aio_pika

    from tests.harness.rabbitmq import rabbitmq as start

    count = max(500, int(5000 * scale))
    with start() as server, servers.redis() as records, asyncio.Runner() as runner:
        broker, store = eo.connect_broker(server.url), eo.connect(records.url, sweep_every=None)

        async def bare(number: int) -> float:
            queue = fresh()
            await fill(broker, queue, orders(count))
            connection = await aio_pika.connect(server.url)
            channel = await connection.channel()
            await channel.set_qos(prefetch_count=200)
            source = await channel.declare_queue(queue, passive=True)
            began, done = time.perf_counter(), 0
            async with source.iterator() as messages:
                async for message in messages:
                    await message.ack()
                    done += 1
                    if done == count:
                        break
            elapsed = time.perf_counter() - began
            await connection.close()
            return count / elapsed

        yield Table(
            "RabbitMQ, quorum queue, no-op handler",
            "messages a second",
            "more",
            [
                Case("bare aio-pika, single acks, no dedup", in_loop(runner, bare)),
                Case(
                    "effectonce, dedup in Redis",
                    in_loop(runner, guarded(broker, store, count)),
                    {"bare aio-pika, single acks, no dedup": 0.6, "FastStream, no dedup": 1.5},
                    ours=True,
                ),
                Case("FastStream, no dedup", in_loop(runner, faststream_on_rabbit(server.url, broker, count))),
            ],
        )
        runner.run(store.aclose())
        runner.run(broker.aclose())


def faststream_on_rabbit(url: str, filler: eo.Broker, count: int) -> Measure:
    from faststream.rabbit import Channel, QueueType, RabbitBroker, RabbitQueue

    async def measure(number: int) -> float:
        name = fresh()
        await fill(filler, name, orders(count))
        broker = RabbitBroker(url, logger=None, default_channel=Channel(prefetch_count=200))
        finished, done = asyncio.Event(), 0

        @broker.subscriber(RabbitQueue(name, declare=False, durable=True, queue_type=QueueType.QUORUM))
        async def handle(body: bytes) -> None:
            nonlocal done
            done += 1
            if done == count:
                finished.set()

        began = time.perf_counter()
        await broker.start()
        await finished.wait()
        elapsed = time.perf_counter() - began
        await broker.stop()
        return count / elapsed

    return measure


# -- mode T -----------------------------------------------------------------------------------------------------


def postgres(scale: float) -> Iterator[Table]:
    import asyncpg  # type: ignore[import-untyped]

    count = max(500, int(6000 * scale))
    with servers.redis() as queues, servers.postgres(durable=True) as server, asyncio.Runner() as runner:
        broker, inbox = eo.connect_broker(queues.url), eo.Inbox(scope="bench")

        async def prepare() -> Any:
            pool = await asyncpg.create_pool(server.url, min_size=4, max_size=12)
            async with pool.acquire() as connection:
                await connection.execute(inbox.schema_sql("postgresql"))
                await connection.execute("CREATE TABLE orders (id int PRIMARY KEY, paid int) WITH (fillfactor = 50)")
                await connection.execute("INSERT INTO orders SELECT n, 0 FROM generate_series(0, 999) AS n")
            return pool

        pool = runner.run(prepare())

        def measured(count: int, **options: Any) -> Measure:
            async def measure(number: int) -> float:
                queue = fresh()
                worker = eo.Worker(broker, inbox=inbox, connect=pool.acquire, name="bench")
                done = 0

                @worker.handler(queue, **options)
                async def pay(connection: Any, message: eo.Message[dict[str, int]]) -> None:
                    nonlocal done
                    order = message.data["order"] % 1000
                    await connection.execute("UPDATE orders SET paid = paid + 1 WHERE id = $1", order)
                    done += 1

                await fill(broker, queue, orders(count))
                return await consume(worker, count, lambda: done)

            return measure

        yield Table(
            "Redis Streams, PostgreSQL inbox, one UPDATE a message",
            "messages a second",
            "more",
            [
                Case(
                    "one transaction a message, one at a time",
                    in_loop(runner, measured(max(100, count // 10), concurrency=1)),
                ),
                Case("one transaction a message, 10 at once", in_loop(runner, measured(count // 2))),
                Case(
                    "batch=True",
                    in_loop(runner, measured(count, batch=True)),
                    {"one transaction a message, one at a time": 10.0},
                    ours=True,
                ),
            ],
            note="fsync on, asyncpg; the target is 8,000/s or 10 times one transaction a message",
        )
        runner.run(pool.close())
        runner.run(broker.aclose())


# -- duplicates -------------------------------------------------------------------------------------------------


def duplicates(scale: float) -> Iterator[Table]:
    from redis import asyncio as async_library

    count = max(1000, int(10_000 * scale))
    with servers.redis() as server, asyncio.Runner() as runner:
        broker, store = eo.connect_broker(server.url), eo.connect(server.url, sweep_every=None)
        client = async_library.Redis.from_url(server.url)

        async def unguarded(number: int) -> float:
            """Fifty tasks that take the entries of one reader, which keeps a hundred of them waiting."""
            queue = fresh()
            stream = f"eo:{{{queue}}}"
            await fill(broker, queue, orders(count))
            waiting: asyncio.Queue[Any] = asyncio.Queue(100)
            done: list[Any] = []

            async def handle() -> None:
                while True:
                    entry = await waiting.get()
                    await asyncio.sleep(0.005)
                    done.append(entry)

            began = time.perf_counter()
            tasks = [asyncio.create_task(handle()) for _ in range(50)]
            acked = read = 0
            while acked < count:
                if read < count:
                    found: Any = await client.xreadgroup("bench", "raw", {stream: ">"}, count=100)
                    read += len(found[0][1])
                    for entry in found[0][1]:
                        await waiting.put(entry[0])
                else:
                    await asyncio.sleep(0.005)
                if done:
                    ended, done = done, []
                    await client.xack(stream, "bench", *ended)
                    acked += len(ended)
            elapsed = time.perf_counter() - began
            for task in tasks:
                task.cancel()
            return count / elapsed

        async def with_duplicates(number: int) -> float:
            queue = fresh()
            worker = eo.Worker(broker, store=store, name="bench")
            seen = 0

            @worker.handler(queue, concurrency=50)
            async def handle(message: eo.Message[Any]) -> None:
                await asyncio.sleep(0.005)

            def on_event(event: eo.Event) -> None:
                nonlocal seen
                seen += event.kind in ("completed", "replayed")

            distinct = orders(count * 10 // 11)
            flow = [
                message for at, message in enumerate(distinct) for message in [message] * (2 if at % 10 == 0 else 1)
            ]
            await fill(broker, queue, flow)
            hooks = store.runtime.hooks
            store.runtime.hooks = (on_event,)
            try:
                return await consume(worker, len(flow), lambda: seen)
            finally:
                store.runtime.hooks = hooks

        yield Table(
            "50 concurrent handlers of 5 ms, one in ten delivered twice",
            "deliveries a second",
            "more",
            [
                Case("no guard, no duplicates", in_loop(runner, unguarded)),
                Case(
                    "effectonce, dedup in Redis",
                    in_loop(runner, with_duplicates),
                    {"no guard, no duplicates": 0.9},
                    ours=True,
                ),
            ],
        )
        runner.run(client.aclose())
        runner.run(store.aclose())
        runner.run(broker.aclose())


# -- a million messages -----------------------------------------------------------------------------------------


def flat(scale: float) -> Iterator[Table]:
    """The worker's memory after a tenth of its messages, and after all of them."""
    count = max(2000, int(1_000_000 * scale))
    sizes: dict[int, tuple[float, float]] = {}
    with servers.redis() as server, asyncio.Runner() as runner:
        broker, store = eo.connect_broker(server.url), eo.connect(server.url, sweep_every=None)

        async def work(number: int) -> None:
            queue, total = fresh(), count if number else count // 10
            worker = eo.Worker(broker, store=store, name="bench")
            handled = counting(worker, queue, retention="1m")
            await broker.backend.declare(queue, group="bench")
            serving = asyncio.create_task(worker.serve())
            early = 0.0
            for start in range(0, total, 500):
                await broker.apublish(queue, orders(min(500, total - start)))
                while start - handled() > 2000:  # noqa: ASYNC110
                    await asyncio.sleep(0.001)
                if not early and start >= total // 10:
                    early = resident()
            while handled() < total and not serving.done():  # noqa: ASYNC110
                await asyncio.sleep(0.01)
            sizes[number] = (early, resident())
            worker.stop()
            await serving

        def at(which: int) -> Callable[[int], float]:
            def measure(number: int) -> float:
                if number not in sizes:
                    runner.run(work(number))
                return sizes[number][which]

            return measure

        yield Table(
            f"memory over {count:,} messages",
            "MB resident",
            "less",
            [
                Case("after a tenth of them", at(0)),
                Case("after all of them", at(1), {"after a tenth of them": 0.9}, ours=True),
            ],
            rounds=1,
        )
        runner.run(store.aclose())
        runner.run(broker.aclose())


def resident() -> float:
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * 4096 / 1e6


PARTS = {"redis": redis, "rabbitmq": rabbitmq, "postgres": postgres, "duplicates": duplicates, "memory": flat}
