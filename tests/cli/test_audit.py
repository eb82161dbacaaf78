"""Who did what: written down before it is done, and again when it is."""

from __future__ import annotations

import json
import logging
import threading
from pathlib import Path

import pytest

from effectonce.errors import ConfigurationError, NotInDoubt
from effectonce.telemetry.audit_log import AuditLog


def test_an_action_is_on_disk_before_it_starts(tmp_path: Path) -> None:
    audit = AuditLog(tmp_path / "audit.jsonl")
    with audit.record_action("records forget", "charge pay_1", by="ann@desk", detail="was done"):
        (asked,) = audit.recent()
        assert (asked.action, asked.target, asked.by, asked.outcome) == (
            "records forget", "charge pay_1", "ann@desk", "asked",
        )  # fmt: skip
    assert [entry.outcome for entry in audit.recent()] == ["done", "asked"], "newest first"
    assert (tmp_path / "audit.jsonl").stat().st_mode & 0o077 == 0


@pytest.mark.parametrize(
    ("error", "outcome"),
    [
        (NotInDoubt("it is done"), "failed: [not-in-doubt] it is done"),
        (ValueError("secret payload"), "failed: ValueError"),
        (KeyboardInterrupt(), "failed: KeyboardInterrupt"),
    ],
)
def test_a_failed_action_is_logged_and_its_error_propagates(tmp_path: Path, error: BaseException, outcome: str) -> None:
    audit = AuditLog(tmp_path / "audit.jsonl")
    with pytest.raises(type(error)), audit.record_action("a", "b", by="c"):
        raise error
    assert audit.recent()[0].outcome == outcome


def test_an_action_that_cannot_be_logged_does_not_start(tmp_path: Path) -> None:
    done = False
    with (
        pytest.raises(ConfigurationError, match="--audit or EFFECTONCE_AUDIT"),
        AuditLog(tmp_path / "nowhere" / "audit.jsonl").record_action("a", "b", by="c"),
    ):
        done = True
    assert not done


def test_concurrent_writers_tear_no_line(tmp_path: Path) -> None:
    path = tmp_path / "audit.jsonl"

    def write(number: int) -> None:
        for index in range(50):
            AuditLog(path).record("act", f"{number}/{index} \n\x1b[31m", by="x" * 300)

    threads = [threading.Thread(target=write, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    lines = path.read_text().splitlines()
    assert len(lines) == 200
    assert all(len(json.loads(line)["by"]) == 200 for line in lines)
    assert "\x1b" not in path.read_text()


def test_the_newest_entries_are_read_from_the_end_and_torn_lines_are_skipped(tmp_path: Path) -> None:
    path = tmp_path / "audit.jsonl"
    audit = AuditLog(path)
    audit.record("act", "first", by="x")
    line = path.read_text()
    torn = '{"at": 1, "by": "to\n'
    path.write_text("".join(line.replace("first", str(number)) for number in range(1500)) + torn)  # over one block
    audit.record("act", "last", by="x")
    assert [entry.target for entry in audit.recent(3)] == ["last", "1499", "1498"]
    assert len(audit.recent(10_000)) == 1501
    assert AuditLog(tmp_path / "none").recent() == []


def test_without_a_file_entries_are_logged_and_kept_in_memory(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "effectonce.telemetry.audit_log")
    audit = AuditLog()
    audit.record("dlq purge", "orders", by="ann@desk")
    assert "ann@desk dlq purge orders: done" in caplog.text
    assert [entry.action for entry in audit.recent()] == ["dlq purge"]


def test_two_stores_may_share_a_log(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """They may hold the same keys: each line names its store; lines of older releases do not."""
    caplog.set_level(logging.INFO, "effectonce.telemetry.audit_log")
    audit = AuditLog(tmp_path / "audit.jsonl")
    (tmp_path / "audit.jsonl").write_text('{"at":1,"by":"a","action":"b","target":"c","outcome":"done","detail":""}\n')
    with audit.record_action("records forget", "charge pay_1", by="ann", place="redis://staging"):
        pass
    assert [entry.place for entry in audit.recent()] == ["redis://staging", "redis://staging", ""]
    assert "records forget charge pay_1: done in redis://staging" in caplog.text


def test_an_action_whose_end_cannot_be_logged_still_succeeds(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Raised there, the error would say that nothing was done."""
    path = tmp_path / "audit.jsonl"
    audit = AuditLog(path)
    with audit.record_action("records forget", "charge pay_1", by="ann"):
        path.unlink()
        path.mkdir()
    assert "but the audit log could not be written" in caplog.text


def test_a_log_that_cannot_be_read_is_an_error_with_its_name(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="cannot be read"):
        AuditLog(tmp_path).recent()


def test_an_entry_is_on_the_disk_before_its_action_and_not_only_on_its_way(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: list[int] = []
    monkeypatch.setattr("effectonce.telemetry.audit_log.os.fsync", synced.append)
    with AuditLog(tmp_path / "audit.jsonl").record_action("redrive", "orders", by="ann"):
        assert len(synced) == 1
    assert len(synced) == 2
