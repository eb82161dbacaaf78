"""The relay's side of the database: `contracts.OutboxPort`, on each of them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

import effectonce as eo
from effectonce.contracts import OutboxPort
from effectonce.contracts.outbox import RowOutcome
from effectonce.values.key_term import parse_key_term
from tests.relay.harness import Database, lease, message, numbers

A, B, C = b"a" * 16, b"b" * 16, b"c" * 16
HOUR = 3_600_000_000


@pytest.fixture
async def port(database: Database) -> AsyncIterator[OutboxPort]:
    port = database.port()
    yield port
    await port.close()


@pytest.fixture
async def rival(database: Database) -> AsyncIterator[OutboxPort]:
    port = database.port()
    yield port
    await port.close()


@pytest.mark.parametrize("ordered", [True, False])
async def test_rows_are_leased_in_the_order_of_insertion_and_once(
    database: Database, port: OutboxPort, rival: OutboxPort, ordered: bool
) -> None:
    database.send_numbers(range(10))
    assert numbers(await lease(port, A, 4, ordered=ordered)) == [0, 1, 2, 3]
    assert numbers(await lease(rival, B, 4, ordered=ordered)) == [4, 5, 6, 7]
    assert numbers(await lease(port, C, 4, ordered=ordered)) == [8, 9]
    assert numbers(await lease(rival, B, 4, ordered=ordered)) == [4, 5, 6, 7], "again, to its owner"


async def test_a_repeated_lease_counts_one_attempt(database: Database, port: OutboxPort) -> None:
    """F68: the reply was lost, and the relay asks again."""
    database.send_numbers([1])
    for _ in range(3):
        (row,) = (await lease(port, A)).rows
        assert row.attempts == 1


async def test_a_lease_that_ends_is_anybodys_and_fences_out_its_owner(
    database: Database, port: OutboxPort, rival: OutboxPort
) -> None:
    """F42: the relay died between publish and mark; the same row goes again."""
    database.send_numbers([1, 2])
    first = (await lease(port, A, span=0.000_001)).rows
    second = (await lease(rival, B)).rows
    assert [row.attempts for row in second] == [2, 2]
    assert [row.message_id for row in first] == [row.message_id for row in second]
    assert await port.settle(A, [RowOutcome(row.seq, "published") for row in first], 0) == 0, "a zombie settles nothing"
    assert await rival.settle(B, [RowOutcome(row.seq, "published") for row in second], 0) == 2
    assert database.states() == {}


async def test_commit_order_hides_no_row(database: Database, port: OutboxPort) -> None:
    """F41: number 1 is inserted first and committed last."""
    if database.name == "sqlite":
        pytest.skip("SQLite has one writer at a time: commits are in the order of insertion")
    outbox = database.outbox()
    late, early = database.connect(), database.connect()
    outbox.send(late, message(1))
    outbox.send(early, message(2))
    early.commit()
    leased = await lease(port, A)
    assert numbers(leased) == [2]
    await port.settle(A, [RowOutcome(leased.rows[0].seq, "published")], HOUR)
    late.commit()
    assert numbers(await lease(port, B)) == [1]
    late.close()
    early.close()


# -- order


async def test_a_line_goes_in_order_while_others_flow(database: Database, port: OutboxPort, rival: OutboxPort) -> None:
    """F43: what stands behind a leased row of its line is left, by every relay."""
    database.send_numbers([1, 2, 3], key=lambda n: "k")
    assert numbers(await lease(port, A, 1)) == [1]
    assert numbers(await lease(rival, B)) == [], "2 and 3 stand behind 1"
    database.send_numbers([4, 5], key=lambda n: f"other{n}")
    assert numbers(await lease(rival, B)) == [4, 5]
    await port.settle(A, [RowOutcome(row.seq, "published") for row in (await lease(port, A, 1)).rows], HOUR)
    assert numbers(await lease(rival, C)) == [2, 3]


async def test_the_same_ordering_key_to_another_queue_is_another_line(database: Database, port: OutboxPort) -> None:
    database.send(message(1, "k"), to="orders")
    database.send(message(2, "k"), to="invoices")
    assert numbers(await lease(port, A, 1)) == [1]
    assert numbers(await lease(port, B)) == [2]


async def test_rows_behind_a_waiting_one_wait_as_long(database: Database, port: OutboxPort) -> None:
    """F46: and the next lease does not look at them."""
    database.send_numbers([1, 2, 3], key=lambda n: "k" if n != 3 else None)
    (first, *_) = (await lease(port, A, 1)).rows
    await port.settle(A, [RowOutcome(first.seq, "waiting", wait_us=HOUR, error="Refused: no")], HOUR)
    assert numbers(await lease(port, B)) == [3]
    due = database.execute("SELECT message_id, due_at, attempts FROM {outbox} WHERE state = 'waiting' ORDER BY seq")
    assert [(who, tries) for who, _, tries in due] == [("m1", 1), ("m2", 0)]
    assert due[0][1] == due[1][1]
    database.execute("UPDATE {outbox} SET due_at = 1 WHERE state = 'waiting'")
    assert numbers(await lease(port, C)) == [1, 2], "both are due, in their order"


async def test_a_row_behind_one_that_is_due_and_left_out_is_left_out(database: Database, port: OutboxPort) -> None:
    """F43: the limit cuts a line after its first rows, never before them."""
    database.send_numbers([1, 2, 3, 4], key=lambda n: "k" if n != 2 else "j")
    (first, *_) = (await lease(port, A, 1)).rows
    await port.settle(A, [RowOutcome(first.seq, "waiting", wait_us=1, error="Refused: no")], HOUR)
    assert numbers(await lease(port, B, 2)) == [1, 2]
    assert numbers(await lease(port, C)) == []


async def test_a_late_commit_does_not_open_the_line_behind_a_leased_row(database: Database, port: OutboxPort) -> None:
    """F41 and F43: 1 appears before 2, which is being sent; 3 must not overtake 2."""
    if database.name == "sqlite":
        pytest.skip("SQLite has one writer at a time")
    outbox = database.outbox()
    late, early = database.connect(), database.connect()
    outbox.send(late, message(1, "k"))
    outbox.send(early, message(2, "k"))
    early.commit()
    assert numbers(await lease(port, A)) == [2]
    outbox.send(early, message(3, "k"))
    early.commit()
    late.commit()
    assert numbers(await lease(port, B)) == [1]
    late.close()
    early.close()


async def test_a_row_that_another_relay_is_just_leasing_still_stands_before_the_others(
    database: Database, port: OutboxPort
) -> None:
    """F43: it is locked, so SKIP LOCKED passes over it; 2 must not overtake it for that."""
    if database.name == "sqlite":
        pytest.skip("SQLite has one writer at a time")
    database.send_numbers([1, 2], key=lambda n: "k")
    database.send_numbers([3], key=lambda n: "j")
    ((seq,),) = database.execute("SELECT seq FROM {outbox} WHERE message_id = 'm1'")
    other = database.connect()
    other.cursor().execute(f"SELECT seq FROM {database.table} WHERE seq = {seq} FOR UPDATE")
    assert numbers(await lease(port, A)) == [3]
    other.rollback()
    assert numbers(await lease(port, B)) == [1, 2]
    other.close()


async def test_two_relays_that_lease_at_once_never_split_a_line(
    database: Database, port: OutboxPort, rival: OutboxPort
) -> None:
    """F43: the owner of a row has all before it in its line, or they have left."""
    database.send_numbers(range(300), key=lambda n: f"k{n % 7}")
    order: dict[str, list[int]] = {}

    async def run(port: OutboxPort, name: bytes) -> None:
        for n in range(1000):
            owner = name + b"%015d" % n
            leased = await lease(port, owner, 5)
            for row in leased.rows:
                order.setdefault(row.ordering_key or "", []).append(int(row.message_id[1:]))
            await port.settle(owner, [RowOutcome(row.seq, "published") for row in leased.rows], 0)
            if sum(map(len, order.values())) == 300:
                return

    await asyncio.gather(run(port, b"x"), run(rival, b"y"))
    assert sum(map(len, order.values())) == 300
    assert all(line == sorted(line) for line in order.values())


# -- settling


async def test_entries_are_settled_one_by_one(database: Database, port: OutboxPort) -> None:
    """F44."""
    database.send_numbers(range(4))
    rows = (await lease(port, A)).rows
    kinds = [
        RowOutcome(rows[0].seq, "published"),
        RowOutcome(rows[1].seq, "waiting", wait_us=HOUR, error="Refused: later"),
        RowOutcome(rows[2].seq, "parked", error="Refused: never"),
        RowOutcome(rows[3].seq, "pending", refund=True),
    ]
    assert await port.settle(A, kinds, HOUR) == 4
    found = database.execute("SELECT message_id, state, attempts, error FROM {outbox} ORDER BY seq")
    assert found == [
        ("m0", "published", 1, None),
        ("m1", "waiting", 1, "Refused: later"),
        ("m2", "parked", 1, "Refused: never"),
        ("m3", "pending", 0, None),
    ]
    assert await port.settle(A, kinds, HOUR) == 0, "once"
    assert numbers(await lease(port, B)) == [3]


async def test_a_published_row_is_kept_or_deleted(database: Database, port: OutboxPort) -> None:
    database.send_numbers([1, 2], key=lambda n: "k")
    rows = (await lease(port, A)).rows
    await port.settle(A, [RowOutcome(rows[0].seq, "published")], HOUR)
    await port.settle(A, [RowOutcome(rows[1].seq, "published")], 0)
    ((who, line, published_at, due_at, created_at),) = database.execute(
        "SELECT message_id, line, published_at, due_at, created_at FROM {outbox}"
    )
    assert (who, line) == ("m1", None), "it stands in no line any more"
    assert due_at - published_at == pytest.approx(HOUR, abs=1000)
    assert 0 <= published_at - created_at < 60_000_000, "both on the database's clock"


# -- people


async def test_parked_rows_are_listed_counted_and_freed_with_those_behind_them(
    database: Database, port: OutboxPort
) -> None:
    """F46."""
    database.send_numbers([1, 2, 3], key=lambda n: "k")
    (first, *_) = (await lease(port, A, 1)).rows
    await port.settle(A, [RowOutcome(first.seq, "parked", error="Refused: never")], HOUR)
    assert numbers(await lease(port, B)) == []
    assert database.states() == {"parked": 1, "waiting": 2}
    stats = await port.stats()
    assert stats.counts == {"pending": 0, "waiting": 2, "parked": 1, "published": 0}
    assert stats.oldest is not None
    ((entry,), cursor) = ((page := await port.list("parked", 10)).entries, page.cursor)
    assert cursor is None
    assert (entry.seq, entry.id, entry.error, entry.attempts) == (first.seq, "m1", "Refused: never", 1)
    assert await port.unpark([first.seq + 1000], 10) == 0
    assert await port.unpark([first.seq], 10) == 1
    leased = await lease(port, C)
    assert numbers(leased) == [1, 2, 3]
    assert leased.rows[0].attempts == 1, "its attempts start again"


async def test_a_discarded_row_lets_those_behind_it_go(database: Database, port: OutboxPort) -> None:
    database.send_numbers([1, 2, 3], key=lambda n: "k")
    (first, *_) = (await lease(port, A, 1)).rows
    await port.settle(A, [RowOutcome(first.seq, "parked", error="Refused: never")], HOUR)
    await lease(port, B)
    assert await port.unpark([first.seq], 10, discard=True) == 1
    assert numbers(await lease(port, C)) == [2, 3]


async def test_rows_behind_a_parked_one_that_is_gone_are_looked_at_again(database: Database, port: OutboxPort) -> None:
    """F07: somebody deleted it by hand. They come due by themselves."""
    database.send_numbers([1, 2], key=lambda n: "k")
    (first, *_) = (await lease(port, A, 1)).rows
    await port.settle(A, [RowOutcome(first.seq, "parked", error="Refused: never")], HOUR)
    await lease(port, B)
    database.execute("DELETE FROM {outbox} WHERE state = 'parked'")
    ((wait,),) = database.execute("SELECT due_at - created_at FROM {outbox}")
    assert wait < 601_000_000
    database.execute("UPDATE {outbox} SET due_at = 1")
    assert numbers(await lease(port, C)) == [2]


async def test_a_list_goes_on_at_its_cursor(database: Database, port: OutboxPort) -> None:
    database.send_numbers(range(5))
    found, cursor = [], None
    while True:
        page = await port.list("pending", 2, cursor)
        found += [entry.id for entry in page.entries]
        cursor = page.cursor
        if cursor is None:
            break
    assert found == ["m0", "m1", "m2", "m3", "m4"]


async def test_cleaning_up_is_bounded_and_leaves_a_date(database: Database, port: OutboxPort) -> None:
    """F37."""
    database.send_numbers(range(5))
    rows = (await lease(port, A)).rows
    await port.settle(A, [RowOutcome(row.seq, "published") for row in rows[:4]], 1)
    assert (await port.stats()).cleaned_at is None
    assert (done := await port.clean(3)).published == 3
    assert done.more
    assert (await port.stats()).cleaned_at is None
    assert (done := await port.clean(3)).published == 1
    assert not done.more
    assert (await port.stats()).cleaned_at is not None
    assert database.states() == {"pending": 1}


async def test_what_is_kept_is_not_cleaned_up(database: Database, port: OutboxPort) -> None:
    database.send_numbers([1])
    (row,) = (await lease(port, A)).rows
    await port.settle(A, [RowOutcome(row.seq, "published")], HOUR)
    assert (await port.clean(10)).published == 0
    assert database.states() == {"published": 1}


async def test_expired_rows_of_the_inbox_are_cleaned_up_too(database: Database, port: OutboxPort) -> None:
    """Bounded as well; what has not expired stays, and a database without an inbox is none the worse."""
    for key, retention in (("a", "1us"), ("b", "1us"), ("c", "1h")):
        inbox = eo.Inbox(scope="s", table=f"{database.prefix}_inbox", retention=retention)
        with database.transaction() as connection:
            assert inbox.first(connection, key)
    await asyncio.sleep(0.002)  # SQLite's own clock has milliseconds
    done = await port.clean(1)
    assert (done.inbox, done.more) == (1, True)
    done = await port.clean(5)
    assert (done.inbox, done.more) == (1, False)
    assert database.execute("SELECT count(*) FROM {inbox}") == [(1,)]
    database.execute("DROP TABLE {inbox}")
    assert (await port.clean(5)).inbox == 0


async def test_expired_counts_of_attempts_are_cleaned_up_too(database: Database, port: OutboxPort) -> None:
    """Of messages that nobody delivers any more: nothing else would delete them."""
    is_mysql = database.name == "mariadb"
    key = "`key`" if is_mysql else "key"
    for number, expires_at in ((1, 1), (2, 1 << 62)):
        columns, values = ("id, ", f"'{number}', ") if is_mysql else ("", "")
        database.execute(
            f"INSERT INTO {{inbox}}_starts ({columns}scope, {key}, unreported, reported, expires_at) "
            f"VALUES ({values}'s', 'k{number}', 1, 0, {expires_at})"
        )
    await port.clean(10)
    assert database.execute(f"SELECT {key} FROM {{inbox}}_starts") == [("k2",)]


# -- find


async def test_a_row_is_found_by_its_key_its_message_id_and_its_ordering_key(
    database: Database, port: OutboxPort
) -> None:
    orders = [
        eo.Message(data=n, key=key, id=f"m{n}", ordering_key=line)
        for n, (key, line) in enumerate(
            [("ORDER-42", "c1"), ("ORDER-42:refund", "c1"), ("ORDER-421", "c2"), ("pay-7", "ORDER-42")]
        )
    ]
    database.send(*orders)

    async def found(text: str, recent: int = 100, limit: int = 100) -> list[str]:
        matches = await port.find(parse_key_term(text), recent, limit)
        assert matches.is_complete == (recent >= 4)
        return [entry.message_id for entry in matches.entries]

    assert await found("ORDER-42") == ["m3", "m1", "m0"], "newest first"
    assert await found("ORDER-42*") == ["m3", "m2", "m1", "m0"]
    assert await found("m2") == ["m2"]
    assert await found("c1", limit=1) == ["m1"]
    assert await found("order-42") == []
    assert await found("ORDER-42", recent=2) == ["m3"], "only the newest rows are looked at"
