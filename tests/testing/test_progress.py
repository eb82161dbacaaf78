"""The progress lines of `demo --crash`, of long commands and of `make prove`: in a terminal, and never in a pipe."""

from __future__ import annotations

import io
import re
from functools import partial

import pytest

from effectonce.cli.progress import Progress
from effectonce.demo.progress import DemoProgress
from tests.proof.prove import Bar


class Terminal(io.StringIO):
    encoding = "utf-8"

    def isatty(self) -> bool:
        return True


class StderrPatch:
    """Replaces the standard error; inside a test, since pytest replaces it between fixtures and tests."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._monkeypatch = monkeypatch

    def terminal(self, kind: str = "xterm") -> Terminal:
        terminal = Terminal()
        self._monkeypatch.setenv("TERM", kind)
        self._monkeypatch.setattr("sys.stderr", terminal)
        return terminal

    def pipe(self) -> io.StringIO:
        pipe = io.StringIO()
        self._monkeypatch.setattr("sys.stderr", pipe)
        return pipe


@pytest.fixture
def stderr(monkeypatch: pytest.MonkeyPatch) -> StderrPatch:
    monkeypatch.setenv("COLUMNS", "100")
    monkeypatch.setenv("NO_COLOR", "1")
    return StderrPatch(monkeypatch)


def test_the_demo_s_bar_grows_with_every_step_and_is_wiped(stderr: StderrPatch) -> None:
    terminal = stderr.terminal()
    progress = DemoProgress(4)
    progress.show("starting")
    for _ in range(4):
        progress.step("killed")
    progress.wipe()
    lines = terminal.getvalue().split("\r\x1b[K")
    assert [line.count("█") for line in lines] == [0, 0, 5, 10, 15, 20, 0]
    assert re.search(r"2/4  \d+\.\d/s  0 s left  killed", lines[3]), "done, rate, time left"


def test_the_demo_prints_no_progress_to_a_pipe(stderr: StderrPatch) -> None:
    pipe = stderr.pipe()
    progress = DemoProgress(4)
    progress.step("killed")
    progress.wipe()
    assert pipe.getvalue() == ""


def test_a_command_shows_what_is_done_its_rate_and_the_time_left(stderr: StderrPatch) -> None:
    terminal = stderr.terminal()
    with Progress("redriving") as progress:
        for _ in range(3):
            progress.step("next", total=4)
    shown = terminal.getvalue()
    assert re.search(r"redriving .* 3/4  [\d,]+\.\d/s  0 s left +next", shown)
    assert shown.endswith("\r\x1b[1A\x1b[2K"), "the line is wiped"


def test_a_command_without_a_total_shows_its_count(stderr: StderrPatch) -> None:
    terminal = stderr.terminal()
    with Progress("purging") as progress:
        progress.step(count=1500)
    assert re.search(r"purging .* 1,500  [\d,]+\.\d/s", terminal.getvalue())
    assert "left" not in terminal.getvalue()


def test_a_command_prints_no_progress_to_a_pipe_or_a_dumb_terminal(stderr: StderrPatch) -> None:
    for open_stream in (stderr.pipe, partial(stderr.terminal, "dumb")):
        stream = open_stream()
        with Progress("redriving", 4) as progress:
            progress.step("killed")
        assert stream.getvalue() == ""


def test_the_proof_shows_how_far_it_is(stderr: StderrPatch) -> None:
    terminal = stderr.terminal()
    bar = Bar()
    bar.show(0.5, "soak L redis")
    bar.wipe()
    assert re.search(r" 50% soak L redis", terminal.getvalue())


def test_the_proof_names_each_part_in_a_pipe(stderr: StderrPatch) -> None:
    pipe = stderr.pipe()
    bar = Bar()
    for done in (0.1, 0.2):
        bar.show(done, "soak T redis")
    bar.wipe()
    assert pipe.getvalue() == " 10%  soak T redis\n"
