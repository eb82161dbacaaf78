"""Mode T beside the same statements by hand: the inbox in the caller's own psycopg transaction."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable, Iterator
from typing import Any

import effectonce as eo
from tests.harness import servers

from .measure import Case, Table, rate

_serial = itertools.count()

NOW = "(date_part('epoch', clock_timestamp()) * 1000000)::bigint"
COLUMNS = "INSERT INTO effectonce_inbox (scope, key, fingerprint, created_at, expires_at)"
UPDATE = "UPDATE orders SET paid = paid + 1 WHERE id = %s"
ONE = f"{COLUMNS} VALUES (%s, %s, %s, {NOW}, {NOW} + %s) ON CONFLICT (scope, key) DO NOTHING RETURNING 1"
MANY = f"""{COLUMNS} SELECT %s, key, NULL, {NOW}, {NOW} + %s FROM unnest(%s::text[]) AS key
ON CONFLICT (scope, key) DO NOTHING RETURNING key"""
RETENTION = 15 * 86_400_000_000
BATCH = 100


def fresh(count: int) -> list[str]:
    """Unused keys, in the order of time as UUIDv7 are."""
    serial = next(_serial)
    return [f"order-paid-{serial:06}-{number:08}" for number in range(count)]


def inbox(scale: float) -> Iterator[Table]:
    """`first` and an UPDATE, and `first_many` of 100, in transactions that are committed to disk."""
    import psycopg

    count = max(100, int(400 * scale))  # short rounds, and many: each is compared with its neighbours
    mailbox = eo.Inbox(scope="bench")
    with servers.postgres(durable=True) as server, contextlib.ExitStack() as stack:
        conn = stack.enter_context(psycopg.connect(server.url))
        mailbox.migrate(conn)
        conn.execute("CREATE TABLE orders (id integer PRIMARY KEY, paid integer NOT NULL) WITH (fillfactor = 50)")
        conn.execute("INSERT INTO orders SELECT n, 0 FROM generate_series(0, 999) AS n")
        conn.commit()

        def by_hand(keys: list[str]) -> None:
            for number, key in enumerate(keys):
                with conn.transaction():
                    if conn.execute(ONE, ("bench", key, None, RETENTION)).fetchone():
                        conn.execute(UPDATE, (number % 1000,))

        def by_inbox(messages: list[Any]) -> None:
            for number, message in enumerate(messages):
                with conn.transaction():
                    if mailbox.first(conn, message):
                        conn.execute(UPDATE, (number % 1000,))

        def many_by_hand(keys: list[str]) -> None:
            for at in range(0, len(keys), BATCH):
                with conn.transaction():
                    some = keys[at : at + BATCH]
                    new = {key for (key,) in conn.execute(MANY, ("bench", RETENTION, some)).fetchall()}
                    _ = [key in new for key in some]

        def many_by_inbox(messages: list[Any]) -> None:
            for at in range(0, len(messages), BATCH):
                with conn.transaction():
                    mailbox.first_many(conn, messages[at : at + BATCH])

        def timed(
            work: Callable[[list[Any]], None], size: int, make: Callable[[str], Any] = str
        ) -> Callable[[int], float]:
            def measure(number: int) -> float:
                messages = [make(key) for key in fresh(size)]
                return rate(size, lambda: work(messages))

            return measure

        def message(key: str) -> eo.Message[Any]:
            return eo.Message(data={"order": key, "amount": 4200}, id=key)

        yield Table(
            "inbox.first and an UPDATE in a psycopg transaction",
            "messages/s",
            "more",
            [
                Case("by hand", timed(by_hand, count)),
                Case("inbox.first, a key", timed(by_inbox, count), {"by hand": 0.85}, ours=True),
                Case("inbox.first, a Message", timed(by_inbox, count, message), {"by hand": 0.85}, ours=True),
            ],
            "PostgreSQL, fsync on",
            rounds=15,
        )
        yield Table(
            f"first_many of {BATCH} in a psycopg transaction",
            "messages/s",
            "more",
            [
                Case("unnest by hand", timed(many_by_hand, 10 * count)),
                Case("first_many, keys", timed(many_by_inbox, 10 * count), {"unnest by hand": 0.8}, ours=True),
                Case("first_many, Messages", timed(many_by_inbox, 10 * count, message), {"unnest by hand": 0.8}, True),
            ],
            "PostgreSQL, fsync on",
            rounds=15,
        )


PARTS = {"inbox": inbox}
