"""The bar of `effectonce verify` and of `make prove`: in a terminal, and never in a pipe."""

from __future__ import annotations

import io
import re

import pytest

from effectonce.cli.terminal import Progress
from tests.proof.prove import Bar


class Terminal(io.StringIO):
    encoding = "utf-8"

    def isatty(self) -> bool:
        return True


@pytest.fixture(autouse=True)
def capable_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "100")
    monkeypatch.setenv("NO_COLOR", "1")


def test_the_bar_grows_with_every_trial_and_is_wiped() -> None:
    terminal = Terminal()
    progress = Progress(stream=terminal)
    for _ in range(4):
        progress.step("killed", total=4)
    progress.wipe()
    lines = terminal.getvalue().split("\r\x1b[K")
    assert [line.count("█") for line in lines] == [0, 5, 10, 15, 20, 0]
    assert re.search(r"2/4  \d+\.\d/s  0 s left  killed", lines[2]), "done, rate, time left"


def test_nothing_is_printed_to_a_pipe() -> None:
    pipe = io.StringIO()
    progress = Progress(total=4, stream=pipe)
    progress.step("killed")
    progress.wipe()
    assert pipe.getvalue() == ""


def test_the_proof_shows_how_far_it_is_or_names_each_part(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    terminal = Terminal()
    monkeypatch.setattr("sys.stderr", terminal)
    Bar().show(0.5, "soak L redis")
    assert f"{'█' * 15}{'░' * 15}  50%  soak L redis" in terminal.getvalue()
    monkeypatch.undo()
    bar = Bar()
    for done in (0.1, 0.2):
        bar.show(done, "soak T redis")
    assert capsys.readouterr().err == " 10%  soak T redis\n"
