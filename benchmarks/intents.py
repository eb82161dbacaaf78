"""One intent, pending, sent and completed, beside its three commits by hand."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
from collections.abc import Callable, Iterator
from typing import Any

import effectonce as eo
from tests.harness import servers

from .measure import Case, Table, rate

_serial = itertools.count()

CREATE = """CREATE TABLE by_hand (
    id text PRIMARY KEY, request bytea NOT NULL, state text NOT NULL, first_sent_at bigint, send_count integer NOT NULL,
    result bytea, changed_at bigint NOT NULL) WITH (fillfactor = 50)"""
NOW = "(date_part('epoch', clock_timestamp()) * 1000000)::bigint"
PENDING = f"""INSERT INTO by_hand VALUES (%s, %s, 'pending', NULL, 0, NULL, {NOW})
ON CONFLICT DO NOTHING RETURNING 1"""
SENT = f"""UPDATE by_hand SET first_sent_at = coalesce(first_sent_at, {NOW}), send_count = send_count + 1,
changed_at = {NOW} WHERE id = %s AND state = 'pending'"""
COMPLETED = f"UPDATE by_hand SET state = 'done', result = %s, changed_at = {NOW} WHERE id = %s AND state = 'pending'"
AT_ONCE = 100


def fresh(count: int) -> list[str]:
    serial = next(_serial)
    return [f"payment-{serial:06}-{number:08}" for number in range(count)]


def intents(scale: float) -> Iterator[Table]:
    """One at a time, and 100 at once; the call itself does nothing. Commits go to the disk."""
    import psycopg

    alone, many = max(50, int(300 * scale)), max(500, int(5000 * scale))
    with servers.postgres(durable=True) as server, contextlib.ExitStack() as stack:
        conn = stack.enter_context(psycopg.connect(server.url, autocommit=True))
        conn.execute(CREATE)
        loop = asyncio.new_event_loop()
        stack.callback(loop.close)
        store = stack.enter_context(eo.connect(server.url, sweep_every=None))
        store.migrate()
        stack.callback(lambda: loop.run_until_complete(store.aclose()))
        payments = eo.Intents(store, scope="bench")

        @payments.operation("stripe", "charge")
        def charge(intent: eo.Intent[dict[str, Any]]) -> str:
            return "ch_1"

        @payments.operation("stripe", "acharge")
        async def acharge(intent: eo.Intent[dict[str, Any]]) -> str:
            return "ch_1"

        def by_hand(keys: list[str]) -> None:
            for key in keys:
                request = b'{"payment": "%b", "amount": 4200}' % key.encode()
                conn.execute(PENDING, (key, request), prepare=True)
                conn.execute(SENT, (key,), prepare=True)
                conn.execute(COMPLETED, (b'"ch_1"', key), prepare=True)

        def by_intent(keys: list[str]) -> None:
            for key in keys:
                charge({"payment": key, "amount": 4200}, key=key)

        def at_once(keys: list[str]) -> None:
            left = iter(keys)

            async def lane() -> None:
                for key in left:
                    await acharge({"payment": key, "amount": 4200}, key=key)

            async def lanes() -> None:
                await asyncio.gather(*(lane() for _ in range(AT_ONCE)))

            loop.run_until_complete(lanes())

        def timed(work: Callable[[list[str]], None], count: int) -> Callable[[int], float]:
            def measure(number: int) -> float:
                keys = fresh(count)
                return rate(count, lambda: work(keys))

            return measure

        bare, one = "three bare commits", "an intent"
        yield Table(
            "intents",
            "intents/s",
            "more",
            [
                Case(bare, timed(by_hand, alone)),
                Case(one, timed(by_intent, alone), {bare: 1 / 1.3}, ours=True),
                Case(f"intents, {AT_ONCE} at once", timed(at_once, many), {bare: 8.0, one: 8.0}, ours=True),
            ],
            "PostgreSQL, fsync on",
            rounds=9,
        )
