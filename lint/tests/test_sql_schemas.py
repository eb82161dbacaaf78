"""SQL files: a table of messages whose key nothing keeps unique (F14), wherever that may be said."""

from __future__ import annotations

from pathlib import Path

import pytest

from effectonce_lint import engine
from effectonce_lint.config import Config
from effectonce_lint.python.modules import MAX_FILE_BYTES

LOOSE = "CREATE TABLE processed_messages (id BIGSERIAL PRIMARY KEY, message_id TEXT NOT NULL);\n"


def found(*paths: str) -> list[str]:
    return [f"{each.rule} {each.symbol}" for each in engine.run(paths or (".",), Config(designs=True), jobs=1).findings]


def put(folder: Path, name: str, text: str) -> None:
    (folder / name).parent.mkdir(parents=True, exist_ok=True)
    (folder / name).write_text(text)


@pytest.mark.parametrize(
    ("first", "then"),
    [
        ("migrations/0001_inbox.sql", "migrations/0002_unique.sql"),
        ("migrations/2026-01-01_inbox/up.sql", "migrations/2026-02-01_unique/up.sql"),
    ],
)
@pytest.mark.parametrize(
    "text",
    [
        "CREATE UNIQUE INDEX once ON processed_messages (message_id);",
        'ALTER TABLE public."processed_messages"\n  ADD COLUMN consumer TEXT,\n  ADD UNIQUE (message_id);',
        "DROP TABLE processed_messages;\nCREATE TABLE processed_messages (message_id TEXT PRIMARY KEY);",
    ],
)
def test_what_a_later_migration_makes_unique_is_unique(folder: Path, first: str, then: str, text: str) -> None:
    put(folder, first, LOOSE)
    assert found() == ["EO101 processed_messages"]
    put(folder, then, text)
    assert found() == [], "and what was found before is not in the cache for good"
    (folder / then).unlink()
    assert found() == ["EO101 processed_messages"]


@pytest.mark.parametrize(
    "text",
    [
        LOOSE,
        "CREATE UNIQUE INDEX once ON other_messages (message_id);",
        "CREATE INDEX fast ON processed_messages (message_id);",
        "SELECT DISTINCT message_id FROM processed_messages;",
    ],
)
def test_and_nothing_else_does(folder: Path, text: str) -> None:
    put(folder, "migrations/0001_inbox.sql", LOOSE)
    put(folder, "migrations/0002_more.sql", text)
    assert set(found()) == {"EO101 processed_messages"}


def test_a_migration_that_changes_is_heeded(folder: Path) -> None:
    put(folder, "0001.sql", LOOSE)
    put(folder, "0002.sql", "CREATE UNIQUE INDEX once ON processed_messages (message_id);")
    assert found() == []
    put(folder, "0002.sql", "SELECT 1;")
    assert found() == ["EO101 processed_messages"]


def test_a_comment_hides_it(folder: Path) -> None:
    put(folder, "schema.sql", f"-- effectonce: ignore[EO101] one consumer, one thread\n{LOOSE}")
    assert found() == []


def test_the_dump_of_a_database_is_no_file_of_the_project(folder: Path) -> None:
    put(folder, "dump.sql", LOOSE + "-- data\n" * (MAX_FILE_BYTES // 8))
    assert found() == []
    assert found("dump.sql") == ["EO900 "], "unless it is asked for"


def test_a_file_in_another_encoding_is_left_alone(folder: Path) -> None:
    (folder / "schema.sql").write_bytes(LOOSE.encode("utf-16"))
    assert found() == []


@pytest.mark.parametrize(
    "text",
    [
        "CREATE TABLE inbox (",
        "CREATE TABLE inbox (,",
        "CREATE TABLE inbox ()",
        "CREATE TABLE inbox (message_id",
        "CREATE TABLE inbox (message_id text, UNIQUE",
        "CREATE TABLE inbox (message_id text, PRIMARY KEY (",
        "CREATE TABLE inbox (message_id text) 'open",
        "/* CREATE TABLE inbox (message_id text",
        "CREATE TABLE inbox (" * 5_000,
        "CREATE TABLE inbox (" + "(" * 50_000,
        "/*" * 100_000,
    ],
)
def test_half_a_statement_is_no_error(folder: Path, text: str) -> None:
    put(folder, "schema.sql", text)
    assert "EO900" not in " ".join(found())
