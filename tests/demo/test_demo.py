"""`effectonce demo` and `demo --crash`: their output, their counts, and that they can fail."""

from __future__ import annotations

import json
import os
import pty
import re
import signal
import sqlite3
import subprocess
import sys
import time
from contextlib import closing
from pathlib import Path
from typing import Any

import psutil
import pytest

import effectonce as eo
from effectonce.demo.crash import ScenarioRun, WorkerProcesses
from effectonce.demo.crash_modes import MODES
from effectonce.demo.crash_worker import handle_delivery
from effectonce.demo.shop import encode_message, make_message
from tests.cli.conftest import BREAKS, LETS_EVERYTHING_THROUGH, Run, Sabotage

ESCAPE = "\x1b["
SCENARIOS = ("twice", "at_once", "killed_before", "killed_after")


def in_a_terminal(environment: dict[str, str], *arguments: str, **extra: str) -> tuple[int, str]:
    """Run a command whose stdout and stderr are a terminal of 80 columns. Returns exit code and output."""
    ours, theirs = pty.openpty()
    pty_env = {**environment, "COLUMNS": "80", **extra}
    command = [sys.executable, "-m", "effectonce", *arguments]
    process = subprocess.Popen(command, stdin=theirs, stdout=theirs, stderr=theirs, env=pty_env)
    os.close(theirs)
    output = b""
    try:
        while chunk := os.read(ours, 65536):
            output += chunk
    except OSError:  # on Linux: the other end was closed
        pass
    os.close(ours)
    return process.wait(60), output.decode().replace("\r\n", "\n")


# -- delivered twice


def test_one_payment_is_delivered_twice_and_charged_once(run: Run) -> None:
    completed = run("demo")
    assert (completed.returncode, completed.stderr) == (0, "")
    lines = completed.stdout.splitlines()
    assert [line.split("]")[0] for line in lines] == ["[publish", "[publish", "[charge", "[result", "[ok"]
    assert lines[0].startswith("[publish] delivery 1 ")
    assert lines[1].startswith("[publish] delivery 2 ")
    assert re.fullmatch(r"\[result\] 2 deliveries of the SAME payment .* side-effect fired 1 time\(s\)\.", lines[3])
    assert len(set(re.findall(r"id=([0-9a-f-]{36})", completed.stdout))) == 1
    assert all(len(line) <= 80 for line in lines)


def test_json_has_the_same_counts(run: Run) -> None:
    completed = run("demo", "--json")
    assert completed.returncode == 0
    report = json.loads(completed.stdout)
    assert (report["ok"], report["deliveries"], report["charges"], report["replayed"]) == (True, 2, 1, 1)
    assert report["receipts"][0] == report["receipts"][1]


def test_it_fails_when_the_guard_lets_the_duplicate_through(run: Run, sabotaged: Sabotage) -> None:
    broken = sabotaged(LETS_EVERYTHING_THROUGH)
    completed = run("demo", PYTHONPATH=broken)
    assert completed.returncode == 1
    assert completed.stdout.count("[charge]") == 2
    assert "side-effect fired 2 time(s)." in completed.stdout
    assert "[FAILED]" in completed.stdout
    assert "[ok]" not in completed.stdout
    assert json.loads(run("demo", "--json", PYTHONPATH=broken).stdout)["ok"] is False


def test_the_demo_imports_nothing_but_msgspec(environment: dict[str, str]) -> None:
    script = """
import sys
from effectonce.cli import main
assert main(["demo"]) == 0
foreign = {"typer", "click", "rich", "redis", "hiredis", "psycopg", "pymysql", "boto3", "pydantic", "cryptography"}
assert not foreign & set(sys.modules), foreign & set(sys.modules)
"""
    subprocess.run([sys.executable, "-c", script], env=environment, check=True, capture_output=True, timeout=60)


