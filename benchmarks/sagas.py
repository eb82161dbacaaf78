"""A saga of three steps that do nothing, beside the same one with a commit per step, and beside DBOS.

DBOS pins its own drivers, so it runs in a process of an environment of its own: ``EFFECTONCE_BENCH_DBOS`` is the Python
there. Without it the peer is left out.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import itertools
import logging
import os
import resource
import subprocess
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from msgspec.structs import replace

import effectonce as eo
from effectonce.backends.postgres.store import PostgresPoolBackend
from effectonce.store import open_backend
from tests.harness import servers

from .intents import intents
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


def three_steps(store: eo.Store, stopped: Sequence[bool] = ()) -> eo.Saga[dict[str, Any]]:
    """Steps that do nothing. While ``stopped`` has something in it the second does not know what it did."""
    saga = eo.Saga("bench", store, input=dict[str, Any])

    @saga.step()
    async def one(order: dict[str, Any]) -> int:
        return 1

    @saga.step()
    async def two(order: dict[str, Any]) -> int:
        if stopped:
            raise eo.OutcomeUnknown("stopped", 0.0)
        return 2

    @saga.step()
    async def three(order: dict[str, Any]) -> int:
        return 3

    return saga


def _commit_per_step(
    backend: Callable[[], Any], stores: int, loop: asyncio.AbstractEventLoop, stack: contextlib.ExitStack
) -> Callable[[str], Awaitable[None]]:
    """Runs the saga without group commit. Each of ``stores`` can have four operations under way at once."""
    sagas = []
    for _ in range(stores):
        ungrouped = backend()
        ungrouped.capabilities = replace(ungrouped.capabilities, batch=1)
        store = stack.enter_context(eo.Store(ungrouped, sweep_every=None))
        stack.callback(lambda store=store: loop.run_until_complete(store.aclose()))  # type: ignore[misc]
        sagas.append(three_steps(store))

    async def run(id: str) -> None:
        await sagas[hash(id) % len(sagas)].arun(id, {"order": id, "amount": 4200})

    return run


UNGROUPED = "a commit per step, the same store"
POOLED = "a commit per step, psycopg's pool of 10"
SIX_STORES = "a commit per step, six stores with 24 connections"

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
        pool = AsyncConnectionPool(server.url, min_size=10, max_size=10, open=False, kwargs={"autocommit": True})
        loop.run_until_complete(pool.open(wait=True))
        stack.callback(lambda: loop.run_until_complete(pool.close()))
        ungrouped = _commit_per_step(lambda: open_backend(server.url), 1, loop, stack)
        through_pool = _commit_per_step(lambda: PostgresPoolBackend(pool), 6, loop, stack)
        six_stores = _commit_per_step(lambda: open_backend(server.url), 6, loop, stack)
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
            ("three steps, 50 sagas at once", many, 50, {"DBOS": 40.0, UNGROUPED: 6.0, POOLED: 6.0}),
        ):
            cases = [
                Case("four bare rows by hand, 10 connections", timed(by_hand, count, at_once)),
                Case(UNGROUPED, timed(ungrouped, count, at_once)),
                Case(POOLED, timed(through_pool, count, at_once)),
                Case(SIX_STORES, timed(six_stores, count, at_once)),
            ]
            if peer is not None:
                fewer = max(20, count // 10)
                cases.append(Case("DBOS", lambda number, n=fewer, k=at_once: peer.rate(n, k)))  # type: ignore[misc]
            targets = {other: goal for other, goal in against.items() if any(case.name == other for case in cases)}
            cases.append(Case("saga", timed(by_saga, count, at_once), targets, ours=True))
            yield Table(name, "sagas/s", "more", cases, "PostgreSQL, fsync on" + ("" if peer else "; no DBOS here"))


def resuming(scale: float) -> Iterator[Table]:
    """Resume sagas that stopped after their first step: time linear in their number, memory flat."""
    logging.getLogger("effectonce").setLevel(logging.CRITICAL)  # thousands of steps fail here, as they are to
    few, many = max(100, int(1000 * scale)), max(1000, int(10_000 * scale))
    grown: dict[int, list[float]] = {few: [], many: []}
    with servers.postgres(durable=True) as server:
        store = eo.connect(server.url, sweep_every=None)
        store.migrate()

        def interrupted(count: int) -> Callable[[int], float]:
            async def measured() -> float:
                stopped: list[bool] = [True]
                ours, serial = three_steps(store, stopped), next(_serial)

                async def begun(number: int) -> None:
                    with contextlib.suppress(eo.OutcomeUnknown):
                        await ours.arun(f"left-{serial}-{number}", {"order": number})

                for at in range(0, count, 500):
                    await asyncio.gather(*(begun(number) for number in range(at, min(at + 500, count))))
                stopped.clear()
                gc.collect()
                before, peak = _resident(), asyncio.create_task(_peak())
                started = time.perf_counter()
                counts = await ours.aresume()
                took = time.perf_counter() - started
                peak.cancel()
                grown[count].append(max(1.0, await peak - before))
                assert counts.done == count, counts
                await store.aclose()
                return count / took

            return lambda number: asyncio.run(measured())

        cases = [f"{few} left behind", f"{many} left behind"]
        yield Table(
            "sagas resumed after a crash",
            "sagas/s",
            "more",
            [Case(cases[0], interrupted(few)), Case(cases[1], interrupted(many), {cases[0]: 0.8}, ours=True)],
            "PostgreSQL, fsync on; linear where the ratio is about 1",
            rounds=2,
        )
        yield Table(
            "memory taken by that",
            "MB",
            "less",
            [
                Case(cases[0], lambda number: grown[few][number]),
                Case(cases[1], lambda number: grown[many][number], {cases[0]: 0.25}, ours=True),
            ],
            "resident, at its highest; it does not grow with their number where the ratio is far above 0.1",
            rounds=2,
        )
        store.close()


def _resident() -> float:
    """Megabytes of this process."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize() / 2**20


async def _peak() -> float:
    """The most that `_resident` gives until this is cancelled."""
    most = 0.0
    with contextlib.suppress(asyncio.CancelledError):
        while True:
            most = max(most, _resident())
            await asyncio.sleep(0.02)
    return max(most, _resident())


PARTS = {"saga": saga, "resuming": resuming, "intents": intents}
