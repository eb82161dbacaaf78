"""`effectonce records` and `effectonce doctor`, in this process."""

from __future__ import annotations

import io
import json
import os
import re
import signal
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from rich.cells import cell_len
from rich.text import Text

import effectonce as eo
from effectonce.cli.tables import print_table
from effectonce.telemetry.audit_log import AuditLog

from .conftest import Cli

HOUR = 3_600_000_000
ISO_8601 = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z")


@pytest.fixture
def cli(inline: Cli, tmp_path: Path) -> Cli:
    """The command line in a folder whose project names the store and the audit log."""
    (tmp_path / "pyproject.toml").write_text(
        '[tool.effectonce]\nstore = "sqlite:///shop.db"\naudit = "audit.jsonl"\n\n'
        '[tool.effectonce.doctor]\nunattended = "7d"\n'
    )
    return inline


@pytest.fixture
def store(cli: Cli) -> Iterator[eo.Store]:
    """Five that are done, one in doubt, one that failed, one that runs, and two that are expired."""
    with eo.connect("sqlite:///shop.db", sweep_every=None) as store:
        for number in range(5):
            with eo.block(store, scope="charge", key=f"pay_{number}") as block:
                assert block.first
                block.result = {"receipt": number}
        with pytest.raises(ValueError, match="who"), eo.block(store, scope="mail", key="m1", on_error="doubt"):
            raise ValueError("who knows")

        @eo.once(store, scope="refund", key="id", permanent=(ValueError,))
        def refund(id: str) -> None:
            raise ValueError("declined\x1b[31m")

        with pytest.raises(ValueError, match="declined"):
            refund("r1")
        for key in ("old1", "old2"):
            with eo.block(store, scope="old", key=key, retention="1ms") as block:
                assert block.first
                block.result = 1
        running = eo.block(store, scope="slow", key="s1")
        running.__enter__()
        assert running.first
        yield store
        running.__exit__(None, None, None)


def audited() -> list[tuple[str, str, str]]:
    return [(entry.action, entry.target, entry.outcome) for entry in reversed(AuditLog("audit.jsonl").recent())]


# -- looking


def test_a_list_says_refused_and_not_failed(store: eo.Store, cli: Cli) -> None:
    """For people. Programs read the state that the store has, and whether it was a refusal."""
    for option, shown in (("refused", True), ("failed-or-refused", True), ("failed", False)):
        listed = cli("records", "list", "--state", option)
        assert ("r1" in listed.out and "refused" in listed.out) is shown, option
    (record,) = cli("records", "list", "--state", "refused", "--json").json["records"]
    assert (record["state"], record["refused"]) == ("failed", True)
    assert "refused" in cli("records", "show", "refund", "r1").out


def test_list_by_scope_state_and_age(store: eo.Store, cli: Cli) -> None:
    def keys(*options: str) -> set[str]:
        listed = cli("records", "list", "--json", *options)
        assert (listed.code, listed.err) == (0, "")
        return {record["key"] for record in listed.json["records"]}

    paid = {f"pay_{number}" for number in range(5)}
    assert keys() == {*paid, "m1", "r1", "s1"}
    assert keys("--scope", "charge") == paid
    assert keys("--state", "in_doubt") == keys("--state", "in doubt") == {"m1"}
    assert keys("--state", "claimed") == {"s1"}
    assert keys("--older-than", "1h") == set()
    assert keys("--newer-than", "1h") == {*paid, "m1", "r1", "s1"}
    sqlite3.connect("shop.db", isolation_level=None).execute(
        f"UPDATE effectonce_records SET changed_at = changed_at - {2 * HOUR} WHERE key IN ('pay_0', 'pay_4')"
    )
    assert keys("--older-than", "1h") == {"pay_0", "pay_4"}
    assert keys("--newer-than", "1h", "--scope", "charge") == paid - {"pay_0", "pay_4"}


def test_pages_follow_their_cursor(store: eo.Store, cli: Cli) -> None:
    seen: list[str] = []
    cursor: list[str] = []
    for _ in range(10):
        page = cli("records", "list", "--scope", "charge", "--limit", "2", "--json", *cursor).json
        seen += [record["key"] for record in page["records"]]
        if page["cursor"] is None:
            break
        cursor = ["--cursor", page["cursor"]]
    assert seen == [f"pay_{number}" for number in range(5)]
    page = cli("records", "list", "--scope", "charge", "--limit", "2")
    first = cli("records", "list", "--scope", "charge", "--limit", "2", "--json").json
    assert page.err == f"there may be more: --cursor {first['cursor']}\n", "and stdout has the table only"
    wrong = cli("records", "list", "--cursor", "bogus")
    assert (wrong.code, "[invalid-option]" in wrong.err) == (2, True)


