"""What the command line prints with: colour and boxes in a terminal, plain ASCII in a pipe, no secrets anywhere."""

from __future__ import annotations

import io
import os
import select
import shutil
import sys
import textwrap
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Literal, TextIO
from urllib.parse import unquote

from msgspec import Struct

from effectonce.errors import ConfigurationError, EffectOnceError, InvalidOption, show
from effectonce.values.urls import Address

Colour = Literal["", "green", "red", "yellow", "bold", "dim"]

_CODES: dict[Colour, str] = {"green": "32", "red": "31", "yellow": "33", "bold": "1", "dim": "2"}
_NARROWEST = 28
_IN_A_PIPE = 120


def be_lenient(*streams: TextIO) -> None:
    """Print ``?`` for what the terminal's encoding lacks, instead of failing half-way."""
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
        self.width = shutil.get_terminal_size().columns if self.live else _IN_A_PIPE

    def paint(self, text: str, colour: Colour) -> str:
        return f"\x1b[{_CODES[colour]}m{text}\x1b[0m" if colour and self.colours else text

    def say(self, text: str = "", colour: Colour = "") -> None:
        print(self.paint(text, colour), file=self.stream, flush=True)

    def tell(self, tag: str, text: str, colour: Colour = "") -> None:
        """A line that begins with its ``[tag]``."""
        print(f"{self.paint(f'[{tag}]', colour)} {text}", file=self.stream, flush=True)


def filled(screen: Screen, done: float, width: int = 20) -> str:
    """A bar that is full as far as ``done``, from 0 to 1."""
    full = round(min(max(done, 0.0), 1.0) * width)
    on, off = "█░" if screen.boxes else "#."
    return on * full + off * (width - full)


class Progress:
    """How far the work is, with its rate and the time left: a bar on one line of a terminal that is wiped at the end;
    nothing in a pipe. Needs no rich."""

    def __init__(self, total: int = 0, stream: TextIO | None = None) -> None:
        self._screen = Screen(stream if stream is not None else sys.stderr)
        self._total = total
        self._done = 0
        self._began = time.monotonic()

    def show(self, text: str) -> None:
        if self._screen.live:
            bar = f"{filled(self._screen, self._done / self._total)} " if self._total else ""
            line = f"  {bar}{self._done}/{self._total}  {self._pace()}{text}"[: self._screen.width - 1]
            print(f"\r\x1b[K{self._screen.paint(line, 'dim')}", end="", file=self._screen.stream, flush=True)

    def _pace(self) -> str:
        if not (self._done and self._total):
            return ""
        rate = self._done / max(time.monotonic() - self._began, 0.001)
        return f"{rate:.1f}/s  {(self._total - self._done) / rate:.0f} s left  "

    def step(self, text: str, total: int | None = None) -> None:
        self._done += 1
        self._total = self._total if total is None else total
        self.show(text)

    def wipe(self) -> None:
        if self._screen.live:
            print("\r\x1b[K", end="", file=self._screen.stream, flush=True)


@contextmanager
def bar(title: str, total: int | None = None) -> Iterator[Callable[[int], None]]:
    """How far long work is, with its rate and the time left, on stderr; ``advance(n)``. Nothing in a pipe.

    ``total`` None: nobody knows how much there is; then it is counted, and the time that it takes.
    """
    screen = Screen(sys.stderr)
    if not screen.live:
        yield lambda count: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, Progress, ProgressColumn, Task, TextColumn, TimeElapsedColumn
    from rich.progress import TimeRemainingColumn as TimeLeft
    from rich.text import Text

    class Rate(ProgressColumn):
        def render(self, task: Task) -> Text:
            if task.total is None and not task.completed:
                return Text()
            speed = task.finished_speed or task.speed
            count = f"{int(task.completed):,}" + (f"/{int(task.total):,}" if task.total is not None else "")
            return Text(f"{count}  {'-' if speed is None else f'{speed:,.0f}'}/s")

    console = Console(stderr=True, no_color=not screen.colours, highlight=False)
    last = [TimeElapsedColumn()] if total is None else [TextColumn("left"), TimeLeft()]
    columns = (TextColumn("{task.description}"), BarColumn(), Rate(), *last)
    with Progress(*columns, console=console, transient=True) as progress:
        task = progress.add_task(title, total=total)
        yield lambda count: progress.advance(task, count)


class Declined(Exception):
    """The operator said no. Nothing was done."""


def confirm(question: str, *, yes: bool) -> None:
    """Ask on the terminal; `Declined` for anything but a yes. Without a terminal only ``yes`` will do."""
    if yes:
        return
    if not (sys.stdin.isatty() and sys.stderr.isatty()):
        raise InvalidOption(f"{question} There is no terminal to ask on: repeat it with --yes (--dry-run shows more)")
    print(f"{Screen(sys.stderr).paint(question, 'bold')} [y/N] ", end="", file=sys.stderr, flush=True)
    while sys.platform != "win32" and not select.select([sys.stdin], [], [], 0.2)[0]:
        pass  # a Ctrl-C just before a read would wait for the line to end; this way it waits for the fifth of a second
    if sys.stdin.readline().strip().lower() not in ("y", "yes"):
        raise Declined


