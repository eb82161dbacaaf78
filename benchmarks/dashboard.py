"""The dashboard on a million records: how long the server takes to answer, while its poller counts."""

from __future__ import annotations

import re
import sqlite3
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from starlette.testclient import TestClient

import effectonce as eo
from effectonce.dashboard.access import Access
from effectonce.dashboard.app import make_app
from effectonce.dashboard.sources import Sources
from tests.harness import servers

from .measure import Case, Table

LIMIT = 200.0
TOKEN = "token-of-the-benchmark"
#: Of a thousand records: 988 are done, 4 run, 4 failed, 2 are free and 2 in doubt; in five scopes.
STATE = """CASE WHEN n % 1000 < 4 THEN 'claimed' WHEN n % 1000 < 8 THEN 'failed' WHEN n % 1000 < 10 THEN 'free'
           WHEN n % 1000 < 12 THEN 'in_doubt' ELSE 'done' END"""
MONTH = 30 * 86_400_000_000

SQLITE = f"""
WITH RECURSIVE numbers (n) AS (SELECT 0 UNION ALL SELECT n + 1 FROM numbers WHERE n + 1 < :count)
INSERT INTO effectonce_records (due, scope, key, state, owner, token, attempts, generation, lapsed, doubt_on_lapse,
                                lease_until, expires_at, created_at, changed_at, result)
SELECT ((:now + {MONTH}) / 1000 << 20) + n, 'scope-' || (n % 5), printf('order-%08d', n), {STATE}, randomblob(16),
       :now + n, 1, 0, 0, 0, :now + {MONTH}, :now + {MONTH} + n, :now, :now + n, CAST('1{{"receipt":1}}' AS BLOB)
FROM numbers"""
POSTGRES = f"""
INSERT INTO effectonce_records (scope, key, state, attention, token, attempts, generation, created_at, changed_at,
                                lease_until, expires_at, expires_minute, doubt_on_lapse, owner, result)
SELECT scope, key, state, CASE WHEN state IN ('free', 'failed', 'in_doubt') THEN state END, {{now}} + n, 1, 0, {{now}},
       {{now}} + n, {{now}} + {MONTH}, {{now}} + {MONTH} + n, ({{now}} + {MONTH} + n) / 60000000, false,
       decode(md5(n::text), 'hex'), convert_to('1{{{{"receipt":1}}}}', 'UTF8')
FROM (SELECT n, 'scope-' || (n % 5) AS scope, 'order-' || lpad(n::text, 8, '0') AS key, {STATE} AS state
      FROM generate_series(0, {{count}} - 1) AS n) AS made"""


@contextmanager
def in_sqlite(count: int) -> Iterator[str]:
    with tempfile.TemporaryDirectory(prefix="effectonce-") as folder:
        url = f"sqlite:///{Path(folder) / 'shop.db'}"
        with eo.connect(url, sweep_every=None) as store:
            store.migrate()
        with sqlite3.connect(url.removeprefix("sqlite:///")) as connection:
            connection.execute(SQLITE, {"count": count, "now": time.time_ns() // 1000})
        connection.close()
        yield url


@contextmanager
def in_postgres(count: int) -> Iterator[str]:
    import psycopg

    with servers.postgres(durable=True) as server:
        with eo.connect(server.url, sweep_every=None) as store:
            store.migrate()
        with psycopg.connect(server.url, autocommit=True) as connection:
            connection.execute(POSTGRES.format(count=count, now=time.time_ns() // 1000).encode())
            connection.execute("VACUUM ANALYZE effectonce_records")
        yield server.url


def pages(make: Callable[[int], Any], name: str) -> Callable[[float], Iterator[Table]]:
    def tables(scale: float) -> Iterator[Table]:
        count = max(10_000, int(1_000_000 * scale))
        middle = f"order-{count // 2:08d}"
        with make(count) as url:
            store = eo.connect(url, sweep_every=None)
            app = make_app(Sources(store), Access(operator=TOKEN, hosts=["testserver"]))
            with TestClient(app) as visitor:
                visitor.post("/login", data={"who": "ada", "token": TOKEN})
                first = server_time(visitor, "/")  # before the poller has counted anything
                deep = re.findall(
                    r'href="(/records\?[^"]*cursor=[^"]*)"',
                    visitor.get(f"/records?scope=scope-3&key={middle[:-5]}*").text,
                )
                paths = {
                    "overview": "/",
                    "figures of the plots": "/overview.json",
                    "records": "/records",
                    "records, a page in the middle": deep[0].replace("&amp;", "&")
                    if deep
                    else "/records?scope=scope-3",
                    "records by the beginning of a key": f"/records?scope=scope-2&key={middle[:-3]}*",
                    "records by a key in any scope": f"/records?key={middle}",
                    "records that are done": "/records?state=done",
                    "records that run": "/records?state=claimed&scope=scope-4",
                    "records in doubt": "/in-doubt",
                }
                cases = [
                    Case("allowed", lambda _: LIMIT),
                    Case("overview, the first", lambda _: first, {"allowed": 1.0}, True),
                ]
                cases += [
                    Case(page, lambda _, path=path: server_time(visitor, path), {"allowed": 1.0}, True)  # type: ignore[misc]
                    for page, path in paths.items()
                ]
                note = f"{count:,} records; the median of single requests"
                yield Table(f"Dashboard on {name}: server time of a page", "ms", "less", cases, note=note, rounds=15)
            store.close()

    return tables


def server_time(visitor: TestClient, path: str) -> float:
    """As the dashboard itself says it, in milliseconds."""
    answer = visitor.get(path)
    assert answer.status_code == 200, (path, answer.status_code)
    return float(answer.headers["server-timing"].partition("dur=")[2])


PARTS = {"sqlite": pages(in_sqlite, "SQLite"), "postgres": pages(in_postgres, "PostgreSQL")}