def test_a_cursor_does_not_repaint_the_terminal(store: eo.Store, cli: Cli) -> None:
    """F65"""
    for key in ("a\x1b[31m", "b"):
        with eo.block(store, scope="forged", key=key) as block:
            assert block.first
            block.result = 1
    page = cli("records", "list", "--scope", "forged", "--limit", "1")
    assert "there may be more" in page.err
    assert "\x1b" not in page.out + page.err


def test_the_table_shows_state_error_and_lease(store: eo.Store, cli: Cli) -> None:
    """F65: and nothing from outside reaches the terminal as it is."""
    table = cli("records", "list").out
    assert "ValueError: declined\\x1b[31m" in table
    assert "lease ends in" in table
    assert "in doubt" in table
    assert "\x1b" not in table


def test_show_prints_the_record_and_its_timeline(store: eo.Store, cli: Cli) -> None:
    shown = cli("records", "show", "charge", "pay_1")
    assert (shown.code, shown.err) == (0, "")
    assert '{"receipt":1}' in shown.out
    assert "first seen" in shown.out
    assert "expires: a delivery after this runs again" in shown.out
    facts = cli("records", "show", "charge", "pay_1", "--json").json
    assert (facts["state"], facts["attempts"], facts["result"]) == ("done", 1, {"receipt": 1})
    assert [moment["what"] for moment in facts["timeline"]][-2:] == ["done", "expires"]
    assert all(ISO_8601.fullmatch(moment["at"]) for moment in facts["timeline"])
    assert all(ISO_8601.fullmatch(facts[name]) for name in ("created_at", "changed_at", "expires_at"))
    assert "lease ends: if nothing renews it" in cli("records", "show", "slow", "s1").out
    none = cli("records", "show", "charge", "unknown")
    assert (none.code, none.out) == (1, "there is no record of charge unknown\n")


def test_show_has_the_last_error_of_a_record_that_is_not_done(store: eo.Store, cli: Cli) -> None:
    released = pytest.raises(RuntimeError)
    with released, eo.block(store, scope="mail", key="m2") as block:
        assert block.first
        raise RuntimeError("redis://:s3cret@host is away")
    for key, error in (("m1", "ValueError: who knows"), ("m2", "RuntimeError: redis://host is away")):
        assert cli("records", "show", "mail", key, "--json").json["error"] == error
        assert error in cli("records", "show", "mail", key).out
        assert error in cli("records", "list", "--scope", "mail").out
    with eo.block(store, scope="mail", key="m2") as block:
        assert block.first
        assert cli("records", "show", "mail", "m2", "--json").json["error"] == error, "while the next attempt runs"
    assert cli("records", "show", "mail", "m2", "--json").json["error"] is None


def test_show_has_the_last_error_of_a_record_whose_attempts_are_used_up(store: eo.Store, cli: Cli) -> None:
    @eo.once(store, scope="exhausting", key="payment", max_attempts=1)
    def refund(payment: str) -> None:
        raise RuntimeError("no funds")

    for error in (RuntimeError, eo.AttemptsExhausted):
        with pytest.raises(error):
            refund("p1")
    shown = "attempts-exhausted: every allowed attempt was used without a recorded success; the last error was "
    assert cli("records", "show", "exhausting", "p1", "--json").json["error"] == f"{shown}RuntimeError: no funds"
    assert "RuntimeError: no funds" in cli("records", "list", "--scope", "exhausting").out
    place = cli("records", "show", "exhausting", "p1", "--json").json["raised_at"]
    assert place == f"{__file__}:{refund.__wrapped__.__code__.co_firstlineno + 2} in refund"


def test_stats(store: eo.Store, cli: Cli) -> None:
    counts = cli("records", "stats", "--json").json["counts"]
    assert (counts["done"], counts["in_doubt"], counts["failed"], counts["claimed"]) == (5, 1, 1, 1)
    lines = [line.split() for line in cli("records", "stats").out.splitlines()]
    assert ["in", "doubt", "1"] in lines


# -- deciding


