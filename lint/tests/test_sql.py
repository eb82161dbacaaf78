"""What an SQL statement does if it is run twice."""

from __future__ import annotations

import pytest

from effectonce_lint.python.sql import SqlStatement, looks_like_sql, parse_statements, unique_columns, unique_indexes


def one(text: str) -> SqlStatement:
    (statement,) = parse_statements(text)
    return statement


@pytest.mark.parametrize(
    ("text", "column"),
    [
        ("UPDATE accounts SET balance = balance - %s WHERE id = %s", "balance"),
        ("update t set n=n+1", "n"),
        ('UPDATE "shop"."stock" AS s SET "quantity" = s."quantity" - 1', "quantity"),
        ("UPDATE {} SET stock = stock - {} WHERE sku = '{}'", "stock"),
        ("UPDATE t SET tags = array_append(tags, 'x')", "tags"),
        ("UPDATE t SET log = log || 'x'", "log"),
        ("UPDATE t SET a = 1, n = COALESCE(n, 0) + 1", "n"),
        ("INSERT INTO t (id, n) VALUES (1, 2) ON CONFLICT (id) DO UPDATE SET n = t.n + excluded.n", "n"),
        ("INSERT INTO t (id, n) VALUES (%s, 1) ON DUPLICATE KEY UPDATE n = n + VALUES(n)", "n"),
        ("MERGE INTO t USING s ON t.id = s.id WHEN MATCHED THEN UPDATE SET n = t.n + s.n", "n"),
        ("UPDATE t\n   -- a comment\n   SET n = n /* more */ + 1", "n"),
    ],
)
def test_it_adds_to_a_column(text: str, column: str) -> None:
    assert one(text).accumulates == column


@pytest.mark.parametrize(
    "text",
    [
        "UPDATE orders SET status = 'paid' WHERE id = 1",
        "UPDATE t SET x = COALESCE(x, 5)",
        "UPDATE t SET n = GREATEST(n, 3)",
        "UPDATE t SET total = price * quantity",
        "INSERT INTO t (id, n) VALUES (1, 2) ON CONFLICT (id) DO UPDATE SET n = excluded.n + 1",
        "INSERT INTO t (id) VALUES (1) ON DUPLICATE KEY UPDATE seen = NOW()",
        "DELETE FROM t WHERE n = n + 1",
        "REPLACE INTO t (id, v) VALUES (1, 2)",
    ],
)
def test_it_sets_what_it_sets_however_often(text: str) -> None:
    assert one(text).accumulates == ""


@pytest.mark.parametrize(
    ("text", "conflict"),
    [
        ("INSERT INTO inbox (id) VALUES (%s)", ""),
        ("INSERT INTO inbox (id) VALUES (%s) ON CONFLICT DO NOTHING RETURNING id", "nothing"),
        ("INSERT OR IGNORE INTO inbox VALUES (?)", "nothing"),
        ("INSERT IGNORE INTO inbox (id) VALUES (%s)", "nothing"),
        ("INSERT OR REPLACE INTO inbox VALUES (?)", "update"),
        ("REPLACE INTO inbox VALUES (?)", "update"),
        ("insert into shop.inbox(id) select $1 on conflict (id) do update set id = inbox.id", "update"),
        ("WITH i AS (INSERT INTO inbox VALUES ($1) ON CONFLICT DO NOTHING RETURNING 1) SELECT * FROM i", "nothing"),
    ],
)
def test_what_an_insert_does_about_a_row_that_is_there(text: str, conflict: str) -> None:
    statement = one(text)
    assert (statement.table, statement.on_conflict) == ("inbox", conflict)


@pytest.mark.parametrize(
    ("text", "conditional"),
    [
        ("UPDATE orders SET status = 'paid', total = total + 1 WHERE id = %s AND status = 'new'", True),
        ("UPDATE orders SET notified_at = now() WHERE id = %s AND notified_at IS NULL", True),
        ("UPDATE stock SET n = n - 1, version = version + 1 WHERE id = 1 AND version = %s", True),
        ("UPDATE accounts SET balance = balance - 5 WHERE id = 1 AND balance >= 5", False),
        ("UPDATE orders SET status = 'paid' WHERE id = 1", False),
        ("INSERT INTO t (id) SELECT 1 WHERE NOT EXISTS (SELECT 1 FROM t WHERE id = 1)", True),
    ],
)
def test_compare_and_set_is_told_from_a_plain_change(text: str, conditional: bool) -> None:
    assert one(text).conditional is conditional


def test_a_look_up_names_its_table_and_columns_and_says_whether_it_locks() -> None:
    plain = one("SELECT status, o.total FROM shop.orders o WHERE id = %(id)s")
    assert (plain.table, plain.columns, plain.locks) == ("orders", ("status", "total"), False)
    assert one("SELECT 1 FROM inbox WHERE id = $1 FOR UPDATE SKIP LOCKED").locks
    assert one("SELECT pg_advisory_xact_lock(1)").locks
    assert one("SELECT EXISTS (SELECT 1 FROM processed WHERE id = $1)").table == "processed"


def test_several_statements_are_several() -> None:
    assert [each.verb for each in parse_statements("BEGIN; INSERT INTO a VALUES (1); UPDATE b SET c = 1; COMMIT")] == [
        "insert",
        "update",
    ]


@pytest.mark.parametrize(
    "text",
    [
        "",
        ";",
        "(",
        "INSERT",
        "UPDATE",
        "SELECT",
        "WITH",
        "UPDATE t SET",
        "INSERT INTO t (",
        "MERGE",
        "'",
        '"',
        "\0",
        "DELETE FROM",
    ],
)
def test_what_is_no_sql_is_no_error(text: str) -> None:
    parse_statements(text)


@pytest.mark.parametrize(
    ("text", "so"),
    [
        ("  select 1", True),
        ("-- why\nINSERT INTO t", True),
        ("(select 1)", True),
        ("updated", False),
        ("hello", False),
    ],
)
def test_statements_begin_with_a_verb(text: str, so: bool) -> None:
    assert looks_like_sql(text) is so


def test_a_table_says_which_columns_it_keeps_unique() -> None:
    text = """
    CREATE TABLE IF NOT EXISTS processed (id TEXT PRIMARY KEY, at INT, UNIQUE (tenant, number));
    create table ledger (id SERIAL PRIMARY KEY, key TEXT UNIQUE NOT NULL, n INTEGER,
                         CONSTRAINT once UNIQUE (a, b));
    """
    keys = unique_columns(text)
    assert keys["processed"] == [{"id"}, {"tenant", "number"}]
    assert keys["ledger"] == [{"key"}, {"a", "b"}]


@pytest.mark.parametrize(
    "text",
    [
        "CREATE UNIQUE INDEX IF NOT EXISTS once ON shop.handled (message_id)",
        'create unique index concurrently "once" on "handled" using btree ("message_id")',
        "ALTER TABLE handled ADD CONSTRAINT once UNIQUE (message_id)",
        "ALTER TABLE ONLY handled ADD PRIMARY KEY (message_id)",
    ],
)
def test_what_an_index_keeps_unique_that_comes_later(text: str) -> None:
    assert unique_indexes(text) == {"handled": [{"message_id"}]}


def test_a_plain_index_keeps_nothing_unique() -> None:
    assert unique_indexes("CREATE INDEX handled_idx ON handled (message_id)") == {}
