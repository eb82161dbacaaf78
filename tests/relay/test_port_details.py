"""`contracts.OutboxPort` to the letter, on each database: pages of rows, times, cursors, and what a row shows."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from typing import Any

import pytest

import effectonce as eo
from effectonce.contracts import OutboxPort
from effectonce.contracts.outbox import BLOCKED_ROW_RECHECK_US, COUNT_LIMIT, LeaseRequest, RowOutcome
from tests.relay.harness import Database, lease, message, numbers

A, B, C = b"a" * 16, b"b" * 16, b"c" * 16
SECOND, HOUR = 1_000_000, 3_600_000_000


@pytest.fixture
async def port(database: Database) -> AsyncIterator[OutboxPort]:
    port = database.port()
    yield port
    await port.close()


def request(owner: bytes, **options: Any) -> LeaseRequest:
    return LeaseRequest(owner=owner, **{"limit": 100, "lease_us": 30 * SECOND, "ordered": True, **options})


def due_in(database: Database, state: str) -> list[float]:
    """Seconds from now until the rows in ``state`` are due; all servers of the tests share the machine's clock."""
    rows = database.execute("SELECT due_at FROM {outbox} WHERE state = ? ORDER BY seq", state)
    return [due_at / 1e6 - time.time() for (due_at,) in rows]


async def test_a_leased_row_has_all_parts_of_its_message(database: Database, port: OutboxPort) -> None:
    database.send(
        eo.Message(data=b"\x00\xff", type="paid", id="m1", key="k1", headers={"tenant": "acme"}, trace_id="t")
    )
    (row,) = (await lease(port, A)).rows
    assert (row.message_id, row.id, row.destination, row.ordering_key) == ("m1", "k1", "orders", None)
    assert (row.type, row.payload, row.content, row.trace_id, row.attempts) == ("paid", b"\x00\xff", "bytes", "t", 1)
    assert "acme" in row.headers


async def test_it_takes_fewer_than_it_reads(database: Database, port: OutboxPort) -> None:
    database.send_numbers(range(10))
    leased = await port.lease(request(A, limit=8, take=3))
    assert numbers(leased) == [0, 1, 2]
    assert leased.more
    assert numbers(await port.lease(request(B, take=3))) == [3, 4, 5]


async def test_a_page_says_where_the_next_begins(database: Database, port: OutboxPort) -> None:
    """In order, a relay may have to read past rows that wait for others."""
    database.send_numbers(range(5), key=lambda n: "hot")
    database.send(message(9, "cold"))
    (first,) = (await port.lease(request(A, limit=1))).rows
    page = await port.lease(request(B, limit=2))
    assert (page.rows, page.more) == ([], True)
    assert page.after > first.seq
    page = await port.lease(request(B, limit=2, after=page.after))
    assert (page.rows, page.more) == ([], True)
    page = await port.lease(request(B, limit=2, after=page.after))
    assert numbers(page) == [9]
    assert (page.after, page.more) == (0, False)


async def test_an_outbox_that_was_read_to_its_end_has_no_more(database: Database, port: OutboxPort) -> None:
    leased = await port.lease(request(A))
    assert (leased.rows, leased.after, leased.more) == ([], 0, False)
    database.send_numbers(range(3))
    leased = await port.lease(request(A, limit=4))
    assert (numbers(leased), leased.after, leased.more) == ([0, 1, 2], 0, False)


async def test_rows_to_queues_that_do_not_answer_are_left_out(database: Database, port: OutboxPort) -> None:
    database.send(message(1), to="stuck")
    database.send(message(2), to="other")
    database.send(message(3), to="fine")
    assert numbers(await port.lease(request(A, without=["stuck", "other"]))) == [3]
    (row,) = (await port.lease(request(B, without=["other"]))).rows
    assert row.message_id == "m1"
    await port.settle(B, [RowOutcome(row.seq, "waiting")], HOUR)
    assert numbers(await port.lease(request(C, without=["stuck", "other"]))) == [], "nor if it is due again"
    assert numbers(await port.lease(request(C, without=["other"]))) == [1]


async def test_a_row_waits_as_long_as_its_outcome_says(database: Database, port: OutboxPort) -> None:
    database.send_numbers(range(2))
    first, second = (await lease(port, A)).rows
    outcomes = [
        RowOutcome(first.seq, "waiting", wait_us=HOUR, error="no"),
        RowOutcome(second.seq, "waiting", refund=True),
    ]
    assert await port.settle(A, outcomes, HOUR) == 2
    far, near = due_in(database, "waiting")
    assert 3500 < far <= 3600
    assert near <= 0
    (row,) = (await lease(port, B)).rows
    assert (row.message_id, row.attempts) == ("m1", 1), "its first attempt was given back"
    entries = (await port.list("waiting", 10)).entries
    assert [(entry.message_id, entry.error, entry.attempts) for entry in entries] == [("m0", "no", 1)]


