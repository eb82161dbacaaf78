"""Ports themselves: their clock, schema and connection, and the changes that they report."""

from __future__ import annotations

import asyncio
import itertools
import time
import uuid

from effectonce.errors import UnsafeStore
from effectonce.record import Look
from effectonce.testing.suites.expectations import expect, expect_fields, expect_no_leak, require, skip_unless

from .harness import RESOLUTIONS, StoreHarness
from .port_harness import SECOND_US, only_on

# -- changes


async def changes_report_the_settlement_of_a_flagged_record(h: StoreHarness) -> None:
    """A hint may be lost, so three are tried; a store that says it notifies must deliver one."""
    skip_unless(h.capabilities.notifies, "a store that notifies")
    listener = h.port()
    await listener.changes(0.0)
    for state in RESOLUTIONS:
        reported: set[str] = set()
        flagged: set[str] = set()
        for n in range(3):
            quiet, loud = await h.claim(f"{state}-quiet{n}"), await h.claim(f"{state}-loud{n}")
            expect_fields(await h.try_claim(loud.key, waiting=True), kind="in_progress")
            if h.capabilities.notes:  # a note ends nothing: the waiter is notified of the settlement all the same
                await h.run(quiet.note(b"1"), loud.note(b"1"))
            await h.settle(quiet, state)
            await h.settle(loud, state)
            flagged.add(loud.key)
            deadline = time.monotonic() + 1
            while not reported & flagged and time.monotonic() < deadline:
                reported.update(key for scope, key in await listener.changes(0.25) if scope == h.scope)
            require(quiet.key not in reported, "a settlement that nothing waits for was reported")
            if reported & flagged:
                break
        require(bool(reported & flagged), f"three flagged records became {state}, and none was reported")


async def changes_returns_at_its_timeout(h: StoreHarness) -> None:
    skip_unless(h.capabilities.notifies, "a store that notifies")
    listener = h.port()
    await listener.now()  # connected
    for timeout in (0.0, 0.1):
        began = time.monotonic()
        await listener.changes(timeout)
        took = time.monotonic() - began
        require(took < timeout + 2, f"changes({timeout}) took {took:.1f} s")


# -- the port itself


async def now_is_the_time_and_does_not_run_backwards(h: StoreHarness) -> None:
    times = [await h.now() for _ in range(5)]
    require(all(type(t) is int for t in times), f"times that are not integers: {times}")
    require(all(b >= a - h.slack_us for a, b in itertools.pairwise(times)), f"time ran backwards: {times}")
    if h.clock is None:
        off = times[0] / SECOND_US - time.time()
        require(abs(off) < 86_400, f"the store's clock is {off:.0f} s from ours; is it in microseconds?")


async def all_ports_share_the_records(h: StoreHarness) -> None:
    grant = await h.claim(port=h.port())
    expect_fields(await h.try_claim(port=h.port()), "a claim through another port", kind="in_progress")
    await h.settle(grant, "done", result=b"r", port=h.port())
    expect_fields(await h.try_claim(port=h.port()), "a duplicate through a fourth port", result=b"r")


async def migrate_may_run_twice(h: StoreHarness) -> None:
    grant = await h.claim()
    await h.main_port.migrate()
    await h.port().migrate()
    await h.settle(grant, "done")


async def migrate_may_run_twice_at_once(h: StoreHarness) -> None:
    await h.run_together(3, lambda port, n: port.migrate())
    await h.claim()


async def a_migrated_store_passes_its_check(h: StoreHarness) -> None:
    try:
        await h.port().check()
    except UnsafeStore as error:
        skip_unless(None, f"a server that is safe: {error}")


async def the_schema_is_text_for_people(h: StoreHarness) -> None:
    expect(type(h.backend.schema_sql()), str, "the type of schema_sql()")
    require(bool(repr(h.backend)), "the backend's repr is empty")


async def a_port_closes_unused_and_twice(h: StoreHarness) -> None:
    unused, used = h.port(), h.port()
    await unused.close()
    await h.claim(port=used)
    await used.close()
    await used.close()
    expect_fields(await h.try_claim(), "a claim through another port, after one closed", kind="in_progress")


async def a_closed_port_leaves_nothing_open(h: StoreHarness) -> None:
    async def open_use_and_close() -> None:
        ports = [h.new_port() for _ in range(6)]
        for port in ports:
            await h.claim(uuid.uuid4().hex, port=port)
        for port in ports:
            await port.close()

    await expect_no_leak(open_use_and_close, h.sleep, attempts=20 if h.clock is None else 1)


@only_on("async")
async def a_cancelled_call_does_not_spoil_the_next(h: StoreHarness) -> None:
    """A reply left half-read on the connection would answer the wrong question."""
    for n in range(4):
        await h.make_record("done", f"k{n}", result=f"r{n}".encode())
    port = h.port()
    for turn in range(24):
        task = asyncio.ensure_future(port.run([Look(h.scope, f"k{turn % 4}")]))
        for _ in range(turn % 6):
            await asyncio.sleep(0)
        task.cancel()
        await asyncio.wait([task])
        next_number = (turn + 1) % 4
        answer = await h.try_claim(f"k{next_number}", port=port)
        expect_fields(answer, "a call after one that was cancelled", result=f"r{next_number}".encode())
