"""What operators see of an inbox, find in it and purge from it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable
from pathlib import Path
from typing import Any

import pytest

import effectonce as eo
from effectonce.core.sql_files import inbox_admin_statements
from effectonce.errors import ConfigurationError, InvalidOption, SchemaMissing
from effectonce.inbox import admin as admin_module
from effectonce.inbox import admin_statements
from effectonce.inbox.admin import InboxAdmin, InboxEntry
from effectonce.values.cursors import write_cursor
from effectonce.values.key_term import KeyTerm, parse_key_term
from tests.inbox.conftest import place_of
from tests.inbox.kinds import KINDS, Place

DRIVERS = {"sqlite": "sqlite3", "postgresql": "psycopg", "mysql": "pymysql"}
HOUR = 3_600_000_000


class Table:
    """An inbox table of its own, the operators' view of it, and a caller that writes to it."""

    def __init__(self, place: Place, name: str) -> None:
        self.place = place
        self.name = name
        self.store = eo.connect(place.url, sweep_every=None)
        place.build(eo.Inbox(scope="any", table=name).schema_sql(place.dialect))
        self.admin = InboxAdmin(self.store, name)
        self.kind = next(kind for kind in KINDS if kind.name == DRIVERS[place.dialect])

    def inbox(self, scope: str = "billing", **options: Any) -> eo.Inbox:
        return eo.Inbox(scope=scope, table=self.name, **options)

    async def handle(self, *keys: Any, scope: str = "billing", result: Any = None, **options: Any) -> None:
        """Handle messages, each in a transaction of its own, so that each is newer than the one before."""
        async with self.kind.open(self.place) as caller:
            for key in keys:
                await caller.begin()
                self.inbox(scope, **options).call(caller.conn, key, lambda conn, key: result)
                await caller.commit()
                await asyncio.sleep(0.002)  # the clock of SQLite has milliseconds

    def age(self, by_us: int, *keys: str, expires_too: bool = True) -> None:
        """Make rows older, as they become by themselves."""
        name = "`key`" if self.place.dialect == "mysql" else "key"
        expiry = f", expires_at = expires_at - {by_us}" if expires_too else ""
        for key in keys:
            self.place.query(f"UPDATE {self.name} SET created_at = created_at - {by_us}{expiry} WHERE {name} = '{key}'")

    def keys(self, entries: Iterable[InboxEntry] | None = None, **options: Any) -> list[str]:
        return [entry.key for entry in (self.admin.list(**options).entries if entries is None else entries)]

    @property
    def rows(self) -> set[str]:
        name = "`key`" if self.place.dialect == "mysql" else "key"
        return {key for (key,) in self.place.query(f"SELECT {name} FROM {self.name}")}

    def drop(self) -> None:
        self.admin.close()
        self.store.close()
        for table in (self.name, f"{self.name}_starts"):
            self.place.query(f"DROP TABLE {table}")


@pytest.fixture(params=list(DRIVERS))
async def table(request: pytest.FixtureRequest, unique_name: str) -> AsyncIterator[Table]:
    made = Table(place_of(request, request.param), f"t{unique_name[-20:]}")
    yield made
    made.drop()


@pytest.fixture
async def postgres(request: pytest.FixtureRequest, unique_name: str) -> AsyncIterator[Table]:
    made = Table(place_of(request, "postgresql"), f"t{unique_name[-20:]}")
    yield made
    made.drop()


# -- list


async def test_a_list_has_the_newest_first_page_by_page(table: Table) -> None:
    await table.handle(*(f"o{n}" for n in range(7)))
    seen, cursor = [], None
    for _ in range(4):
        page = table.admin.list(limit=3, cursor=cursor)
        seen += table.keys(page.entries)
        cursor = page.cursor
        if cursor is None:
            break
    assert seen == [f"o{n}" for n in reversed(range(7))]
    assert cursor is None


async def test_a_list_is_filtered_by_scope_and_age(table: Table) -> None:
    await table.handle("o1", "o2", "o3")
    await table.handle("o1", scope="shipping")
    table.age(2 * HOUR, "o2", expires_too=False)
    assert table.keys(scope="billing", newer_than="1h") == ["o3", "o1"]
    assert table.keys(older_than="1h") == ["o2"]
    assert table.keys(scope="shipping") == ["o1"]
    assert table.keys(scope="nobody") == []


