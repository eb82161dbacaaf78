"""`make prove`, in short: processes and servers are killed, the network is cut, and the table shows it."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from urllib.parse import urlsplit

import pytest

from tests.conftest import skip_or_fail
from tests.harness import installed

from . import prove, prove_faults
from .prove import Proof
from .soak import Tally
from .soak_victims import CONTROLS, Mode

pytestmark = pytest.mark.chaos

SHORT_SECONDS = 9.0  # of `make prove`: 150 messages, a few dozen kills


def run_soak(mode: Mode, store: str, seed: int) -> prove.Row:
    proof = Proof(SHORT_SECONDS, seed)
    with prove.files_in_memory():
        try:
            proof.soak(mode, store, share=150.0)
        except installed.Missing as missing:
            skip_or_fail(str(missing))
    (row,) = proof.rows
    print(row)
    return row


@pytest.mark.quick_on("L-redis", "T-postgres")
@pytest.mark.parametrize(
    ("mode", "store"),
    [
        ("L", "sqlite"),
        ("L", "redis"),
        ("L", "postgres"),
        ("L", "mariadb"),
        ("T", "sqlite"),
        ("T", "postgres"),
        ("T", "mariadb"),
        ("K", "sqlite"),
        ("I", "postgres"),
    ],
)
def test_processes_and_servers_are_killed_and_the_mode_keeps_its_promise(mode: Mode, store: str) -> None:
    """F01, F02, F03, F08, F11, F58: kill -9 and SIGSTOP at any microsecond."""
    row = run_soak(mode, store, seed=3)
    assert row.broken == []
    assert row.kills > 0
    assert row.server_kills == (store != "sqlite")


@pytest.mark.parametrize("mode", CONTROLS)
def test_the_count_has_teeth(mode: Mode) -> None:
    """Acting before the mark doubles, marking before the act loses (F19): both are seen."""
    row = run_soak(mode, "files", seed=3)
    assert row.broken == []
    assert (row.doubled if mode == "act first" else row.lost) > 0


def server_at(url: str) -> prove_faults.Reachable:
    return SimpleNamespace(url=url, port=urlsplit(url).port)


def test_leases_hold_through_a_bad_network_to_redis(redis_url: str, unique_name: str) -> None:
    """F36, F68: lost and halved replies, resets, silence, one byte at a time."""
    tally = prove_faults.run_leased(server_at(redis_url), unique_name, faults=14)
    assert (tally.lost, tally.violations) == (0, [])
    assert tally.doubled <= tally.unrecorded


def test_leases_hold_through_a_bad_network_to_postgres(postgres_url: str, unique_name: str) -> None:
    """F36, F68."""
    tally = prove_faults.run_leased(server_at(postgres_url), unique_name, faults=14)
    assert (tally.lost, tally.violations) == (0, [])
    assert tally.doubled <= tally.unrecorded


def test_transactions_hold_through_a_bad_network(postgres_url: str, unique_name: str) -> None:
    """F30, F36."""
    tally = prove_faults.run_transactional(server_at(postgres_url), unique_name, faults=14)
    assert (tally.lost, tally.doubled) == (0, 0)


def test_every_commit_is_executed_and_its_reply_cut_once(postgres_url: str, unique_name: str) -> None:
    """F30: the redone handler finds the row of the commit whose reply was lost."""
    tally = prove_faults.run_with_cut_commits(server_at(postgres_url), unique_name, messages=25)
    assert (tally.faults >= 25, tally.lost, tally.doubled, tally.violations) == (True, 0, 0, [])


def test_a_worker_gets_every_message_through_a_bad_network_to_rabbitmq(
    rabbitmq_url: str, unique_name: str, tmp_path: Path
) -> None:
    """F56, F59: connections break in the middle of handlers; each message has one effect."""
    tally = prove_faults.run_worker(server_at(rabbitmq_url), f"sqlite:///{tmp_path}/store.db", unique_name, faults=14)
    assert (tally.lost, tally.doubled, tally.violations) == (0, 0, [])


@pytest.mark.long
def test_the_table_names_each_part_and_the_file_has_every_figure(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "proof.json"
    assert prove.main(["--seconds", "6", "--only", "soak L sqlite", "--seed", "5", "--json", str(file)]) == 0
    out = capsys.readouterr()
    assert "L-sqlite-5" in out.out
    assert "< 1 in" in out.out
    assert "soak L sqlite" in out.err
    facts = json.loads(file.read_text())
    (row,) = facts["rows"]
    assert (row["mode"], row["where"], row["lost"], row["seed"]) == ("L", "sqlite", 0, "L-sqlite-5")
    assert row["doubled"] <= row["allowed"]
    assert facts["seed"] == 5


def test_a_broken_promise_is_printed_and_ends_with_1(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    tally = Tally(300, lost=2, doubled=1)
    monkeypatch.setattr(Proof, "run", lambda proof: [prove.make_row("kill -9", "T", "sqlite", tally, "s-1", 0)])
    assert prove.main([]) == 1
    out = capsys.readouterr().out
    assert "[broken] kill -9, T, sqlite: 2 lost" in out
    assert "1 doubled, and at most 0 may be" in out


def test_zero_in_n_bounds_the_chance_by_three_in_n() -> None:
    assert prove.bound(0, 30_000) == "< 1 in 10,000"
    assert prove.bound(1, 30_000) == prove.bound(0, 2) == "-"


def test_a_control_arm_that_breaks_nothing_breaks_the_proof() -> None:
    row = prove.make_row("kill -9", "naive", "files", Tally(100), "s", None)
    assert row.broken == ["the control arm lost and doubled nothing, so the count proves nothing"]
