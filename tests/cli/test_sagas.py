"""`effectonce sagas`, as an operator uses it at night."""

from __future__ import annotations

import json
import shutil
import sqlite3
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from effectonce.cli import main, sagas
from effectonce.display.sagas import SagaPartView
from effectonce.sagas.log import LoggedStep, StepProgress

Cli = Callable[..., tuple[int, str, str]]

ORDERS = """
import effectonce as eo

store = eo.connect("sqlite:///shop.db")
saga = eo.Saga("order", store, input=dict)
not_a_saga = 3


@saga.step()
def reserve(order: dict) -> str:
    return "shelf 7"


@reserve.compensate(retry=eo.Retry(1))
def release(order: dict, done: eo.Done) -> None:
    if not __import__("os").path.exists("mended"):
        raise ConnectionError("the warehouse is closed")


@saga.step()
def charge(order: dict) -> int:
    if order["kind"] == "unknown":
        raise eo.OutcomeUnknown("no answer", 0.0)
    if order["kind"] == "declined":
        raise ValueError("declined")
    return 4200


if __name__ == "__main__":
    for kind in ("good", "unknown", "declined"):
        try:
            saga.run(f"o-{kind}", {"kind": kind})
        except eo.EffectOnceError as error:
            print(error.code)
    saga.start("o-new", {"kind": "good"})
"""


@pytest.fixture
def orders(tmp_path: Path, environment: dict[str, str]) -> Path:
    """One done, one whose charge is unknown, one whose compensation fails, one started."""
    (tmp_path / "orders.py").write_text(ORDERS)
    command = [sys.executable, "orders.py"]
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=60)
    assert done.stdout == "outcome-unknown\nin-doubt\n", done.stderr
    return tmp_path


