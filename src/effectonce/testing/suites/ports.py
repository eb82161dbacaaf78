"""A port's own life: its clock, its schema, its connection, and the changes it reports."""

from __future__ import annotations

import asyncio
import gc
import itertools
import os
import sys
import time

from effectonce.errors import UnsafeStore
from effectonce.record import Look

from .harness import SECOND, Harness, async_case, case
from .sentences import equal, holds

# -- changes


@case
async def changes_report_the_settlement_of_a_flagged_record(h: Harness) -> None:
    """A hint may be lost, so three are tried; a store that says it notifies must deliver one."""
    h.needs(h.capabilities.notifies, "a store that notifies")
    listener = h.port()
    await listener.changes(0.0)
    for state in ("done", "free", "failed"):
        found: set[tuple[str, str]] = set()
        flagged: set[tuple[str, str]] = set()
        for n in range(3):
            quiet, loud = await h.take(f"{state}-quiet{n}"), await h.take(f"{state}-loud{n}")
            equal((await h.ask(loud.claim.key, waiting=True)).kind, "in_progress", "the waiter's answer")
            if h.capabilities.notes:  # which end nothing: whoever waits is told all the same
                await h.run(h.a_note(quiet, b"1"), h.a_note(loud, b"1"))
            await h.settle(quiet, state)
            await h.settle(loud, state)
            flagged.add((h.scope, loud.claim.key))
            deadline = time.monotonic() + 1
            while not found & flagged and time.monotonic() < deadline:
                found.update((scope, key) for scope, key in await listener.changes(0.25))
            holds((h.scope, quiet.claim.key) not in found, "a settlement that nobody waits for was reported")
            if found & flagged:
                break
        holds(bool(found & flagged), f"three flagged records became {state}, and none was reported")


@case
async def changes_come_back_at_their_timeout(h: Harness) -> None:
    h.needs(h.capabilities.notifies, "a store that notifies")
    listener = h.port()
    await listener.now()  # connected
    for timeout in (0.0, 0.1):
        began = time.monotonic()
        await listener.changes(timeout)
        holds(
            time.monotonic() - began < timeout + 2,
            f"changes({timeout}) took {time.monotonic() - began:.1f} s",
        )


# -- the port itself


@case
async def now_is_the_time_and_does_not_run_backwards(h: Harness) -> None:
    times = [await h.now() for _ in range(5)]
    holds(all(type(t) is int for t in times), f"times that are no integers: {times}")
    holds(all(b >= a - h.slack for a, b in itertools.pairwise(times)), f"time ran backwards: {times}")
    if h.clock is None:
        off = times[0] / SECOND - time.time()
        holds(abs(off) < 86_400, f"the store's clock is {off:.0f} s from ours; is it in microseconds?")


@case
async def all_ports_share_the_records(h: Harness) -> None:
    mine = await h.take(port=h.port())
    equal((await h.ask(port=h.port())).kind, "in_progress", "a claim through another port")
    equal(await h.settle(mine, "done", result=b"r", port=h.port()), True, "a settlement through a third")
    equal((await h.ask(port=h.port())).answer.result, b"r", "a duplicate through a fourth")


@case
async def migrate_may_run_twice(h: Harness) -> None:
    mine = await h.take()
    await h.first.migrate()
    await h.port().migrate()
    equal(await h.settle(mine, "done"), True, "a settlement after the schema was migrated again")


@case
async def migrate_may_run_twice_at_once(h: Harness) -> None:
    await h.together(3, lambda port, n: port.migrate())
    await h.take()


@case
async def a_migrated_store_passes_its_check(h: Harness) -> None:
    try:
        await h.port().check()
    except UnsafeStore as error:
        h.needs(False, f"a server that is safe: {error}")


@case
async def the_schema_is_text_for_people(h: Harness) -> None:
    equal(type(h.backend.schema_sql()), str, "the type of schema_sql()")
    holds(bool(repr(h.backend)), "the backend's repr is empty")


@case
async def a_port_closes_unused_and_twice(h: Harness) -> None:
    unused, used = h.port(), h.port()
    await unused.close()
    await h.take(port=used)
    await used.close()
    await used.close()
    equal((await h.ask()).kind, "in_progress", "a claim through another port, after one closed")


@case
async def a_closed_port_leaves_nothing_open(h: Harness) -> None:
    """Two rounds: what the first leaves may be kept for reuse (SQLite does), what the second adds is a leak."""
    h.needs(sys.platform == "linux", "a system that lists open files in /proc")
    await _open_and_close(h, "first")
    before = len(os.listdir("/proc/self/fd"))
    await _open_and_close(h, "second")
    for _ in range(20):
        gc.collect()
        left = len(os.listdir("/proc/self/fd")) - before
        if left < 3:
            return
        await h.sleep(0.05)
        if h.clock is not None:  # nothing goes on in another thread that it would be worth waiting for
            break
    raise AssertionError(f"six ports were used and closed, and {left} more files are open than before")


async def _open_and_close(h: Harness, name: str) -> None:
    ports = [h.backend.sync_port() if h.port_kind == "sync" else h.backend.async_port() for _ in range(6)]
    for n, port in enumerate(ports):
        await h.take(f"{name}{n}", port=port)
    for port in ports:
        await port.close()


@async_case
async def a_cancelled_call_does_not_spoil_the_next(h: Harness) -> None:
    """A reply left half-read on the connection would answer the wrong question."""
    for n in range(4):
        await h.settle(await h.take(f"k{n}"), "done", result=f"r{n}".encode())
    port = h.port()
    for turn in range(24):
        task = asyncio.ensure_future(port.run([Look(h.scope, f"k{turn % 4}")]))
        for _ in range(turn % 6):
            await asyncio.sleep(0)
        task.cancel()
        await asyncio.wait([task])
        wanted = (turn + 1) % 4
        answer = (await h.ask(f"k{wanted}", port=port)).answer
        equal(answer.result, f"r{wanted}".encode(), "the result after a call was cancelled")