def test_forget_lets_a_key_run_again_and_is_audited(store: eo.Store, cli: Cli) -> None:
    dry = cli("records", "forget", "charge", "pay_1", "--dry-run")
    assert dry.out == "would forget charge pay_1, which is done\n"
    refused = cli("records", "forget", "charge", "pay_1")
    assert (refused.code, refused.out) == (2, "")
    assert "--yes" in refused.err
    assert store.get("charge", "pay_1").state == "done"  # type: ignore[union-attr]
    assert not Path("audit.jsonl").exists(), "nothing was done so far"
    assert cli("records", "forget", "charge", "pay_1", "--yes").out == "charge pay_1: forgotten\n"
    record = store.get("charge", "pay_1")
    assert record is not None
    assert (record.state, record.generation) == ("free", 1)
    assert audited() == [("records forget", "charge pay_1", "asked"), ("records forget", "charge pay_1", "done")]
    assert {entry.place for entry in AuditLog("audit.jsonl").recent()} == {"sqlite:///shop.db"}
    assert cli("records", "forget", "charge", "unknown", "--yes").code == 1


def test_a_decision_in_json_says_whether_it_was_a_dry_run(store: eo.Store, cli: Cli) -> None:
    forget = ("records", "forget", "charge", "pay_1", "--json")
    assert cli(*forget, "--dry-run").json == {"forgotten": False, "dry_run": True}
    assert cli("records", "forget", "charge", "no", "--json").json == {"forgotten": False, "dry_run": False}
    assert cli(*forget, "--yes").json == {"forgotten": True}
    resolve = ("records", "resolve", "mail", "m1", "--retry", "--json")
    assert cli(*resolve, "--dry-run").json == {"resolved": None, "dry_run": True}
    assert cli(*resolve, "--yes").json == {"resolved": "retry"}
    purge = cli("records", "purge", "--dry-run", "--json").json
    assert purge == {"deleted": 0, "expired": 2, "dry_run": True}
    none = cli("records", "show", "charge", "unknown", "--json")
    assert (none.code, none.json) == (1, {"record": None})


def test_what_is_kept_after_a_decision_is_kept_for_its_retention(store: eo.Store, cli: Cli) -> None:
    for arguments in (("forget", "charge", "pay_1"), ("resolve", "mail", "m1", "--done")):
        assert cli("records", *arguments, "--retention", "2h", "--yes").code == 0
        record = store.get(*arguments[1:3])
        assert record is not None
        assert record.expires_at is not None
        assert record.expires_at - record.changed_at == 2 * HOUR


def test_the_record_of_a_program_is_decided_by_its_command(store: eo.Store, cli: Cli) -> None:
    for scope, command in (("saga/order", "sagas resolve"), ("intents/billing/stripe/charge", "intents resolve")):
        with pytest.raises(ValueError, match="who"), eo.block(store, scope=scope, key="k", on_error="doubt"):
            raise ValueError("who knows")
        assert f"effectonce {command} " in cli("records", "show", scope, "k").out
        refused = cli("records", "resolve", scope, "k", "--retry", "--yes")
        assert (refused.code, f"effectonce {command} " in refused.err) == (2, True)
        assert cli("records", "resolve", scope, "k", "--abandon", "--yes").out == f"{scope} k: abandon\n"
    assert "records resolve mail m1 --done | --retry | --abandon" in cli("records", "show", "mail", "m1").out


@pytest.mark.parametrize(
    ("words", "state", "result"),
    [(["--done", "--result", "42"], "done", 42), (["--retry"], "free", None), (["--abandon"], "failed", None)],
)
def test_resolve_decides_what_is_in_doubt(
    store: eo.Store, cli: Cli, words: list[str], state: str, result: object
) -> None:
    dry = cli("records", "resolve", "mail", "m1", *words, "--dry-run")
    assert dry.out.startswith("would resolve mail m1: it ")
    done = cli("records", "resolve", "mail", "m1", *words, "--yes", "--json")
    assert done.json == {"resolved": words[0][2:]}
    facts = cli("records", "show", "mail", "m1", "--json").json
    assert (facts["state"], facts["result"]) == (state, result)
    assert audited()[-1] == ("records resolve", "mail m1", "done")


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (["resolve", "charge", "pay_1", "--done"], "not-in-doubt"),
        (["resolve", "charge", "unknown", "--done"], "not-in-doubt"),
        (["resolve", "mail", "m1"], "configuration"),
        (["resolve", "mail", "m1", "--done", "--retry"], "configuration"),
        (["resolve", "mail", "m1", "--retry", "--result", "1"], "invalid-option"),
        (["resolve", "mail", "m1", "--done", "--result", "{"], "configuration"),
        (["forget", "charge", "pay_1", "--retention", "soon"], "invalid-option"),
        (["list", "--state", "gone"], "invalid-option"),
    ],
)
def test_a_wrong_argument_is_a_one_line_error_and_changes_nothing(
    store: eo.Store, cli: Cli, arguments: list[str], code: str
) -> None:
    before = cli("records", "list", "--json").out
    done = cli("records", *arguments)
    assert (done.code, done.out, done.err.count("\n")) == (2, "", 1)
    assert done.err.startswith(f"effectonce: [{code}] ")
    after = cli("records", "list", "--json").out
    assert [record["state"] for record in json.loads(before)["records"]] == [
        record["state"] for record in json.loads(after)["records"]
    ]


