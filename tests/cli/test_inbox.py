"""`effectonce inbox`, in this process."""

from __future__ import annotations

import os
import signal
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

import effectonce as eo
from effectonce.inbox import admin
from effectonce.telemetry.audit_log import AuditLog

from .conftest import Cli

DAY = 86_400_000_000


@pytest.fixture
def cli(inline: Cli, tmp_path: Path) -> Cli:
    """The command line in a folder whose project names the store and the audit log."""
    (tmp_path / "pyproject.toml").write_text('[tool.effectonce]\nstore = "sqlite:///shop.db"\naudit = "audit.jsonl"\n')
    return inline


@pytest.fixture
def shop(cli: Cli) -> Iterator[sqlite3.Connection]:
    """Three handled now, one that is five days old, two that have expired, one that was tried and never handled."""
    with eo.connect("sqlite:///shop.db", sweep_every=None) as store:
        store.migrate()
    inbox = eo.Inbox(scope="billing")
    with closing(sqlite3.connect("shop.db", isolation_level=None)) as connection:
        for n, age in enumerate((0, 0, 0, 5, 16, 17)):
            connection.execute("BEGIN")
            inbox.call(connection, f"ORDER-4{n}", lambda conn, key: {"receipt": key})
            connection.execute(
                "UPDATE effectonce_inbox SET created_at = created_at - ?, expires_at = expires_at - ? WHERE key = ?",
                (age * DAY - n * 1000, age * DAY - n * 1000, f"ORDER-4{n}"),
            )
            connection.commit()
        connection.execute("BEGIN")
        eo.Inbox(scope="shipping").first(connection, "ORDER-40\x1b[31m")
        connection.commit()
        connection.execute("INSERT INTO effectonce_inbox_starts VALUES ('billing', 'ORDER-50', 2, 1, NULL, 9e15)")
        yield connection


def listed(cli: Cli, *options: str) -> list[Any]:
    done = cli("inbox", "list", "--json", *options)
    assert (done.code, done.err) == (0, "")
    return [message["key"] for message in done.json["messages"]]


def keys(connection: sqlite3.Connection) -> set[str]:
    return {key for (key,) in connection.execute("SELECT key FROM effectonce_inbox WHERE scope = 'billing'")}


def audited() -> list[tuple[str, str, str, str]]:
    return [
        (entry.action, entry.target, entry.detail, entry.outcome)
        for entry in reversed(AuditLog("audit.jsonl").recent())
    ]


# -- looking


def test_list_by_scope_state_and_age(shop: sqlite3.Connection, cli: Cli) -> None:
    assert listed(cli, "--scope", "billing") == ["ORDER-42", "ORDER-41", "ORDER-40", "ORDER-43"]
    assert listed(cli, "--state", "expired") == ["ORDER-44", "ORDER-45"]
    assert listed(cli, "--state", "unfinished") == ["ORDER-50"]
    assert listed(cli, "--scope", "billing", "--older-than", "1d") == ["ORDER-43"]
    assert listed(cli, "--scope", "shipping", "--newer-than", "1h") == ["ORDER-40\x1b[31m"]
    refused = cli("inbox", "list", "--state", "done")
    assert (refused.code, "handled, expired, unfinished" in refused.err) == (2, True)


@pytest.mark.parametrize("option", ["--older-than", "--newer-than"])
def test_an_age_from_an_empty_variable_is_refused(shop: sqlite3.Connection, cli: Cli, option: str) -> None:
    """All messages would be listed, as if none had been asked for."""
    refused = cli("inbox", "list", option, "")
    assert (refused.code, refused.out) == (2, "")
    assert f"{option.strip('-').replace('-', '_')}='' is not a span of time" in refused.err


def test_list_in_pages(shop: sqlite3.Connection, cli: Cli) -> None:
    first = cli("inbox", "list", "--store", "sqlite:///shop.db", "--scope", "billing", "--limit", "3", "--json").json
    rest = cli("inbox", "list", "--scope", "billing", "--limit", "3", "--cursor", first["cursor"], "--json").json
    assert [len(page["messages"]) for page in (first, rest)] == [3, 1]
    assert rest["cursor"] is None
    assert "--cursor" in cli("inbox", "list", "--limit", "3").err


def test_a_table_for_people_has_no_control_characters(shop: sqlite3.Connection, cli: Cli) -> None:
    out = cli("inbox", "list").out
    assert "\x1b" not in out
    assert "ORDER-42" in out
    assert "handled" in out