def test_a_pipe_gets_no_colours_and_a_terminal_does(run: Run, environment: dict[str, str]) -> None:
    assert ESCAPE not in run("demo").stdout
    assert ESCAPE in in_a_terminal(environment, "demo")[1]
    assert ESCAPE not in in_a_terminal(environment, "demo", NO_COLOR="1")[1]
    assert ESCAPE not in in_a_terminal(environment, "demo", TERM="dumb")[1]


def test_it_prints_on_an_ascii_terminal(run: Run) -> None:
    completed = run("demo", PYTHONIOENCODING="ascii")
    assert (completed.returncode, completed.stderr) == (0, "")


def test_a_closed_pipe_is_not_an_error(environment: dict[str, str]) -> None:
    command = f"{sys.executable} -m effectonce demo | true"
    completed = subprocess.run(["bash", "-c", command], env=environment, capture_output=True, text=True, timeout=60)
    assert completed.stderr == ""


# -- killed


@pytest.fixture(scope="module")
def crash_report() -> dict[str, dict[str, Any]]:
    command = [sys.executable, "-m", "effectonce", "demo", "--crash", "--json"]
    completed = subprocess.run(command, capture_output=True, text=True, timeout=100)
    assert (completed.returncode, completed.stderr) == (0, "")
    report = json.loads(completed.stdout)
    assert report["ok"] is True
    return {mode["mode"]: mode for mode in report["modes"]}


@pytest.mark.parametrize(
    ("mode", "charges", "lost", "in_doubt"),
    [
        ("unguarded", (2, 2, 1, 2), 0, []),
        ("mark-last", (1, 2, 1, 2), 0, []),
        ("mark-first", (1, 2, 0, 1), 1, []),
        ("seen", (1, 2, 1, 2), 0, []),
        ("lease", (1, 1, 1, 2), 0, []),
        ("lease-doubt", (1, 1, 0, 1), 0, ["killed_before", "killed_after"]),
        ("inbox", (1, 1, 1, 1), 0, []),
        ("intents", (1, 1, 1, 1), 0, []),
    ],
)
def test_the_charges_of_each_mode_in_each_scenario(
    crash_report: dict[str, dict[str, Any]], mode: str, charges: tuple[int, ...], lost: int, in_doubt: list[str]
) -> None:
    """F02, F03, F14: a killed worker's work is taken up again, or in doubt; check-then-act races."""
    line = crash_report[mode]
    assert tuple(line["charges"][scenario] for scenario in SCENARIOS) == charges
    assert (line["lost"], line["in_doubt"], line["broken"]) == (lost, in_doubt, [])
    assert line["lets_through"]