async def test_a_page_of_a_rare_scope_is_bounded_and_its_cursor_reaches_the_row(
    table: Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(admin_module, "ROWS_PER_ROUND", 2)
    monkeypatch.setattr(admin_module, "MAX_ROWS_PER_PAGE", 4)
    await table.handle("rare", scope="shipping")
    await table.handle(*(f"o{n}" for n in range(6)))
    page = table.admin.list(scope="shipping")
    assert page.entries == []
    assert page.cursor is not None
    page = table.admin.list(scope="shipping", cursor=page.cursor)
    assert table.keys(page.entries) == ["rare"]


async def test_each_state_is_a_list(table: Table) -> None:
    await table.handle("new", "old")
    table.age(20 * 24 * HOUR, "old")
    async with table.kind.open(table.place) as caller:
        await caller.begin()
        session_table = table.inbox().table
        from effectonce.sessions import session_on

        session = session_on(caller.conn)
        await session_table(session).count_attempt(session, table.inbox().key_for("tried"))
        await caller.commit()
    assert table.keys() == ["new"]
    assert table.keys(state="expired") == ["old"]
    (tried,) = table.admin.list("unfinished").entries
    assert (tried.key, tried.state, tried.attempts, tried.handled_at) == ("tried", "unfinished", 1, None)
    shown = table.admin.show("billing", "tried")
    assert shown is not None
    assert shown.attempts == 1
    with pytest.raises(InvalidOption, match="without an age"):
        table.admin.list("unfinished", older_than="1h")


def test_a_cursor_of_another_state_is_refused(tmp_path: Path) -> None:
    with eo.connect(f"sqlite:///{tmp_path / 'shop.db'}") as store, InboxAdmin(store) as admin:
        store.migrate()
        with pytest.raises(InvalidOption, match="start again"):
            admin.list(cursor=write_cursor("inbox rows that are expired", (1, "a", "b")))


# -- show


async def test_a_row_is_shown_with_its_result(table: Table) -> None:
    await table.handle(("ORDER-42", "refund"), result={"receipt": 7})
    (listed,) = table.admin.list().entries
    assert listed.result is None
    assert listed.result_size == len(b'1{"receipt":7}')
    shown = table.admin.show("billing", "ORDER-42:refund")
    assert shown is not None
    assert (shown.state, shown.result) == ("handled", b'1{"receipt":7}')
    assert shown.expires_at - (shown.handled_at or 0) == pytest.approx(15 * 24 * HOUR, abs=2000)
    assert table.admin.show("billing", "ORDER-42") is None


async def test_a_private_row_shows_neither_its_key_nor_its_result(table: Table) -> None:
    await table.handle("ORDER-42", result={"card": "4242"}, private="a secret of sixteen bytes")
    (entry,) = table.admin.list().entries
    assert entry.key != "ORDER-42"
    shown = table.admin.show("billing", entry.key)
    assert shown is not None
    assert b"4242" not in (shown.result or b"")
    assert table.admin.find(KeyTerm("ORDER-42")).entries == []


# -- find


async def test_a_key_is_found_in_every_scope_whole_and_as_the_first_part(table: Table) -> None:
    await table.handle("ORDER-42", "ORDER-421", "ORDER-4", ("ORDER-42", "refund"), "order-42")
    await table.handle("ORDER-42", scope="shipping")
    found = table.admin.find(parse_key_term("ORDER-42"))
    assert sorted((entry.scope, entry.key) for entry in found.entries) == [
        ("billing", "ORDER-42"),
        ("billing", "ORDER-42:refund"),
        ("shipping", "ORDER-42"),
    ]
    assert found.gap == ""
    prefixed = table.admin.find(parse_key_term("ORDER-42*"))
    assert sorted({entry.key for entry in prefixed.entries}) == ["ORDER-42", "ORDER-421", "ORDER-42:refund"]
    assert len(table.admin.find(parse_key_term("ORDER-*"), limit=2).entries) == 2


async def test_a_search_says_where_it_did_not_look(table: Table, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(admin_module, "MAX_SCOPES", 2)
    monkeypatch.setattr(admin_statements, "MAX_RECENT_ROWS", 2)
    for scope in ("a", "b", "c"):
        await table.handle("ORDER-42", scope=scope)
    found = table.admin.find(KeyTerm("ORDER-42"))
    assert len(found.entries) == 2
    assert ("newest rows" if table.place.dialect == "mysql" else "first 2 scopes") in found.gap


# -- purge


async def test_a_purge_deletes_what_has_expired_and_nothing_else(table: Table, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(admin_module, "ROWS_PER_BATCH", 2)
    await table.handle(*(f"o{n}" for n in range(6)))
    table.age(16 * 24 * HOUR, *(f"o{n}" for n in range(5)))
    preview = table.admin.count_old()
    assert (preview.rows, preview.within_retention, preview.capped) == (5, 0, False)
    batches = list(table.admin.purge())
    assert [batch.deleted for batch in batches] == [2, 2, 1]
    assert table.rows == {"o5"}


async def test_a_purge_by_age_counts_the_rows_that_still_recognised_duplicates(table: Table) -> None:
    await table.handle("expired", "old", "new")
    table.age(16 * 24 * HOUR, "expired")
    table.age(5 * 24 * HOUR, "old")
    preview = table.admin.count_old("3d")
    assert (preview.rows, preview.within_retention, preview.capped) == (2, 1, False)
    batches = list(table.admin.purge(older_than="3d"))
    assert sum(batch.deleted for batch in batches) == 2
    assert sum(batch.within_retention for batch in batches) == 1
    assert table.rows == {"new"}


async def test_a_purge_stops_at_its_limit_with_the_oldest_gone(table: Table) -> None:
    await table.handle("o1", "o2", "o3")
    table.age(16 * 24 * HOUR, "o1", "o2", "o3")
    assert sum(batch.deleted for batch in table.admin.purge(limit=2)) == 2
    assert table.rows == {"o3"}


async def test_a_row_that_was_inserted_again_while_it_was_purged_stays(table: Table) -> None:
    """Between reading the batch and deleting it, another purge deletes the row, and a new delivery inserts it."""
    await table.handle("o1")
    table.age(16 * 24 * HOUR, "o1")
    statements = admin_statements.admin_statements(table.place.dialect, table.name)
    now = table.admin.now()
    rows = table.admin._ask(statements.walk, (0, "", ""), now, 10)
    table.place.query(f"DELETE FROM {table.name}")
    await table.handle("o1")
    assert table.admin._ask(statements.delete, rows, now, now) == 0
    assert table.rows == {"o1"}


async def test_counters_of_attempts_that_have_expired_are_purged_too(table: Table) -> None:
    from effectonce.sessions import session_on

    async with table.kind.open(table.place) as caller:
        await caller.begin()
        session, inbox = session_on(caller.conn), table.inbox(retention="1ms")
        await inbox.table(session).count_attempt(session, inbox.key_for("tried"))
        await caller.commit()
    await asyncio.sleep(0.01)
    assert list(table.admin.purge())
    assert table.admin.show("billing", "tried") is None


# -- what is not there


def test_a_missing_table_is_named_with_its_remedy(place: Place) -> None:
    with (
        eo.connect(place.url) as store,
        InboxAdmin(store, "no_such_inbox") as inbox,
        pytest.raises(SchemaMissing, match="migrate"),
    ):
        inbox.list()


def test_a_store_without_sql_has_no_inbox() -> None:
    with eo.connect("memory://") as store, pytest.raises(ConfigurationError, match="cannot hold an inbox"):
        InboxAdmin(store)


# -- at scale


def test_no_statement_of_an_operator_scans_a_large_table(postgres: Table) -> None:
    """EXPLAIN on PostgreSQL: 200,000 rows, and each list, search and purge goes by an index."""
    name = postgres.name
    postgres.place.query(
        f"INSERT INTO {name} (scope, key, created_at, expires_at) SELECT 'scope ' || n % 7, 'ORDER-' || n, n, n + 1000 "
        "FROM generate_series(1, 200000) n"
    )
    postgres.place.query(f"ANALYZE {name}")
    end = admin_statements.END_OF_TIME
    params: dict[str, tuple[Any, ...]] = {
        "list": (end, "''", "''", 500, 100),
        "walk": (0, "''", "''", end, 500),
        "show": ("'scope 1'", "'ORDER-42'"),
        "scopes": (201,),
        "find": ("""'["scope 0","scope 1"]'""", "'ORDER-42'", "'ORDER-43'", 100),
        "delete": ("""'[["scope 1","ORDER-42"]]'""", 10, 10),
        "count_expired": (2000, 100_000),
    }
    sql = inbox_admin_statements("postgresql", name)
    for statement, values in params.items():
        text = sql[statement]
        for number in range(len(values), 0, -1):
            text = text.replace(f"${number}", str(values[number - 1]))
        plan = "\n".join(line for (line,) in postgres.place.query(f"EXPLAIN {text}"))
        assert "Index" in plan, f"{statement}:\n{plan}"
        assert "Seq Scan" not in plan, f"{statement}:\n{plan}"
