"""`effectonce intents`, as an operator uses it at night."""

from __future__ import annotations

import contextlib
import json
import sqlite3
from datetime import datetime, timedelta
from pathlib import Path

import pytest

from effectonce.telemetry.audit_log import AuditLog

from .conftest import Run

BILLING = """
import sys
import effectonce as eo

store = eo.connect("sqlite:///shop.db")
intents = eo.Intents(store, scope="billing")


@intents.operation("ses", "send", without_key="at-most-once")
def mail(intent: eo.Intent[str]) -> str:
    raise TimeoutError("no answer")


@intents.operation("stripe", "charge")
async def charge(intent: eo.Intent[dict]) -> str:
    if intent.send_count == 1:
        raise TimeoutError("no answer")
    return "ch_1"


not_intents = 3

if __name__ == "__main__":
    import asyncio
    for call in (lambda: mail("hello", key="m1"), lambda: asyncio.run(charge({"amount": 4200}, key="pay_1"))):
        try:
            call()
        except eo.EffectOnceError as error:
            print(error.code)
"""


@pytest.fixture
def billing(tmp_path: Path, environment: dict[str, str]) -> None:
    """One mail in doubt, and one charge whose outcome is unknown."""
    import subprocess
    import sys

    (tmp_path / "billing.py").write_text(BILLING)
    done = subprocess.run(
        [sys.executable, "billing.py"], cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=60
    )
    assert done.stdout == "in-doubt\noutcome-unknown\n", done.stderr


def listed(run: Run, *options: str) -> list[dict[str, object]]:
    page = json.loads(run("intents", "list", "billing:intents", "--json", *options).stdout)
    rows: list[dict[str, object]] = page["intents"]
    return rows


def test_open_intents_and_those_in_doubt_are_listed(billing: None, run: Run) -> None:
    assert [(row["state"], row["operation"], row["key"], row["sent"]) for row in listed(run)] == [
        ("in doubt", "billing/ses/send", "m1", 1),
        ("open", "billing/stripe/charge", "pay_1", 1),
    ]
    assert [row["key"] for row in listed(run, "--in-doubt")] == ["m1"]
    table = run("intents", "list", "billing:intents").stdout
    assert "billing/ses/send" in table
    assert '{"amount":4200}' in table


def test_recover_resumes_unfinished_intents(billing: None, run: Run) -> None:
    done = run("intents", "recover", "billing:intents", "--idle", "1ms", "--json")
    assert json.loads(done.stdout) == {"done": 1, "failed": 0, "in_doubt": 0, "later": 0, "broken": 0}
    assert [row["state"] for row in listed(run)] == ["in doubt"]


def test_show_has_the_provider_its_key_the_timeline_and_the_next_step(billing: None, run: Run) -> None:
    mail, charge = (str(row["id"]) for row in listed(run))
    facts = json.loads(run("intents", "show", "billing:intents", charge, "--json").stdout)
    assert (facts["provider"], facts["key"], facts["attempts"], facts["sent"]) == ("stripe", "pay_1", 1, 1)
    assert facts["request"] == {"amount": 4200}
    assert facts["provider_key"] not in (None, charge)
    assert [moment["what"] for moment in facts["timeline"]][:3] == ["first seen", "claimed", "sent to stripe"]
    sent, kept = (datetime.fromisoformat(facts[name]) for name in ("first_sent_at", "key_kept_until"))
    assert timedelta(hours=23) < kept - sent < timedelta(hours=24), "stripe keeps keys for a day; a margin is left"
    text = run("intents", "show", "billing:intents", charge).stdout
    assert f"provider key    {facts['provider_key']}\n" in text
    assert text.endswith("effectonce intents recover billing:intents; it is sent again under the same key\n")
    doubtful = run("intents", "show", "billing:intents", mail).stdout
    assert "\nin doubt\n" in doubtful
    assert "provider key" not in doubtful, "ses takes none"
    assert "\nnext: look it up at ses, then: effectonce intents resolve billing:intents" in doubtful


