"""The relay beside the loop that people write: PostgreSQL to Redis Streams and to RabbitMQ, a lone message, a lease."""

from __future__ import annotations

import asyncio
import multiprocessing
import os
import time
from collections.abc import Callable, Iterator
from typing import Any

import effectonce as eo
from effectonce.contracts.outbox import LeaseRequest, RowOutcome
from tests.harness import servers
from tests.harness.rabbitmq import rabbitmq

from .measure import Case, Table, rate

COLUMNS = "id, message_id, destination, ordering_key, line, type, headers, payload, content, created_at, state, due_at"
FILL = f"""INSERT INTO effectonce_outbox ({COLUMNS})
SELECT 'm' || n, 'm' || n, 'orders', 'order-' || n %% 5000, n %% 5000, 'order.paid', '{{}}',
       convert_to('{{"order": ' || n || ', "amount": 4200, "currency": "EUR"}}', 'UTF8'), 'json', 1, %s, %s
FROM generate_series(1, %s) AS n"""
SELECT = """SELECT seq, message_id, payload FROM effectonce_outbox WHERE state = 'pending' AND due_at <= 0
ORDER BY due_at, seq LIMIT %s FOR UPDATE SKIP LOCKED"""
DELETE = "DELETE FROM effectonce_outbox WHERE seq = ANY (%s)"


class Shop:
    """A PostgreSQL with an outbox, refilled for every measurement."""

    def __init__(self, url: str) -> None:
        import psycopg

        self.store = eo.connect(url, sweep_every=None)
        self.store.migrate()
        self.connection: Any = psycopg.connect(url, autocommit=True)

    def fill(self, count: int) -> None:
        self.connection.execute("TRUNCATE effectonce_outbox")
        self.connection.execute(FILL, ("pending", 0, count))
        self.connection.execute("VACUUM ANALYZE effectonce_outbox")
        self.connection.execute("CHECKPOINT")

    def relayed(self, broker: eo.Broker, count: int, **options: Any) -> Callable[[int], float]:
        """Messages a second through a serving relay."""

        async def serve(relay: eo.Relay) -> None:
            serving = asyncio.create_task(relay.serve())
            while relay.totals.published < count and not serving.done():  # noqa: ASYNC110
                await asyncio.sleep(0.001)
            relay.stop()
            await serving

        def measure(number: int) -> float:
            self.fill(count)
            relay = eo.Relay(self.store, broker, **options)
            return rate(count, lambda: asyncio.run(serve(relay)))

        return measure


def to_redis(scale: float) -> Iterator[Table]:
    import psycopg
    import redis

    count = max(1000, int(20_000 * scale))
    with servers.postgres(durable=True) as postgres, servers.redis() as server:
        shop, broker = Shop(postgres.url), eo.connect_broker(server.url)
        client: Any = redis.Redis.from_url(server.url)

        def by_hand(batch: int) -> Callable[[int], float]:
            def loop() -> None:
                with psycopg.connect(postgres.url) as connection, connection.cursor(binary=True) as cursor:
                    while rows := cursor.execute(SELECT, (batch,), prepare=True).fetchall():
                        pipeline = client.pipeline(transaction=False)
                        for _, id, payload in rows:
                            pipeline.xadd("orders", {"id": id, "body": payload})
                        pipeline.execute()
                        cursor.execute(DELETE, ([row[0] for row in rows],), prepare=True)
                        connection.commit()

            def measure(number: int) -> float:
                shop.fill(count)
                client.flushall()
                return rate(count, loop)

            return measure

        def ours(**options: Any) -> Callable[[int], float]:
            measure = shop.relayed(broker, count, **options)

            def cleared(number: int) -> float:
                client.flushall()
                return measure(number)

            return cleared

        raw = "by hand: SKIP LOCKED, XADD, DELETE, 100 at a time"
        mark = "the mark for order"
        yield Table(
            "relay, PostgreSQL to Redis Streams",
            "messages/s",
            "more",
            [
                Case(raw, by_hand(100)),
                Case("the same, 500 at a time", by_hand(500)),
                Case(mark, lambda number: 10_000.0),
                Case("relay, no order, keep=0", ours(order=None, keep=0), {raw: 0.7}, ours=True),
                Case("relay, in order, keep=0", ours(keep=0), {raw: 0.7, mark: 1.0}, ours=True),
                Case("relay as it is: in order, keep=1h", ours(), {raw: 0.7, mark: 1.0}, ours=True),
            ],
            "fsync on; the loop by hand holds a transaction while it speaks to Redis, and keeps no order between two",
        )
        shop.store.close()


