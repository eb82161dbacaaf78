"""The terminal: what it can show, a progress line, and questions to the operator. In a pipe all is plain text."""

from __future__ import annotations

import io
import os
import select
import shutil
import sys
import time
from typing import Literal, TextIO

from effectonce.errors import InvalidOption

Colour = Literal["", "green", "red", "yellow", "bold", "dim"]

_ANSI_CODES: dict[Colour, str] = {"green": "32", "red": "31", "yellow": "33", "bold": "1", "dim": "2"}
_PIPE_COLUMNS = 120
_PROMPT_POLL_S = 0.2


def replace_unencodable(*streams: TextIO) -> None:
    """Print ``?`` for characters that the terminal's encoding lacks, instead of failing half-way."""
    for stream in streams:
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")


class Screen:
    """A stream to print on, and what it can show."""

    def __init__(self, stream: TextIO | None = None) -> None:
        self.stream = stream if stream is not None else sys.stdout
        self.live = self.stream.isatty() and os.environ.get("TERM") != "dumb"
        self.colours = self.live and not os.environ.get("NO_COLOR")
        self.boxes = self.live and (self.stream.encoding or "").lower().startswith("utf")
        self.width = shutil.get_terminal_size().columns if self.live else _PIPE_COLUMNS

    def paint(self, text: str, colour: Colour) -> str:
        return f"\x1b[{_ANSI_CODES[colour]}m{text}\x1b[0m" if colour and self.colours else text

    def print(self, text: str = "", colour: Colour = "") -> None:
        print(self.paint(text, colour), file=self.stream, flush=True)

    def print_tagged(self, tag: str, text: str, colour: Colour = "") -> None:
        """Print a line that begins with its ``[tag]``."""
        print(f"{self.paint(f'[{tag}]', colour)} {text}", file=self.stream, flush=True)


def progress_bar(screen: Screen, done: float, width: int = 20) -> str:
    """Return a bar that is filled to the share ``done``, from 0 to 1."""
    full = round(min(max(done, 0.0), 1.0) * width)
    on, off = "█░" if screen.boxes else "#."
    return on * full + off * (width - full)


class Progress:
    """Shows how far work is, with its rate and the time left, on one line of a terminal that is wiped at the end.

    Without a total, which is then not known, it shows the count and its rate. Prints nothing in a pipe. It is redrawn
    at most every ``refresh_s`` seconds, so that work in very many steps is not slowed down.
    """

    def __init__(
        self, title: str = "", total: int | None = None, *, stream: TextIO | None = None, refresh_s: float = 0.0
    ) -> None:
        self._screen = Screen(stream if stream is not None else sys.stderr)
        self._title = f"{title}  " if title else ""
        self._total = total
        self._done = 0
        self._refresh_s = refresh_s
        self._started_at = self._shown_at = time.monotonic()

    def __enter__(self) -> Progress:
        self.show()
        return self

    def __exit__(self, *_: object) -> None:
        self.wipe()

    def step(self, text: str = "", *, count: int = 1, total: int | None = None) -> None:
        """Count ``count`` more steps as done. ``text`` says what comes next."""
        self._done += count
        self._total = self._total if total is None else total
        if time.monotonic() - self._shown_at >= self._refresh_s:
            self.show(text)

    def show(self, text: str = "") -> None:
        self._shown_at = time.monotonic()
        if self._screen.live:
            line = f"  {self._title}{self._figures()}{text}"[: self._screen.width - 1]
            print(f"\r\x1b[K{self._screen.paint(line, 'dim')}", end="", file=self._screen.stream, flush=True)

    def _figures(self) -> str:
        rate = self._done / max(time.monotonic() - self._started_at, 0.001)
        if not self._total:
            return f"{self._done:,}  {rate:.1f}/s  " if self._done else ""
        figures = f"{progress_bar(self._screen, self._done / self._total)} {self._done}/{self._total}  "
        return f"{figures}{rate:.1f}/s  {(self._total - self._done) / rate:.0f} s left  " if self._done else figures

    def wipe(self) -> None:
        if self._screen.live:
            print("\r\x1b[K", end="", file=self._screen.stream, flush=True)


class Declined(Exception):
    """The operator said no. Nothing was done."""


def confirm(question: str, *, yes: bool) -> None:
    """Ask on the terminal. Raises `Declined` for any answer but yes, `InvalidOption` without a terminal."""
    if yes:
        return
    if not (sys.stdin.isatty() and sys.stderr.isatty()):
        raise InvalidOption(f"{question} There is no terminal to ask on: repeat it with --yes (--dry-run shows more)")
    print(f"{Screen(sys.stderr).paint(question, 'bold')} [y/N] ", end="", file=sys.stderr, flush=True)
    while sys.platform != "win32" and not select.select([sys.stdin], [], [], _PROMPT_POLL_S)[0]:
        pass  # a Ctrl-C right before a blocking read would take effect only at the end of the line
    if sys.stdin.readline().strip().lower() not in ("y", "yes"):
        raise Declined
