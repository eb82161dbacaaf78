"""The terminal: what it can show, and questions to the operator. In a pipe all is plain text.

`effectonce demo` prints with it, too, so nothing here needs rich.
"""

from __future__ import annotations

import io
import os
import select
import shutil
import sys
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
        self._stream = stream
        self.live = self.stream.isatty() and os.environ.get("TERM") != "dumb"
        self.colours = self.live and not os.environ.get("NO_COLOR")
        self.boxes = self.live and (self.stream.encoding or "").lower().startswith("utf")
        self.width = shutil.get_terminal_size().columns if self.live else _PIPE_COLUMNS

    @property
    def stream(self) -> TextIO:
        """The stream; if none was given, standard output as it is now: progress redirects it."""
        return self._stream if self._stream is not None else sys.stdout

    def paint(self, text: str, colour: Colour) -> str:
        return f"\x1b[{_ANSI_CODES[colour]}m{text}\x1b[0m" if colour and self.colours else text

    def print(self, text: str = "", colour: Colour = "") -> None:
        print(self.paint(text, colour), file=self.stream, flush=True)

    def print_tagged(self, tag: str, text: str, colour: Colour = "") -> None:
        """Print a line that begins with its ``[tag]``."""
        print(f"{self.paint(f'[{tag}]', colour)} {text}", file=self.stream, flush=True)


class Declined(Exception):
    """The operator said no. Nothing was done."""


def confirm(question: str, *, yes: bool) -> None:
    """Ask on the terminal. Raises `Declined` for any answer but yes, `InvalidOption` without a terminal."""
    if yes:
        return
    if not (sys.stdin.isatty() and sys.stderr.isatty()):
        raise InvalidOption(
            f"{question} There is no terminal to ask on: run it again with --yes (or --dry-run, to look first)"
        )
    print(f"{Screen(sys.stderr).paint(question, 'bold')} [y/N] ", end="", file=sys.stderr, flush=True)
    while sys.platform != "win32" and not select.select([sys.stdin], [], [], _PROMPT_POLL_S)[0]:
        pass  # a Ctrl-C right before a blocking read would take effect only at the end of the line
    if sys.stdin.readline().strip().lower() not in ("y", "yes"):
        raise Declined