def columns_of(text: str) -> int:
    """How many columns of a terminal ``text`` takes: an ideograph two, an accent of its own none."""
    if text.isascii():
        return len(text)
    try:
        from rich.cells import cell_len
    except ImportError:  # `demo` does without, and has no such text
        return len(text)
    return cell_len(text)


def padded(text: str, width: int) -> str:
    return text + " " * (width - columns_of(text))


def wrapped(text: str, width: int) -> list[str]:
    """``text`` in lines of at most ``width`` columns."""
    lines = textwrap.wrap(text, width, break_on_hyphens=False)
    if all(columns_of(line) <= width for line in lines):
        return lines
    from rich.cells import chop_cells

    return [part for line in lines for part in chop_cells(line, width)]


class Cell(Struct, frozen=True):
    """One cell of a table; its text may have several lines."""

    text: str
    colour: Colour = ""


def table(screen: Screen, heads: Sequence[str], rows: Iterable[Sequence[Cell]]) -> list[str]:
    """Aligned lines. The last column is prose: it takes what width is left, or follows as a list if that is little."""
    columns = [[Cell(head, "bold"), *column] for head, column in zip(heads, zip(*rows, strict=True), strict=True)]
    widths = [max(columns_of(line) for cell in column for line in cell.text.splitlines()) for column in columns]
    left = screen.width - sum(widths[:-1]) - 3 * len(widths) - 1
    if left < min(_NARROWEST, widths[-1]):
        return [*_grid(screen, columns[:-1], widths[:-1]), "", *_listed(screen, columns[0], columns[-1])]
    return _grid(screen, columns, [*widths[:-1], min(widths[-1], left)])


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
        [part for line in cell.text.splitlines() for part in wrapped(line, width)]
        for cell, width in zip(row, widths, strict=True)
    ]
    out = []
    for at in range(max(map(len, cells))):
        parts = [
            screen.paint(padded(lines[at] if at < len(lines) else "", width), cell.colour)
            for lines, width, cell in zip(cells, widths, row, strict=True)
        ]
        out.append(f"{bar} " + f" {bar} ".join(parts) + f" {bar}")
    return out


def _listed(screen: Screen, names: Sequence[Cell], prose: Sequence[Cell]) -> list[str]:
    indent = max(columns_of(cell.text) for cell in names) + 2
    out = []
    for name, cell in zip(names[1:], prose[1:], strict=True):
        first, *more = wrapped(cell.text, max(_NARROWEST, screen.width - indent - 1)) or [""]
        out += [padded(name.text, indent) + first, *(" " * indent + line for line in more)]
    return [screen.paint(f"{prose[0].text.capitalize()}:", prose[0].colour), *out]


def error_line(error: EffectOnceError, arguments: Sequence[str] = ()) -> str:
    """``effectonce: [code] message``, on one line; and where the code is explained, where that says more."""
    message = show(redacted(str(error), arguments), 2000)
    more = "" if isinstance(error, ConfigurationError) else f" (docs: {error.help_url})"
    return f"effectonce: [{error.code}] {message}{more}"


def redacted(text: str, arguments: Iterable[str]) -> str:
    """``text`` without the secrets that came in as URLs, by ``arguments`` or the environment.

    Errors of ours hold none; this is for what others say about what they were given.
    """
    environment = (os.environ.get(f"EFFECTONCE_{name}", "") for name in ("STORE", "BROKER"))
    for given in (*arguments, *environment, *_secret):
        url = given[given.index("=") + 1 :] if given.startswith("--") and "=" in given else given
        if "://" not in url:
            continue
        text = text.replace(url, without_secrets(url))
        for secret in _secrets(url):
            text = text.replace(secret, "***")
    return text


_secret: set[str] = set()


def keep_secret(url: str) -> None:
    """Redact ``url`` from now on, wherever it came from."""
    _secret.add(url)


def without_secrets(url: str) -> str:
    """``url`` as it may be printed."""
    try:
        address = Address(url)
    except InvalidOption:
        address = None
    if address is None or not address.scheme:
        return f"{show(url.partition('://')[0])}://***"
    return show(address, 500)


def _secrets(url: str) -> Iterable[str]:
    """The password in ``url``, as written and as meant. A very short one would only deface the text: left."""
    rest = url.partition("://")[2]
    written = rest.rpartition("@")[0].partition(":")[2]
    return [secret for secret in (written, unquote(written)) if len(secret) > 3]
