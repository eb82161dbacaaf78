"""Statements from the package's SQL files: names that are plain, words that are filled in, comments that are gone."""

from __future__ import annotations

import re
import sqlite3

import pytest

from effectonce.core.sql_files import (
    CLOCK_EXPRESSIONS,
    fill,
    inbox_schema,
    inbox_statements,
    inbox_words,
    outbox_schema,
    outbox_words,
    quote_name,
    store_schema,
    strip_comments,
    table_prefix,
)
from effectonce.errors import InvalidOption

DIALECTS = ("sqlite", "postgresql", "mysql")


@pytest.mark.parametrize("prefix", ["shop", "_", "a" * 41, "Shop_2"])
def test_a_prefix_is_a_plain_name(prefix: str) -> None:
    assert table_prefix(prefix) == prefix


@pytest.mark.parametrize("prefix", ["", "2shop", "a" * 42, "a.b", "a;b", "ü", "a b"])
def test_any_other_prefix_is_refused(prefix: str) -> None:
    with pytest.raises(InvalidOption, match="a prefix is a letter or _"):
        table_prefix(prefix)


@pytest.mark.parametrize(
    ("name", "dialect", "quoted"),
    [
        ("inbox", "sqlite", '"inbox"'),
        ("inbox", "postgresql", '"inbox"'),
        ("inbox", "mysql", "`inbox`"),
        ("shop.inbox", "postgresql", '"shop"."inbox"'),
        ("shop.inbox", "mysql", "`shop`.`inbox`"),
        ("a" * 63, "sqlite", f'"{"a" * 63}"'),
    ],
)
def test_a_name_is_quoted_as_the_dialect_does_it(name: str, dialect: str, quoted: str) -> None:
    assert quote_name(name, dialect) == quoted


@pytest.mark.parametrize("name", ["", "a" * 64, "a.b.c", 'a"', "a`", ".a", "1a", None, 7])
def test_f61_any_other_name_is_refused(name: object) -> None:
    with pytest.raises(InvalidOption, match="a column is named by a letter or _"):
        quote_name(name, "sqlite", "column")  # type: ignore[arg-type]


def test_comments_line_breaks_and_the_last_semicolon_are_left_out() -> None:
    assert strip_comments("-- all\nSELECT a,  -- the first\n  b\nFROM t; -- end\n") == "SELECT a, b FROM t"
    assert strip_comments("SELECT a--b") == "SELECT a--b"


def test_words_that_are_not_given_stay_for_a_later_call() -> None:
    assert fill("SELECT {a} FROM {b}", a="x") == "SELECT x FROM {b}"


@pytest.mark.parametrize("dialect", DIALECTS)
def test_the_statements_of_an_inbox_name_its_tables_and_its_clock(dialect: str) -> None:
    statements = inbox_statements(dialect, "shop.seen")
    assert statements
    by_another_clock = inbox_statements(dialect, "shop.seen", now="the_clock()")
    table = quote_name("shop.seen", dialect)
    assert any(table in sql for sql in statements.values())
    assert any(CLOCK_EXPRESSIONS[dialect] in sql for sql in statements.values())
    assert any("the_clock()" in sql for sql in by_another_clock.values())
    assert not any(CLOCK_EXPRESSIONS[dialect] in sql for sql in by_another_clock.values())
    assert not any("--" in sql or "{now}" in sql or "{inbox}" in sql for sql in statements.values())


@pytest.mark.parametrize("dialect", DIALECTS)
def test_a_script_has_every_word_filled_in(dialect: str) -> None:
    scripts = (inbox_schema(dialect, "seen"), outbox_schema(dialect, "sent"), store_schema(dialect, "shop"))
    assert not any(re.search(r"\{\w+\}", script) for script in scripts)
    for name in ("shop_records", "shop_meta", "shop_inbox", "shop_inbox_starts", "shop_outbox"):
        assert name in scripts[2]


def test_the_script_of_a_store_may_run_twice() -> None:
    conn = sqlite3.connect(":memory:")
    for _ in range(2):
        conn.executescript(store_schema("sqlite", "shop"))
    tables = {name for (name,) in conn.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
    assert {"shop_records", "shop_meta", "shop_inbox", "shop_inbox_starts", "shop_outbox"} <= tables
    conn.close()


def test_a_dialect_is_one_of_three() -> None:
    with pytest.raises(InvalidOption, match="'oracle' is not a dialect"):
        inbox_schema("oracle", "seen")


def test_an_index_is_in_the_schema_of_its_table() -> None:
    assert inbox_words("sqlite", "main.seen") == {
        "inbox": '"main"."seen"',
        "inbox_expiry": '"main"."seen_expiry"',
        "on_inbox": '"seen"',
        "starts": '"main"."seen_starts"',
        "starts_expiry": '"main"."seen_starts_expiry"',
        "on_starts": '"seen_starts"',
    }
    assert inbox_words("postgresql", "shop.seen") == {
        "inbox": '"shop"."seen"',
        "inbox_expiry": '"seen_expiry"',
        "on_inbox": '"shop"."seen"',
        "starts": '"shop"."seen_starts"',
        "starts_expiry": '"seen_starts_expiry"',
        "on_starts": '"shop"."seen_starts"',
    }
    assert outbox_words("sqlite", "main.sent") == {
        "outbox": '"main"."sent"',
        "on_outbox": '"sent"',
        "outbox_due": '"main"."sent_due"',
        "outbox_line": '"main"."sent_line"',
        "due_index": '"sent_due"',
        "line_index": '"sent_line"',
    }
    assert outbox_words("mysql", "shop.sent")["outbox_due"] == "`sent_due`"
    assert outbox_words("mysql", "shop.sent")["on_outbox"] == "`shop`.`sent`"