async def test_a_row_behind_a_parked_one_is_looked_at_again(database: Database, port: OutboxPort) -> None:
    database.send_numbers(range(2), key=lambda n: "k")
    (first,) = (await lease(port, A, 1)).rows
    await port.settle(A, [RowOutcome(first.seq, "parked", error="no")], HOUR)
    await lease(port, B)
    (wait,) = due_in(database, "waiting")
    assert BLOCKED_ROW_RECHECK_US / 1e6 - 60 < wait <= BLOCKED_ROW_RECHECK_US / 1e6


async def test_a_published_row_is_shown_until_it_is_cleaned_up(database: Database, port: OutboxPort) -> None:
    database.send_numbers([1])
    (row,) = (await lease(port, A)).rows
    assert await port.settle(A, [RowOutcome(row.seq, "published")], HOUR) == 1
    assert await port.settle(A, [RowOutcome(row.seq, "published")], HOUR) == 0, "once"
    (kept,) = due_in(database, "published")
    assert 3500 < kept <= 3600
    (entry,) = (await port.list("published", 10)).entries
    assert (entry.state, entry.leased_until, entry.error) == ("published", 0, None)
    assert entry.published_at is not None
    assert abs(entry.published_at / 1e6 - time.time()) < 60
    assert entry.created_at <= entry.published_at < entry.due_at


async def test_a_list_is_in_the_order_in_which_rows_are_due(database: Database, port: OutboxPort) -> None:
    database.send_numbers(range(5))
    rows = (await lease(port, A)).rows
    spans = [5, 3, 1, 3, 2]
    await port.settle(A, [RowOutcome(r.seq, "waiting", wait_us=s * HOUR) for r, s in zip(rows, spans, strict=True)], 0)
    pages, cursor = [], None
    while True:
        page = await port.list("waiting", 2, cursor)
        pages.append([entry.message_id for entry in page.entries])
        cursor = page.cursor
        if cursor is None:
            break
    assert pages == [["m2", "m4"], ["m1", "m3"], ["m0"]]
    for cursor in ("x", "1", "1:2:3", "-1:2"):
        with pytest.raises(eo.InvalidOption, match="was not made by this list"):
            await port.list("waiting", 2, cursor)


async def test_what_is_unparked_is_as_much_as_was_asked_for(database: Database, port: OutboxPort) -> None:
    database.send_numbers(range(4))
    rows = (await lease(port, A)).rows
    await port.settle(A, [RowOutcome(row.seq, "parked", error="no") for row in rows], HOUR)
    assert await port.unpark(None, 3) == 3
    assert await port.unpark(None, 3) == 1
    assert await port.unpark(None, 3) == 0
    assert database.states() == {"pending": 4}
    assert [row.attempts for row in (await lease(port, B)).rows] == [1] * 4
    assert (await port.list("parked", 10)).entries == []


async def test_the_backlog_is_as_old_as_its_oldest_row(database: Database, port: OutboxPort) -> None:
    stats = await port.stats()
    assert (stats.oldest, stats.cleaned_at, stats.cap) == (None, None, COUNT_LIMIT)
    database.send_numbers(range(3))
    rows = (await lease(port, A)).rows
    await port.settle(A, [RowOutcome(rows[0].seq, "published")], HOUR)
    ((second,),) = database.execute("SELECT created_at FROM {outbox} WHERE message_id = 'm1'")
    stats = await port.stats()
    assert stats.counts == {"pending": 2, "waiting": 0, "parked": 0, "published": 1}
    assert stats.oldest == second


async def test_a_clean_up_says_when_it_was_done(database: Database, port: OutboxPort) -> None:
    done = await port.clean(10)
    assert (done.published, done.inbox, done.more) == (0, 0, False)
    cleaned_at = (await port.stats()).cleaned_at
    assert cleaned_at is not None
    assert abs(cleaned_at / 1e6 - time.time()) < 60
    assert (await port.stats()).counts == dict.fromkeys(("pending", "waiting", "parked", "published"), 0)


async def test_a_clean_up_takes_no_more_than_its_limit(database: Database, port: OutboxPort) -> None:
    database.send_numbers(range(4))
    rows = (await lease(port, A)).rows
    await port.settle(A, [RowOutcome(row.seq, "published") for row in rows], 1)
    assert ((done := await port.clean(3)).published, done.more) == (3, True)
    assert ((done := await port.clean(1)).published, done.more) == (1, False)