def test_show_of_a_finished_intent_says_that_nothing_is_to_be_done(billing: None, run: Run) -> None:
    mail, charge = (str(row["id"]) for row in listed(run))
    assert run("intents", "recover", "billing:intents", "--idle", "1ms").returncode == 0
    facts = json.loads(run("intents", "show", "billing:intents", charge, "--json").stdout)
    assert (facts["state"], facts["result"]) == ("done", "ch_1")
    assert facts["next_step"].startswith("nothing to do: it is done")
    assert run("intents", "resolve", "billing:intents", mail, "--abandon", "--yes").returncode == 0
    assert "nothing to do: it failed" in run("intents", "show", "billing:intents", mail).stdout


def test_show_of_an_unknown_intent_exits_with_1(billing: None, run: Run) -> None:
    done = run("intents", "show", "billing:intents", "nope")
    assert (done.returncode, done.stdout) == (
        1,
        "there is no intent 'nope': effectonce intents list billing:intents\n",
    )
    assert json.loads(run("intents", "show", "billing:intents", "nope", "--json").stdout) == {"intent": None}


@pytest.mark.parametrize(("word", "left"), [(["--done", '"sent"'], []), (["--abandon"], []), (["--retry"], ["open"])])
def test_an_operators_decision_is_applied_and_logged(
    billing: None, tmp_path: Path, run: Run, word: list[str], left: list[str]
) -> None:
    (mail,) = listed(run, "--in-doubt")
    dry = run("intents", "resolve", "billing:intents", str(mail["id"]), *word, "--dry-run")
    assert dry.stdout == f"{mail['id']} is in doubt: would resolve it as {word[0][2:]}\n"
    done = run("intents", "resolve", "billing:intents", str(mail["id"]), *word, "--yes", "--audit", "audit.jsonl")
    assert done.returncode == 0
    for entry in AuditLog(tmp_path / "audit.jsonl").recent():  # as the dashboard names it, which shows both
        assert (entry.target, entry.place) == (f"intents/billing/ses/send {mail['id']}", "sqlite:///shop.db")
    assert f"was resolved as {word[0][2:]} by " in done.stderr
    assert [row["state"] for row in listed(run) if row["key"] == "m1"] == left
    for more in ([], ["--dry-run"]):
        again = run("intents", "resolve", "billing:intents", str(mail["id"]), "--retry", *more)
        assert (again.returncode, again.stdout) == (2, "")
        assert "[not-in-doubt]" in again.stderr


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["list", "billing:not_intents"], "is of type int, not Intents"),
        (["list", "billing:nothing"], "was not found"),
        (["resolve", "billing:intents", "unknown", "--retry"], "there is no intent"),
        (["resolve", "billing:intents", "x"], "give exactly one of"),
        (["resolve", "billing:intents", "x", "--retry", "--abandon"], "give exactly one of"),
        (["resolve", "billing:intents", "x", "--done", "{"], "--done takes JSON"),
    ],
)
def test_wrong_arguments_are_a_one_line_error(billing: None, run: Run, arguments: list[str], message: str) -> None:
    done = run("intents", *arguments)
    assert (done.returncode, done.stdout) == (2, "")
    assert message in done.stderr


@pytest.mark.usefixtures("billing")
def test_a_list_continues_at_its_cursor(run: Run) -> None:
    """What is in doubt comes first, then what is open; nothing twice, nothing left out."""
    everything = [row["id"] for row in listed(run)]
    seen: list[str] = []
    cursor = ""
    for _ in range(len(everything) + 2):
        words = ["--limit", "1", *(["--cursor", cursor] if cursor else [])]
        page = json.loads(run("intents", "list", "billing:intents", "--json", *words).stdout)
        seen += [row["id"] for row in page["intents"]]
        cursor = page["cursor"]
        if cursor is None:
            break
    assert (len(seen), seen) == (2, everything)
    assert run("intents", "list", "billing:intents", "--cursor", "nonsense").returncode == 2


