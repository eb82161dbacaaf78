"""A saga of three steps that do nothing, beside the same one with a commit per step, and beside DBOS.

DBOS pins its own drivers, so it runs in a process of an environment of its own: ``EFFECTONCE_BENCH_DBOS`` is the Python
there. Without it the peer is left out.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import os
import resource
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

from msgspec.structs import replace

import effectonce as eo
from effectonce.store import open_backend
from tests.harness import servers

from .measure import Case, Table, rate

_serial = itertools.count()

#: Reads "HOW_MANY AT_ONCE" from each line, runs so many workflows of three steps, and answers with the seconds.
DBOS = """
import asyncio, logging, sys, time, uuid
logging.disable(logging.CRITICAL)
from dbos import DBOS, SetWorkflowID

DBOS(config={"name": "bench", "system_database_url": sys.argv[1], "run_admin_server": False})

@DBOS.step()
async def one(n): return n
@DBOS.step()
async def two(n): return n
@DBOS.step()
async def three(n): return n
@DBOS.workflow()
async def order(n):
    return [await one(n), await two(n), await three(n)]

async def main():
    DBOS.launch()
    print("ready", flush=True)
    loop = asyncio.get_running_loop()
    while line := await loop.run_in_executor(None, sys.stdin.readline):
        count, at_once = map(int, line.split())
        numbers = iter(range(count))
        async def lane():
            for n in numbers:
                with SetWorkflowID(uuid.uuid4().hex):
                    await order(n)
        started = time.perf_counter()
        await asyncio.gather(*(lane() for _ in range(at_once)))
        print(time.perf_counter() - started, flush=True)
    DBOS.destroy()