def to_rabbitmq(scale: float) -> Iterator[Table]:
    count = max(1000, int(10_000 * scale))
    with servers.postgres(durable=True) as postgres, rabbitmq() as server:
        shop, broker = Shop(postgres.url), eo.connect_broker(server.url)
        broker.declare("orders")
        mark = "the mark"
        yield Table(
            "relay, PostgreSQL to RabbitMQ with confirms",
            "messages/s",
            "more",
            [
                Case(mark, lambda number: 5_000.0),
                Case("relay, no order", shop.relayed(broker, count, order=None, keep=0), {mark: 1.0}, ours=True),
                Case("relay, in order", shop.relayed(broker, count, keep=0), {mark: 1.0}, ours=True),
            ],
            "quorum queue, fsync on",
            rounds=3,
        )
        broker.close()
        shop.store.close()


def _serve(postgres: str, broker: str) -> None:
    eo.Relay(eo.connect(postgres, sweep_every=None), eo.connect_broker(broker)).run()


def lone(scale: float) -> Iterator[Table]:
    """From the return of COMMIT to the arrival in Redis, of messages that come one by one to an idle relay."""
    import psycopg
    import redis

    count = max(20, int(200 * scale))
    outbox = eo.Outbox(to="lone", notify=True)
    with servers.postgres(durable=True) as postgres, servers.redis() as server:
        shop = Shop(postgres.url)
        client: Any = redis.Redis.from_url(server.url)
        process = multiprocessing.get_context("spawn").Process(target=_serve, args=(postgres.url, server.url))
        process.start()
        connection = psycopg.connect(postgres.url)

        def latency() -> float:
            with connection.transaction():
                outbox.send(connection, eo.Message(data={"order": 1}))
            committed = time.perf_counter()
            client.execute_command("XREAD", "BLOCK", 10_000, "STREAMS", "eo:{lone}", last[0])
            arrived = time.perf_counter()
            last[0] = client.xrevrange("eo:{lone}", count=1)[0][0]
            return (arrived - committed) * 1000

        def p99(number: int) -> float:
            times = []
            for _ in range(count):
                time.sleep(0.02)
                times.append(latency())
            return sorted(times)[int(len(times) * 0.99)]

        last = ["0"]
        latency()  # the relay has started
        mark = "the mark"
        yield Table(
            "relay, a lone message, from commit to arrival (p99)",
            "ms",
            "less",
            [Case(mark, lambda number: 50.0), Case("relay, woken by NOTIFY", p99, {mark: 1.0}, ours=True)],
            "PostgreSQL to Redis, a process of its own",
            rounds=3,
        )
        process.terminate()
        process.join()
        connection.close()
        shop.store.close()


def leases(scale: float) -> Iterator[Table]:
    """One lease of 100, beside rows that were published and not yet cleaned up."""
    published = max(1000, int(100_000 * scale))
    with servers.postgres(durable=True) as postgres, asyncio.Runner() as loop:
        shop = Shop(postgres.url)
        backend: Any = shop.store.runtime.backend

        def beside(others: int) -> Callable[[int], float]:
            async def lease(count: int) -> float:
                port = backend.async_outbox()
                spent = 0.0
                for _ in range(count):
                    owner = os.urandom(16)
                    began = time.perf_counter()
                    leased = await port.lease(LeaseRequest(owner=owner, limit=100, lease_us=30_000_000, ordered=True))
                    spent += time.perf_counter() - began
                    await port.settle(owner, [RowOutcome(row.seq, "pending", refund=True) for row in leased.rows], 0)
                await port.close()
                return spent / count * 1000

            def measure(number: int) -> float:
                shop.connection.execute("TRUNCATE effectonce_outbox")
                if others:
                    shop.connection.execute(FILL, ("published", 10**18, others))
                    shop.connection.execute("UPDATE effectonce_outbox SET line = NULL")
                shop.connection.execute(FILL, ("pending", 0, 1000))
                shop.connection.execute("VACUUM effectonce_outbox")
                return loop.run(lease(30))

            return measure

        alone = "no others"
        yield Table(
            "relay, one ordered lease of 100 rows",
            "ms",
            "less",
            [
                Case(alone, beside(0)),
                Case(f"{published:,} published rows", beside(published), {alone: 1 / 1.5}, ours=True),
            ],
            "PostgreSQL, fsync on",
        )
        shop.store.close()


PARTS = {"relay to redis": to_redis, "relay to rabbitmq": to_rabbitmq, "lone message": lone, "leases": leases}
