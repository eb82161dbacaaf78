"""`effectonce outbox`: which messages a command is about, and what the audit log says of it."""

from __future__ import annotations

from pathlib import Path

import pytest

import effectonce as eo
from effectonce.telemetry.audit_log import AuditLog
from tests.relay.harness import Database, message

from .conftest import Cli

STORE = ("--store", "sqlite:///shop.db")


@pytest.fixture
def parked(inline: Cli, tmp_path: Path) -> Database:
    """Three messages, of which the first two are parked."""
    database = Database("sqlite", f"sqlite:///{tmp_path}/shop.db", "effectonce")
    with eo.connect(database.url) as store:
        store.migrate()
    database.send(*(message(number) for number in (1, 2, 3)))
    database.execute("UPDATE {outbox} SET state = 'parked', attempts = 10 WHERE message_id <> 'm3'")
    return database


@pytest.mark.parametrize("arguments", [["unpark"], ["unpark", "1", "--all"], ["discard", "--yes"]])
def test_a_command_that_names_no_messages_or_two_selections_does_nothing(
    parked: Database, inline: Cli, arguments: list[str]
) -> None:
    done = inline("outbox", *arguments, *STORE)
    assert (done.code, done.out) == (2, "")
    assert parked.states() == {"parked": 2, "pending": 1}


@pytest.mark.parametrize(
    ("arguments", "out", "about", "states"),
    [
        (["unpark", "1"], "1 unparked\n", "1", {"parked": 1, "pending": 2}),
        (["unpark", "1", "3"], "1 unparked\n", "1 3", {"parked": 1, "pending": 2}),
        (["unpark", "--all"], "2 unparked\n", "all", {"pending": 3}),
        (["discard", "2", "--yes"], "1 discarded\n", "2", {"parked": 1, "pending": 1}),
    ],
)
def test_the_audit_log_says_which_messages_were_unparked_or_discarded(
    parked: Database, inline: Cli, arguments: list[str], out: str, about: str, states: dict[str, int]
) -> None:
    assert inline("outbox", *arguments, *STORE, "--audit", "audit.jsonl").out == out
    newest, *_ = AuditLog("audit.jsonl").recent(9)
    assert (newest.action, newest.outcome, newest.detail) == (f"outbox {arguments[0]}", "done", about)
    assert newest.target.endswith("shop.db outbox")
    assert parked.states() == states


@pytest.mark.parametrize(
    ("arguments", "out"),
    [
        (["unpark", "--all"], "would unpark 2\n"),
        (["unpark", "1", "3"], "would unpark 1\n"),
        (["discard", "1", "2"], "would discard 2\n"),
    ],
)
def test_a_dry_run_counts_those_that_are_parked(parked: Database, inline: Cli, arguments: list[str], out: str) -> None:
    assert inline("outbox", *arguments, *STORE, "--dry-run").out == out
    assert parked.states() == {"parked": 2, "pending": 1}


def test_messages_are_counted_by_state_and_the_oldest_is_dated(parked: Database, inline: Cli) -> None:
    figures = inline("outbox", "stats", *STORE, "--json").json
    assert (figures["pending"], figures["parked"]) == (1, 2)
    assert figures["oldest_seconds"] >= 0
    lines = inline("outbox", "stats", *STORE).out.splitlines()
    assert [line.split()[:2] for line in lines if line.startswith(("pending", "parked"))] == [
        ["pending", "1"],
        ["parked", "2"],
    ]


def test_the_state_of_a_list_is_one_that_there_is(parked: Database, inline: Cli) -> None:
    assert [row["id"] for row in inline("outbox", "list", *STORE, "--json").json["messages"]] == ["m1", "m2"]
    assert [row["id"] for row in inline("outbox", "list", *STORE, "--state", "pending", "--json").json["messages"]] == [
        "m3"
    ]
    refused = inline("outbox", "list", *STORE, "--state", "gone")
    assert refused.code == 2
    assert "--state is one of" in refused.err