def test_show_has_the_result(shop: sqlite3.Connection, cli: Cli) -> None:
    shown = cli("inbox", "show", "billing", "ORDER-43", "--json").json
    assert (shown["state"], shown["result"]) == ("handled", {"receipt": "ORDER-43"})
    assert datetime.now(UTC) - datetime.fromisoformat(shown["handled_at"]) > timedelta(days=5)
    out = cli("inbox", "show", "billing", "ORDER-43").out
    assert out.startswith("billing ORDER-43\n")
    assert "5 d ago" in out
    assert '{"receipt":"ORDER-43"}' in out
    tried = cli("inbox", "show", "billing", "ORDER-50").out
    assert "unfinished" in tried
    assert "attempts" in tried


def test_show_of_a_message_that_was_never_handled(shop: sqlite3.Connection, cli: Cli) -> None:
    missing = cli("inbox", "show", "billing", "ORDER-99")
    assert (missing.code, missing.out) == (1, "billing ORDER-99 is not in the inbox: its next delivery runs\n")
    assert cli("inbox", "show", "billing", "ORDER-99", "--json").json == {"message": None}


def test_a_private_result_is_not_shown(shop: sqlite3.Connection, cli: Cli) -> None:
    private = eo.Inbox(scope="private", private="a secret of sixteen bytes")
    shop.execute("BEGIN")
    private.call(shop, "ORDER-42", lambda conn, key: {"card": "4242"})
    shop.commit()
    (message,) = cli("inbox", "list", "--scope", "private", "--json").json["messages"]
    shown = cli("inbox", "show", "private", message["key"], "--json")
    assert "cannot be read here" in shown.json["result"]
    assert "4242" not in shown.out


def test_a_table_of_your_own(shop: sqlite3.Connection, cli: Cli) -> None:
    own = eo.Inbox(scope="own", table="own_inbox")
    own.migrate(shop)
    shop.execute("BEGIN")
    own.first(shop, "ORDER-42")
    shop.commit()
    assert listed(cli, "--table", "own_inbox") == ["ORDER-42"]
    missing = cli("inbox", "list", "--table", "no_inbox")
    assert (missing.code, "[schema-missing]" in missing.err) == (2, True)


def test_a_store_that_can_hold_no_inbox_is_refused(cli: Cli) -> None:
    refused = cli("inbox", "list", "--store", "memory://")
    assert refused.code == 2
    assert "give the URL of the database that your handlers write to" in refused.err


# -- purging


def test_purge_deletes_expired_messages_only(shop: sqlite3.Connection, cli: Cli) -> None:
    would = cli("inbox", "purge", "--dry-run")
    assert would.out == "would delete 2 expired messages\n"
    assert len(keys(shop)) == 6
    done = cli("inbox", "purge", "--yes", "--json")
    assert done.json == {"deleted": 2, "within_retention": 0, "more": False}
    assert keys(shop) == {"ORDER-40", "ORDER-41", "ORDER-42", "ORDER-43"}
    assert audited() == [
        ("inbox purge", "sqlite:///shop.db inbox", "expired", "asked"),
        ("inbox purge", "sqlite:///shop.db inbox", "expired", "done"),
    ]


def test_purge_by_age_says_which_duplicates_would_run_again(shop: sqlite3.Connection, cli: Cli) -> None:
    warning = "(1 of them within their retention: a duplicate of these runs again)"
    said = f"3 messages that were handled 3 d ago or earlier {warning}"
    assert cli("inbox", "purge", "--older-than", "3d", "--dry-run").out == f"would delete {said}\n"
    unasked = cli("inbox", "purge", "--older-than", "3d")
    assert unasked.code == 2
    assert "1 of them within their retention" in unasked.err
    assert len(keys(shop)) == 6
    done = cli("inbox", "purge", "--older-than", "3d", "--yes")
    assert done.out == f"3 deleted {warning}\n"
    assert keys(shop) == {"ORDER-40", "ORDER-41", "ORDER-42"}
    assert audited()[-1] == ("inbox purge", "sqlite:///shop.db inbox", f"older than 3d: {said}", "done")


def test_purge_up_to_a_limit(shop: sqlite3.Connection, cli: Cli) -> None:
    assert cli("inbox", "purge", "--limit", "1", "--yes", "--json").json["deleted"] == 1
    assert "ORDER-45" not in keys(shop)
    assert "ORDER-44" in keys(shop)


def test_ctrl_c_ends_a_purge_after_its_batch(
    shop: sqlite3.Connection, cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(admin, "ROWS_PER_BATCH", 1)
    purge = admin.InboxAdmin.purge

    def interrupted(self: admin.InboxAdmin, **options: Any) -> Iterator[admin.PurgedBatch]:
        for batch in purge(self, **options):
            os.kill(os.getpid(), signal.SIGINT)
            yield batch

    monkeypatch.setattr(admin.InboxAdmin, "purge", interrupted)
    done = cli("inbox", "purge", "--yes")
    assert (done.code, done.out) == (130, "1 deleted\n")
    assert len(keys(shop)) == 5