asyncio.run(main())
"""


class Dbos:
    """DBOS, as a process that is told what to run."""

    def __init__(self, python: str, url: str) -> None:
        self._process = subprocess.Popen(
            [python, "-c", DBOS, url],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        if self._line() != "ready":
            raise RuntimeError(f"DBOS did not start under {python}")

    def rate(self, count: int, at_once: int) -> float:
        assert self._process.stdin is not None
        print(count, at_once, file=self._process.stdin, flush=True)
        return count / float(self._line())

    def _line(self) -> str:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            with contextlib.suppress(ValueError):
                if line.strip() == "ready" or float(line) > 0:
                    return line.strip()
        raise RuntimeError("DBOS has ended")

    def close(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait(30)


def three_steps(store: eo.Store) -> eo.Saga[dict[str, Any]]:
    saga = eo.Saga("bench", store, input=dict[str, Any])
    for name in ("one", "two", "three"):

        async def step(order: dict[str, Any]) -> int:
            return 1

        saga.step(name=name)(step)
    return saga


CREATE = """CREATE TABLE by_hand (id text PRIMARY KEY, input bytea NOT NULL, log bytea NOT NULL, state text NOT NULL)"""
INSERT = "INSERT INTO by_hand VALUES (%s, %s, %s, 'running') ON CONFLICT DO NOTHING RETURNING 1"
UPDATE = "UPDATE by_hand SET log = %s, state = %s WHERE id = %s AND state = 'running'"


def saga(scale: float) -> Iterator[Table]:
    """One at a time, and 50 at once; commits go to the disk."""
    from psycopg_pool import AsyncConnectionPool

    alone, many = max(20, int(300 * scale)), max(100, int(2000 * scale))
    python = os.environ.get("EFFECTONCE_BENCH_DBOS")
    with servers.postgres(durable=True) as server, contextlib.ExitStack() as stack:
        loop = asyncio.new_event_loop()
        stack.callback(loop.close)
        store = stack.enter_context(eo.connect(server.url, sweep_every=None))
        store.migrate()
        stack.callback(lambda: loop.run_until_complete(store.aclose()))
        ours = three_steps(store)
        backend = open_backend(server.url)
        backend.capabilities = replace(backend.capabilities, batch=1)  # nothing shares a commit
        alone_store = stack.enter_context(eo.Store(backend, sweep_every=None))
        stack.callback(lambda: loop.run_until_complete(alone_store.aclose()))
        ungrouped = three_steps(alone_store)
        pool = AsyncConnectionPool(server.url, min_size=10, max_size=10, open=False, kwargs={"autocommit": True})
        loop.run_until_complete(pool.open(wait=True))
        stack.callback(lambda: loop.run_until_complete(pool.close()))
        peer: Dbos | None = None
        if python:
            peer = Dbos(python, server.url)
            stack.callback(peer.close)

        async def create() -> None:
            async with pool.connection() as conn:
                await conn.execute(CREATE)

        loop.run_until_complete(create())

        async def by_saga(id: str) -> None:
            await ours.arun(id, {"order": id, "amount": 4200})

        async def one_by_one(id: str) -> None:
            await ungrouped.arun(id, {"order": id, "amount": 4200})

        async def by_hand(id: str) -> None:
            body, log = b'{"order": "%b", "amount": 4200}' % id.encode(), b"1" * 60
            async with pool.connection() as conn:
                await conn.execute(INSERT, (id, body, log))
            for state in ("running", "running", "done"):
                async with pool.connection() as conn:
                    await conn.execute(UPDATE, (log, state, id))

        def timed(work: Callable[[str], Awaitable[None]], count: int, at_once: int) -> Callable[[int], float]:
            async def lanes(ids: Iterator[str]) -> None:
                async def lane() -> None:
                    for id in ids:
                        await work(id)

                await asyncio.gather(*(lane() for _ in range(at_once)))

            def measure(number: int) -> float:
                serial = next(_serial)
                ids = iter([f"order-{serial:06}-{each:08}" for each in range(count)])
                return rate(count, lambda: loop.run_until_complete(lanes(ids)))

            return measure

        for name, count, at_once, against in (
            ("three steps, one saga at a time", alone, 1, {"DBOS": 5.0}),
            ("three steps, 50 sagas at once", many, 50, {"DBOS": 40.0, "a commit per step": 6.0}),
        ):
            cases = [
                Case("four bare rows by hand, 10 connections", timed(by_hand, count, at_once)),
                Case("a commit per step", timed(one_by_one, count, at_once)),
            ]
            if peer is not None:
                fewer = max(20, count // 10)
                cases.append(Case("DBOS", lambda number, n=fewer, k=at_once: peer.rate(n, k)))  # type: ignore[misc]
            targets = {other: goal for other, goal in against.items() if any(case.name == other for case in cases)}
            cases.append(Case("saga", timed(by_saga, count, at_once), targets, ours=True))
            yield Table(name, "sagas/s", "more", cases, "PostgreSQL, fsync on" + ("" if peer else "; no DBOS here"))


def resuming(scale: float) -> Iterator[Table]:
    """Interrupted sagas, gone on with: time linear in their number, memory flat."""
    few, many = max(100, int(1000 * scale)), max(1000, int(10_000 * scale))
    with servers.postgres(durable=True) as server:
        store = eo.connect(server.url, sweep_every=None)
        store.migrate()

        def interrupted(count: int) -> Callable[[int], float]:
            async def measured() -> float:
                ours, serial = three_steps(store), next(_serial)
                for at in range(0, count, 500):
                    ids = range(at, min(at + 500, count))
                    await asyncio.gather(*(ours.astart(f"left-{serial}-{n}", {"order": n}) for n in ids))
                before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
                started = time.perf_counter()
                came = await ours.aresume()
                took = time.perf_counter() - started
                grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024
                print(f"  {count} resumed in {took:.2f} s, {grown:.1f} MB more", file=sys.stderr)
                assert came.done == count, json.dumps(came.done)
                await store.aclose()
                return count / took

            return lambda number: asyncio.run(measured())

        yield Table(
            "sagas gone on with after a crash",
            "sagas/s",
            "more",
            [
                Case(f"{few} left behind", interrupted(few)),
                Case(f"{many} left behind", interrupted(many), {f"{few} left behind": 0.8}, ours=True),
            ],
            "PostgreSQL, fsync on; linear where the ratio is about 1",
            rounds=2,
        )
        store.close()


PARTS = {"saga": saga, "resuming": resuming}