@pytest.fixture
def cli(orders: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Iterator[Cli]:
    """``effectonce sagas …`` in this process: exit code, output, errors."""
    monkeypatch.chdir(orders)
    monkeypatch.syspath_prepend(str(orders))
    monkeypatch.delitem(sys.modules, "orders", raising=False)

    def cli(command: str, *arguments: str, of: str = "orders:saga") -> tuple[int, str, str]:
        code = main(["sagas", command, of, *arguments])
        return code, *capsys.readouterr()

    yield cli
    if "orders" in sys.modules:
        sys.modules.pop("orders").store.close()


def listed(cli: Cli, *options: str) -> dict[str, str]:
    rows = json.loads(cli("list", "--json", *options)[1])["sagas"]
    return {row["id"]: row["state"] for row in rows}


def shown(cli: Cli, id: str) -> Any:
    return json.loads(cli("show", id, "--json")[1])


def test_an_operator_finds_decides_and_resumes(orders: Path, cli: Cli, caplog: pytest.LogCaptureFixture) -> None:
    waiting = {"o-unknown": "waiting", "o-new": "waiting"}
    assert listed(cli) == {"o-declined": "in doubt", **waiting}
    assert listed(cli, "--in-doubt") == {"o-declined": "in doubt"}
    assert listed(cli, "--all") == {"o-declined": "in doubt", "o-good": "done", **waiting}

    text = cli("show", "o-declined")[1]
    assert "in doubt" in text
    assert "the warehouse is closed" in text
    assert "ValueError: declined" in text
    assert "#" in text
    assert [(part["step"], part["compensation"], part["state"]) for part in shown(cli, "o-declined")["timeline"]] == [
        ("reserve", False, "done"),
        ("charge", False, "failed"),
        ("reserve", True, "failed"),
    ]

    early = cli("resume", "--json")
    assert json.loads(early[1]) == {"done": 1, "failed": 0, "in_doubt": 0, "later": 1, "refused": 0}
    (orders / "mended").touch()
    assert cli("resolve", "o-declined", "--retry", "--yes") == (0, "o-declined: retry\n", "")
    assert "was resolved as retry by " in caplog.text
    assert cli("resume")[1].startswith("0 done, 1 failed, 0 in doubt, 1 later")
    assert shown(cli, "o-declined")["state"] == "failed"


def test_an_operator_turns_a_saga_around(orders: Path, cli: Cli) -> None:
    (orders / "mended").touch()
    assert "\nstarted  not yet\n" in cli("show", "o-new")[1]
    assert cli("compensate", "o-new", "--yes")[1] == "o-new: compensated\n"
    code, _, err = cli("compensate", "o-unknown", "--yes")
    assert (code, "[in-doubt]" in err) == (2, True)
    cli("resolve", "o-unknown", "--done", "--result", "4200", "--yes")
    cli("resume")
    timeline = shown(cli, "o-unknown")["timeline"]
    assert [(part["step"], part["state"]) for part in timeline] == [
        ("reserve", "done"),
        ("charge", "done"),
        ("reserve", "done"),
    ]
    assert listed(cli) == {"o-declined": "in doubt"}


def test_a_dry_run_shows_what_would_be_done(orders: Path, cli: Cli) -> None:
    before = listed(cli, "--all")
    assert cli("compensate", "o-unknown", "--dry-run")[1] == "would undo, of o-unknown: reserve\n"
    assert cli("resolve", "o-declined", "--retry", "--dry-run")[1] == (
        "o-declined is in doubt: would resolve it as retry\n"
    )
    assert json.loads(cli("resume", "--dry-run", "--json")[1]) == {"open": 2, "dry_run": True}
    for id, state in (("o-good", "done"), ("o-declined", "in doubt")):
        assert cli("compensate", id, "--dry-run") == (1, f"{id} is {state}: it would stay as it is\n", "")
    code, out, err = cli("resolve", "o-good", "--retry", "--dry-run")
    assert (code, out, "[not-in-doubt]" in err) == (2, "", True), "as without --dry-run"
    assert listed(cli, "--all") == before
    code, out, err = cli("compensate", "o-unknown")
    assert (code, out) == (2, "")
    assert "--yes" in err, "and without a terminal it does not ask"


WRONG = [
    (["show", "unknown"], "there is no saga order with id"),
    (["compensate", "unknown"], "there is no saga order with id"),
    (["compensate", "o-good"], "is done"),
    (["resolve", "o-good", "--retry"], "is done, not in doubt"),
    (["resolve", "o-declined"], "give exactly one of"),
    (["resolve", "o-declined", "--retry", "--abandon"], "give exactly one of"),
    (["resolve", "o-declined", "--done", "--result", "{"], "--result takes JSON"),
    (["resolve", "o-declined", "--not-done", "--yes"], "must be done"),
    (["resolve", "o-declined", "--retry", "--result", "7", "--yes"], "--result goes with --done"),
    (["resolve", "o-declined", "--abandon", "--result", "null", "--yes"], "--result goes with --done"),
    (["resolve", "o-declined", "--done", "--result", "7", "--yes"], "the compensation of reserve returns nothing"),
]


@pytest.mark.parametrize("note", ["ff", "9ca1ff"], ids=["of another release", "cut in a character"])
def test_an_unreadable_log_hides_no_other_saga(orders: Path, cli: Cli, note: str) -> None:
    with closing(sqlite3.connect(orders / "shop.db")) as shop:
        shop.execute(f"UPDATE effectonce_records SET note = x'{note}' WHERE key = 'o-declined'")
        shop.commit()
    assert listed(cli) == {"o-declined": "in doubt", "o-unknown": "waiting", "o-new": "waiting"}
    row = json.loads(cli("list", "--json", "--in-doubt")[1])["sagas"][0]
    assert (row["id"], row["phase"], row["done"]) == ("o-declined", "unreadable", None)
    assert "the log of a saga cannot be read" in row["why"]
    code, out, _ = cli("list", "--all")
    assert code == 0
    known = {"o-declined", "o-unknown", "o-new", "o-good"}
    assert {line.split()[0] for line in out.splitlines() if "o-" in line} == known
    assert "unreadable" in out
    code, out, err = cli("show", "o-declined")
    assert (code, out, "[corrupt-record]" in err) == (2, "", True)
    assert cli("resolve", "o-declined", "--abandon", "--yes")[0] == 0


ODD = ["new\nline", " sp", "t\\:1:x", "it's", "\x1b[31mred\u0085", "-dash", "o-plain", "tab\t'\\"]


@pytest.mark.skipif(shutil.which("bash") is None, reason="no bash on this system")
def test_listed_ids_can_be_pasted_into_other_commands(orders: Path, cli: Cli) -> None:
    """F65: JSON has it as it is, and a terminal as a shell takes it."""
    assert listed(cli)
    for id in ODD:
        sys.modules["orders"].saga.start(id, {"kind": "good"})
    assert set(ODD) <= set(listed(cli))
    lines = [line for line in cli("list")[1].splitlines() if "waiting" in line]
    shown_as = [line.split("  ")[0] for line in lines]
    assert all(id.isprintable() for id in shown_as)
    script = "".join(f"printf '%s\\0' {id}\n" for id in shown_as)
    output = subprocess.run(["bash", "-c", script], capture_output=True, env={"LC_ALL": "C.UTF-8"}, check=True).stdout
    assert {id.decode() for id in output.split(b"\0")[:-1]} >= set(ODD)
    for id in ODD:
        assert json.loads(cli("show", "--json", "--", id)[1])["id"] == id
    assert "`list --json` has the ids as they are" in cli("show", "new\\nline")[2]


def test_a_result_must_have_the_type_of_its_step(cli: Cli) -> None:
    cli("compensate", "o-unknown", "--yes")
    for result in ('"text"', "null"):
        code, out, err = cli("resolve", "o-unknown", "--done", "--result", result, "--yes")
        assert (code, out, err.count("\n")) == (2, "", 1)
        assert "this is not a result of step charge, which gives a whole number (Expected `int`, got " in err
        assert err.rstrip().endswith("; nothing was changed")
    assert "which gives a whole number" in cli("resolve", "o-unknown", "--done", "--yes")[2]
    assert cli("resolve", "o-unknown", "--done", "--result", "4200", "--yes")[0] == 0


@pytest.mark.parametrize("of", ["orders:not_a_saga", "orders:nothing", "orders"])
def test_a_name_that_is_not_a_saga_is_a_one_line_error(cli: Cli, of: str) -> None:
    code, out, err = cli("list", of=of)
    assert (code, out, err.count("\n")) == (2, "", 1)


def test_wrong_arguments_are_a_one_line_error(cli: Cli) -> None:
    for (command, *arguments), message in WRONG:
        code, out, err = cli(command, *arguments)
        assert (code, out, err.count("\n")) == (2, "", 1), arguments
        assert message in err


@pytest.mark.parametrize(
    ("began", "ended", "start", "end", "drawn"),
    [
        (0, 0, 100, 200, "............"),
        (100, 200, 100, 200, "############"),
        (100, 100, 100, 100, "............"),
        (100, 110, 100, 210, "##.........."),
        (200, 210, 100, 210, "..........##"),
        (150, 0, 100, 210, ".....#......"),
    ],
    ids=["not begun", "all of it", "no time at all", "the beginning", "the end", "still running"],
)
def test_a_timeline_shows_when_a_step_ran(
    monkeypatch: pytest.MonkeyPatch, began: int, ended: int, start: int, end: int, drawn: str
) -> None:
    monkeypatch.setattr(sagas, "_BAR_COLUMNS", 12)
    monkeypatch.setattr(sagas, "_NARROW_BAR_COLUMNS", 6)
    progress = StepProgress(began=began, ended=ended)
    wide: Any = SimpleNamespace(boxes=False, width=sagas._NARROW_SCREEN_COLUMNS)
    narrow: Any = SimpleNamespace(boxes=True, width=sagas._NARROW_SCREEN_COLUMNS - 1)
    assert sagas._draw_span(wide, progress, start, end) == drawn
    in_boxes = sagas._draw_span(narrow, progress, start, end)
    assert len(in_boxes) == 6
    assert set(in_boxes) <= {"·", "█"}


@pytest.mark.parametrize(
    ("began", "ended", "took"),
    [(1_000_000, 3_000_000, "2 s"), (1_000_000, 0, "-"), (0, 0, "-"), (0, 3_000_000, "-"), (5, 5, "-")],
)
def test_a_row_says_how_long_a_step_took(began: int, ended: int, took: str) -> None:
    progress = StepProgress(state="done", attempts=3, began=began, ended=ended)
    part = SagaPartView(LoggedStep("charge", "charge", False, progress), progress, False, "done")
    screen: Any = SimpleNamespace(boxes=False, width=120, live=False)
    title, state, tries, _, _, span, result = (cell.plain for cell in sagas._part_cells(screen, part, 0, 9))
    assert (title, state, tries, span, result) == ("charge", "done", "3", took, "-")


def test_a_row_says_when_a_step_began() -> None:
    progress = StepProgress(began=1_795_111_249_238_711)
    pipe: Any = SimpleNamespace(live=False)
    terminal: Any = SimpleNamespace(live=True)
    assert sagas._began(pipe, progress) == "2026-11-19T18:00:49.238Z"
    assert sagas._began(terminal, progress) == "18:00:49.238Z"
    assert sagas._began(pipe, StepProgress()) == "-"