# -- records that are not as they should be


def changed(tmp_path: Path, old: str, new: str) -> None:
    """A deploy."""
    text = (tmp_path / "billing.py").read_text()
    assert old in text
    (tmp_path / "billing.py").write_text(text.replace(old, new))


def broken(tmp_path: Path, scope: str) -> str:
    """Somebody has edited the note of the record in ``scope``; its key."""
    with contextlib.closing(sqlite3.connect(tmp_path / "shop.db")) as database, database:
        (row,) = database.execute("SELECT key FROM effectonce_records WHERE scope = ?", (scope,)).fetchall()
        database.execute("UPDATE effectonce_records SET note = x'ff' WHERE scope = ?", (scope,))
    return str(row[0])


@pytest.mark.usefixtures("billing")
def test_an_unreadable_record_hides_no_other(tmp_path: Path, run: Run) -> None:
    key = broken(tmp_path, "intents/billing/ses/send")
    unread, charge = listed(run)
    assert (unread["id"], unread["state"], unread["operation"]) == (key, "unreadable", "billing/ses/send")
    assert "in doubt; the log of an intent cannot be read" in str(unread["remark"])
    assert (charge["key"], charge["remark"]) == ("pay_1", "")
    table = run("intents", "list", "billing:intents")
    assert table.returncode == 0
    assert key in table.stdout
    assert "pay_1" in table.stdout
    given_up = run("intents", "resolve", "billing:intents", key, "--abandon", "--yes")
    assert given_up.returncode == 0
    assert [row["key"] for row in listed(run)] == ["pay_1"]


@pytest.mark.usefixtures("billing")
def test_an_intent_of_a_renamed_operation_is_listed_and_decided(tmp_path: Path, run: Run) -> None:
    changed(tmp_path, '"ses", "send"', '"ses", "mail"')
    (row,) = listed(run, "--in-doubt")
    assert (row["operation"], row["key"]) == ("billing/ses/send", "m1")
    assert row["remark"] == "its operation is no longer known"
    assert [row["key"] for row in listed(run)] == ["pay_1", "m1"]
    assert "its operation is no longer known" in run("intents", "list", "billing:intents").stdout
    again = run("intents", "resolve", "billing:intents", str(row["id"]), "--retry", "--yes")
    assert again.returncode == 2
    assert "old name back" in again.stderr
    assert run("intents", "resolve", "billing:intents", str(row["id"]), "--done", '"sent"', "--yes").returncode == 0
    assert listed(run, "--in-doubt") == []


@pytest.mark.usefixtures("billing")
def test_an_unreadable_intent_of_a_renamed_operation_is_listed(tmp_path: Path, run: Run) -> None:
    key = broken(tmp_path, "intents/billing/ses/send")
    changed(tmp_path, '"ses", "send"', '"ses", "mail"')
    assert [(row["id"], row["state"]) for row in listed(run, "--in-doubt")] == [(key, "unreadable")]


@pytest.mark.usefixtures("billing")
def test_a_typed_result_is_given_as_json(tmp_path: Path, run: Run) -> None:
    changed(tmp_path, "def mail(intent: eo.Intent[str]) -> str:", "def mail(intent: eo.Intent[str]) -> Receipt:")
    changed(tmp_path, "import sys\n", "import msgspec\n\nclass Receipt(msgspec.Struct):\n    id: str\n\n")
    (mail,) = listed(run, "--in-doubt")
    wrong = run("intents", "resolve", "billing:intents", str(mail["id"]), "--done", '"SM1"', "--yes")
    assert (wrong.returncode, wrong.stdout) == (2, "")
    assert 'this is not a result of billing/ses/send, which gives Receipt, an object with "id"' in wrong.stderr
    assert len(listed(run, "--in-doubt")) == 1
    done = run("intents", "resolve", "billing:intents", str(mail["id"]), "--done", '{"id": "SM1"}', "--yes")
    assert done.returncode == 0
    assert listed(run, "--in-doubt") == []
