"""How the command line prints: colours and boxes in a terminal, plain ASCII in a pipe, secrets nowhere."""

from __future__ import annotations

import io
import os
import select
import shutil
import sys
import textwrap
import time
from collections.abc import Iterable, Sequence
from itertools import zip_longest
from typing import Literal, TextIO
from urllib.parse import unquote

from msgspec import Struct

from effectonce.errors import ConfigurationError, EffectOnceError, InvalidOption, show
from effectonce.values.urls import Address

Colour = Literal["", "green", "red", "yellow", "bold", "dim"]

_CODES: dict[Colour, str] = {"green": "32", "red": "31", "yellow": "33", "bold": "1", "dim": "2"}
_MIN_PROSE_COLUMNS = 28
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
        return f"\x1b[{_CODES[colour]}m{text}\x1b[0m" if colour and self.colours else text

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


def display_width(text: str) -> int:
    """Return how many terminal columns ``text`` takes: two for an ideograph, none for a combining accent."""
    if text.isascii():
        return len(text)
    try:
        from rich.cells import cell_len
    except ImportError:  # `demo` runs without rich, and prints no such text
        return len(text)
    return cell_len(text)


def pad(text: str, width: int) -> str:
    return text + " " * (width - display_width(text))


def wrap(text: str, width: int) -> list[str]:
    """Return ``text`` in lines of at most ``width`` columns."""
    lines = textwrap.wrap(text, width, break_on_hyphens=False)
    if all(display_width(line) <= width for line in lines):
        return lines
    from rich.cells import chop_cells

    return [part for line in lines for part in chop_cells(line, width)]


class Cell(Struct, frozen=True):
    """One cell of a table; its text may have several lines."""

    text: str
    colour: Colour = ""


def table(screen: Screen, heads: Sequence[str], rows: Iterable[Sequence[Cell]]) -> list[str]:
    """Return the lines of a table. The last column is prose: it gets the remaining width, or follows as a list."""
    columns = [[Cell(head, "bold"), *column] for head, column in zip(heads, zip(*rows, strict=True), strict=True)]
    widths = [max(display_width(line) for cell in column for line in cell.text.splitlines()) for column in columns]
    remaining = screen.width - sum(widths[:-1]) - 3 * len(widths) - 1
    if remaining < min(_MIN_PROSE_COLUMNS, widths[-1]):
        return [*_grid(screen, columns[:-1], widths[:-1]), "", *_prose_list(screen, columns[0], columns[-1])]
    return _grid(screen, columns, [*widths[:-1], min(widths[-1], remaining)])


def _grid(screen: Screen, columns: Sequence[Sequence[Cell]], widths: Sequence[int]) -> list[str]:
    lines = "┌┬┐├┼┤└┴┘─" if screen.boxes else "+++++++++-"

    def rule(left: str, middle: str, right: str) -> str:
        return left + middle.join(lines[9] * (width + 2) for width in widths) + right

    head, *body = zip(*columns, strict=True)
    out = [rule(*lines[0:3]), *_row(screen, head, widths), rule(*lines[3:6])]
    for row in body:
        out += _row(screen, row, widths)
    return [*out, rule(*lines[6:9])]


def _row(screen: Screen, row: Sequence[Cell], widths: Sequence[int]) -> list[str]:
    bar = "│" if screen.boxes else "|"
    cells = [
        [part for line in cell.text.splitlines() for part in wrap(line, width)]
        for cell, width in zip(row, widths, strict=True)
    ]
    out = []
    for texts in zip_longest(*cells, fillvalue=""):
        parts = [
            screen.paint(pad(text, width), cell.colour) for text, width, cell in zip(texts, widths, row, strict=True)
        ]
        out.append(f"{bar} " + f" {bar} ".join(parts) + f" {bar}")
    return out


def _prose_list(screen: Screen, names: Sequence[Cell], prose: Sequence[Cell]) -> list[str]:
    indent = max(display_width(cell.text) for cell in names) + 2
    out = []
    for name, cell in zip(names[1:], prose[1:], strict=True):
        first, *more = wrap(cell.text, max(_MIN_PROSE_COLUMNS, screen.width - indent - 1)) or [""]
        out += [pad(name.text, indent) + first, *(" " * indent + line for line in more)]
    return [screen.paint(f"{prose[0].text.capitalize()}:", prose[0].colour), *out]


def error_line(error: EffectOnceError, arguments: Sequence[str] = ()) -> str:
    """Return ``effectonce: [code] message`` on one line, with the address of the docs where they say more."""
    message = show(redact(str(error), arguments), 2000)
    more = "" if isinstance(error, ConfigurationError) else f" (docs: {error.help_url})"
    return f"effectonce: [{error.code}] {message}{more}"


def redact(text: str, arguments: Iterable[str]) -> str:
    """Return ``text`` without the secrets of URLs in ``arguments``, the environment and the settings.

    Our own errors hold no secrets; the errors of drivers may repeat the URL they were given.
    """
    environment = (os.environ.get(f"EFFECTONCE_{name}", "") for name in ("STORE", "BROKER"))
    for word in (*arguments, *environment, *_secret_urls):
        url = word[word.index("=") + 1 :] if word.startswith("--") and "=" in word else word
        if "://" not in url:
            continue
        text = text.replace(url, without_secrets(url))
        for secret in _secrets(url):
            text = text.replace(secret, "***")
    return text


_secret_urls: set[str] = set()


def add_secret(url: str) -> None:
    """Let `redact` remove ``url`` from now on."""
    _secret_urls.add(url)


def without_secrets(url: str) -> str:
    """Return ``url`` without its secrets, as it may be printed."""
    try:
        address = Address(url)
    except InvalidOption:
        address = None
    if address is None or not address.scheme:
        return f"{show(url.partition('://')[0])}://***"
    return show(address, 500)


def _secrets(url: str) -> Iterable[str]:
    """Return the password in ``url``, as written and decoded. Very short ones are left out: they match common words."""
    rest = url.partition("://")[2]
    written = rest.rpartition("@")[0].partition(":")[2]
    return [secret for secret in (written, unquote(written)) if len(secret) > 3]