def test_a_worker_is_ready_only_when_it_has_made_its_tables(tmp_path: Path) -> None:
    """Otherwise it would wait for ever for another that has halted in a transaction."""
    mode = next(mode for mode in MODES if mode.name == "inbox")
    with WorkerProcesses() as processes:
        ScenarioRun(mode, "30s", tmp_path / "run", processes).start_worker()
        with closing(sqlite3.connect(tmp_path / "run" / "ledger.db")) as db:
            tables = {name for (name,) in db.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
    assert len(tables - {"charges"}) > 0


@pytest.mark.parametrize(
    ("error", "answer"),
    [
        (eo.StoreUnavailable("away", 1.5), "again 1.500"),
        (eo.LeaseLost("the machine is busy"), "again 0"),
        (eo.InDoubt("unknown"), "park"),
        (ValueError("no"), "broken ValueError: no"),
    ],
)
def test_the_answer_of_a_worker_whose_handler_raised(error: Exception, answer: str) -> None:
    def handler(message: object) -> None:
        raise error

    assert handle_delivery(handler, encode_message(make_message())) == answer


def test_the_table_of_a_pipe_is_plain_and_leaves_nothing_behind(run: Run, temporary: Path) -> None:
    completed = run("demo", "--crash")
    assert (completed.returncode, completed.stderr) == (0, "")
    assert completed.stdout.isascii()
    rows = [line for line in completed.stdout.splitlines() if line.startswith(("|", "+"))]
    assert len({len(row) for row in rows}) == 1
    assert len(rows[0]) <= 120
    assert re.search(r"\| L  lease \(default\) +\| 1 +\| 1 +\| 1 +\| 2 DOUBLED +\| 0 ", completed.stdout)
    assert re.search(r"\| check, mark, charge +\| 1 +\| 2 DOUBLED +\| 0 LOST +\| 1 +\| 1 ", completed.stdout)
    assert completed.stdout.splitlines()[-1].startswith("[ok] ")
    assert not list(temporary.iterdir())


def test_a_narrow_terminal_gets_boxes_progress_and_no_line_too_long(environment: dict[str, str]) -> None:
    code, output = in_a_terminal(environment, "demo", "--crash", NO_COLOR="1")
    assert code == 0
    assert re.search(r"31/32  \d+\.\d/s  \d+ s left  \S", output)  # the progress, wiped at the end
    assert "32/32" in output
    shown = output.rpartition("\r\x1b[K")[2]
    assert "┌" in shown
    assert max(map(len, shown.splitlines())) == 80


def test_it_fails_when_a_promise_is_broken(run: Run, sabotaged: Sabotage) -> None:
    completed = run("demo", "--crash", "--json", PYTHONPATH=sabotaged(LETS_EVERYTHING_THROUGH))
    assert completed.returncode == 1
    report = json.loads(completed.stdout)
    broken = {mode["mode"]: mode["broken"] for mode in report["modes"]}
    assert report["ok"] is False
    assert broken["seen"] == ["twice"]
    assert broken["lease"] == ["twice", "at_once"]
    assert broken["lease-doubt"] == list(SCENARIOS)
    assert broken["intents"] == []  # the card network knows the key all the same


@pytest.mark.long
def test_a_broken_promise_is_said_below_the_table(run: Run, sabotaged: Sabotage) -> None:
    completed = run("demo", "--crash", PYTHONPATH=sabotaged(LETS_EVERYTHING_THROUGH))
    assert completed.returncode == 1
    assert "[FAILED] a promise was not kept: " in completed.stdout
    assert "[ok]" not in completed.stdout


def test_a_worker_that_fails_is_reported_in_one_line(run: Run, sabotaged: Sabotage) -> None:
    completed = run("demo", "--crash", PYTHONPATH=sabotaged(BREAKS))
    assert completed.returncode == 2
    assert completed.stderr == "effectonce: [demo] the demo itself failed: ZeroDivisionError: division by zero\n"


@pytest.mark.parametrize(("sign", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_an_interrupted_demo_leaves_no_files_and_no_processes(
    environment: dict[str, str], temporary: Path, sign: signal.Signals, code: int
) -> None:
    """Ctrl-C reaches the whole process group, as a terminal does it; SIGTERM the parent alone."""
    command = [sys.executable, "-m", "effectonce", "demo", "--crash"]
    process = subprocess.Popen(
        command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True
    )
    workers = wait_for_descendants(process.pid, 4)
    if sign == signal.SIGINT:
        os.killpg(process.pid, sign)
    else:
        process.send_signal(sign)
    _, errors = process.communicate(timeout=60)
    assert (process.returncode, errors) == (code, b"")
    assert not psutil.wait_procs(workers, timeout=60)[1]
    assert not list(temporary.iterdir())


def wait_for_descendants(pid: int, count: int) -> list[psutil.Process]:
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        children = psutil.Process(pid).children(recursive=True)
        if len(children) >= count:
            return children
        time.sleep(0.01)
    raise AssertionError("the demo started no workers")


def test_no_worker_outlives_a_parent_that_was_killed(environment: dict[str, str]) -> None:
    process = subprocess.Popen(
        [sys.executable, "-m", "effectonce", "demo", "--crash"], env=environment, stdout=subprocess.DEVNULL
    )
    workers = wait_for_descendants(process.pid, 4)
    process.kill()
    process.wait()
    assert not psutil.wait_procs(workers, timeout=60)[1]