def test_purge_deletes_what_is_expired(store: eo.Store, cli: Cli) -> None:
    assert cli("records", "purge", "--dry-run", "--json").json["expired"] == 2
    assert cli("records", "purge").code == 2, "there is no terminal to ask on"
    assert cli("records", "purge", "--yes", "--limit", "1", "--json").json == {"deleted": 1, "lapsed": 0, "more": True}
    assert cli("records", "purge", "--yes").out == "1 deleted, 0 moved to in doubt\n"
    assert cli("records", "purge").out == "0 deleted, 0 moved to in doubt\n", "nothing to ask about"
    assert ("records purge", "sqlite:///shop.db", "done") in audited()


def test_ctrl_c_ends_a_purge_after_its_batch(store: eo.Store, cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = eo.Store.purge

    def interrupted(self: eo.Store, *, limit: int | None = None) -> Any:
        os.kill(os.getpid(), signal.SIGINT)
        swept = whole(self, limit=1)
        return type(swept)(swept.deleted, swept.lapsed, more=True)

    monkeypatch.setattr(eo.Store, "purge", interrupted)
    done = cli("records", "purge", "--yes")
    assert (done.code, done.out) == (130, "1 deleted, 0 moved to in doubt\n")
    assert audited()[-1] == ("records purge", "sqlite:///shop.db", "failed: KeyboardInterrupt")


def test_an_audit_log_that_cannot_be_written_stops_it(store: eo.Store, cli: Cli) -> None:
    done = cli("records", "forget", "charge", "pay_1", "--yes", "--audit", "nowhere/audit.jsonl")
    assert (done.code, "[configuration]" in done.err) == (2, True)
    assert store.get("charge", "pay_1").state == "done"  # type: ignore[union-attr]


# -- doctor


def test_doctor_says_what_is_wrong_and_exits_with_1(store: eo.Store, cli: Cli) -> None:
    with sqlite3.connect("shop.db") as db:
        db.execute("UPDATE effectonce_records SET created_at = created_at - ?", (HOUR,))
    db.close()
    done = cli("doctor")
    assert done.code == 1
    assert done.out.startswith("sqlite:///shop.db\n[ok]      start-up check: it answers")
    assert "\n[warning] the store was never swept  (sweeper-stale)\n    why   Until a process sweeps" in done.out
    assert "\n    run   effectonce records purge --store 'sqlite:///shop.db'; then" in done.out
    assert "\n1 warning, 1 note; " in done.out
    report = cli("doctor", "--json")
    assert (report.code, report.json["ok"]) == (1, False)
    assert [finding["code"] for finding in report.json["findings"]] == ["sweeper-stale", "in-doubt"]
    assert cli("doctor", "--fail-on", "error").code == 0, "for a readiness probe"
    store.purge()
    assert cli("doctor").code == 0, "a note is not a reason to fail"
    assert cli("doctor", "--fail-on", "note").code == 1


def test_doctor_without_findings_says_what_it_looked_at(cli: Cli) -> None:
    assert cli("migrate", "--store", "sqlite:///new.db").code == 0
    done = cli("doctor", "--store", "sqlite:///new.db")
    assert (done.code, done.err) == (0, "")
    names = [line.partition("]")[2].partition(":")[0].strip() for line in done.out.splitlines() if "]" in line]
    checks = ["start-up check", "clock", "sweeper", "expired records", "records in doubt", "server", "outbox"]
    assert names[:-1] == [*checks, "all checks", "all checks"]
    last = "[ok] no findings: every promise can be kept; 7 checks made, 2 skipped"
    assert done.out.splitlines()[-1] == last
    report = cli("doctor", "--store", "sqlite:///new.db", "--json").json
    assert (report["ok"], report["findings"]) == (True, [])
    assert [check["name"] for check in report["checks"] if check["result"] == "ok"] == checks
    assert {check["about"]: check["detail"] for check in report["checks"] if check["result"] == "skipped"} == {
        "broker": "none was given (--broker URL)",
        "programs": "none was given (MODULE:NAME)",
    }


def test_doctor_says_what_it_could_not_check(cli: Cli) -> None:
    checks = cli("doctor", "--store", "sqlite:///nowhere.db", "--broker", "memory://", "--json").json["checks"]
    results = {(check["name"], check["result"]): check["detail"] for check in checks}
    assert "there is nothing at" in results["start-up check", "error"]
    rest = ("clock, sweeper, expired records, records in doubt, server, outbox", "skipped")
    assert results[rest] == "the start-up check failed"
    assert results["dead letters", "skipped"] == "no queue was named"


def test_doctor_looks_at_the_users_programs(cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "clinic.py").write_text(
        "import effectonce as eo\n"
        'broker = eo.connect_broker("sqlite:///queue.db?ack_window=2s")\n'
        'worker = eo.Worker(broker, store=eo.connect("sqlite:///shop.db"), name="billing")\n'
        '@worker.handler("orders", lease="1h")\n'
        "def charge(message): ...\n"
        "seven = 7\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    closed: list[eo.Broker] = []
    monkeypatch.setattr(eo.Broker, "close", lambda broker: closed.append(broker))
    done = cli("doctor", "clinic:worker", "--json")
    assert done.code == 1
    assert len(closed) == 1, "some clients complain at the end of the process when they are left open"
    assert any("set lease= below that" in finding["what"] for finding in done.json["findings"])
    wrong = cli("doctor", "clinic:seven")
    assert (wrong.code, "is of type int, not Worker or Intents" in wrong.err) == (2, True)


@pytest.mark.parametrize("arguments", [["--fail-on", "never"], ["sqlite:///a.db"], ["--store", "x://"]])
def test_doctor_exits_with_2_when_it_cannot_check(cli: Cli, arguments: list[str]) -> None:
    done = cli("doctor", *arguments)
    assert (done.code, done.out, done.err.count("\n")) == (2, "", 1)


def test_limits_come_from_the_project(store: eo.Store, cli: Cli, tmp_path: Path) -> None:
    store.purge()
    for limits, code in (('unattended = "1us"', 1), ("unattended = 604800", 0), ("bogus = 1", 2), ('skew = "soon"', 2)):
        (tmp_path / "pyproject.toml").write_text(
            f'[tool.effectonce]\nstore = "sqlite:///shop.db"\n[tool.effectonce.doctor]\n{limits}\n'
        )
        assert cli("doctor").code == code, limits


# -- what only looks


@pytest.mark.parametrize(
    "command",
    [
        ("records", "list"),
        ("records", "stats"),
        ("records", "show", "charge", "pay_1"),
        ("records", "purge", "--dry-run"),
        ("outbox", "stats"),
        ("doctor",),
        ("check",),
        ("migrate", "--dry-run"),
        ("dashboard", "--port", "0"),
    ],
    ids=" ".join,
)
def test_reading_commands_create_no_file_and_no_tables(inline: Cli, tmp_path: Path, command: tuple[str, ...]) -> None:
    """A slip in a path would otherwise look like a store in which all is well."""
    foreign = tmp_path / "theirs.db"
    with sqlite3.connect(foreign) as theirs:
        theirs.execute("CREATE TABLE orders (id)")
    theirs.close()
    before = foreign.read_bytes()
    for url in ("sqlite:///typo.db", "sqlite:///theirs.db"):
        done = inline(*command, "--store", url)
        assert done.code == (0 if command[0] == "migrate" else 1 if command[0] in ("doctor", "check") else 2)
        assert "there is nothing at" in " ".join((done.out + done.err).split())
    assert [path.name for path in tmp_path.iterdir()] == ["theirs.db"]
    assert foreign.read_bytes() == before


def test_a_result_that_was_traced_is_shown_as_any_other(cli: Cli, store: eo.Store) -> None:
    from effectonce.telemetry.opentelemetry import Tracing

    class Traced(Tracing):
        def current_context(self) -> bytes:
            return b"ab" * 24

    Traced().watch(store)
    with eo.block(store, scope="charge", key="traced") as block:
        assert block.first
        block.result = {"receipt": 9}
    record = store.get("charge", "traced")
    assert record is not None
    assert record.result == b"2" + b"ab" * 24 + b'1{"receipt":9}', "as it is on disk, for good"
    assert cli("records", "show", "charge", "traced", "--json").json["result"] == {"receipt": 9}


@pytest.mark.parametrize(("scope", "tool"), [("saga/orders", "sagas resolve"), ("intents/a/b/c", "intents resolve")])
def test_records_of_a_program_are_decided_by_that_program(cli: Cli, store: eo.Store, scope: str, tool: str) -> None:
    """A saga that is done by a word would leave its steps as they are."""
    with pytest.raises(TimeoutError), eo.block(store, scope=scope, key="k", on_error="doubt"):
        raise TimeoutError
    done = cli("records", "resolve", scope, "k", "--done", "--yes")
    assert (done.code, tool in done.err) == (2, True)
    assert store.get(scope, "k").state == "in_doubt"  # type: ignore[union-attr]
    assert cli("records", "resolve", scope, "k", "--abandon", "--yes").code == 0


def test_a_record_in_doubt_says_what_to_run(cli: Cli, store: eo.Store) -> None:
    last = cli("records", "show", "mail", "m1").out.splitlines()[-1]
    assert last.endswith("then: effectonce records resolve mail m1 --done | --retry | --abandon")


def test_a_table_is_aligned_in_every_script(cli: Cli, store: eo.Store) -> None:
    """An ideograph takes two columns of a terminal, an accent of its own none."""
    keys = ("注文・受注番号一二三", "cafe\u0301", "주문", "x" * 20)
    for key in keys:
        with eo.block(store, scope="受注", key=key) as block:
            assert block.first
            block.result = 1
    lines = cli("records", "list", "--scope", "受注").out.splitlines()
    assert {cell_len(line.partition("done")[0]) for line in lines[1:]} == {cell_len(lines[0].partition("state")[0])}
    assert all(key in "".join(lines) for key in keys)


def test_a_pipe_gets_one_whole_line_for_every_row(cli: Cli, store: eo.Store) -> None:
    with pytest.raises(ValueError, match="very"), eo.block(store, scope="mail", key="k" * 200, on_error="doubt"):
        raise ValueError("very long " * 60)
    lines = cli("records", "list", "--scope", "mail").out.splitlines()
    assert len(lines) == 1 + 2, "a head, and two records"
    assert lines[1 + 1 if "k" * 200 in lines[2] else 1].count("very long") == 60
    assert lines[0].split() == ["key", "scope", "state", "attempts", "changed", "expires", "about"]


class TerminalOfColumns(io.StringIO):
    encoding = "utf-8"

    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize(
    ("columns", "last"),
    [(120, "│"), (70, "two  状態が不明です。"), (30, "why    状態")],
    ids=["table", "list", "blocks"],
)
def test_a_table_fits_every_terminal_and_keeps_every_word(
    monkeypatch: pytest.MonkeyPatch, columns: int, last: str
) -> None:
    terminal = TerminalOfColumns()
    monkeypatch.setenv("COLUMNS", str(columns))
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("NO_COLOR", "1")
    monkeypatch.setattr("sys.stdout", terminal)
    prose = "状態が不明です。" * 10 + " plain words" * 20
    rows = [["one", "x" * 40, "short"], ["two", "y", prose]]
    print_table(["name", "value", "why"], [[Text(cell) for cell in row] for row in rows])
    shown = terminal.getvalue()
    assert max(cell_len(line) for line in shown.splitlines()) <= columns
    assert "…" not in shown
    words = re.sub(r"[│\s]", "", shown)
    assert words.count("状態が不明です。") == 10
    assert words.count("plainwords") == 20
    assert any(last in line for line in shown.splitlines())


@pytest.mark.parametrize("option", ["--older-than", "--newer-than"])
def test_an_age_from_an_empty_variable_is_refused(store: eo.Store, cli: Cli, option: str) -> None:
    """All records would be listed, as if none had been asked for."""
    refused = cli("records", "list", option, "")
    assert (refused.code, refused.out) == (2, "")
    assert f"{option}='' is not a span of time" in refused.err
