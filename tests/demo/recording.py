"""The recording in the README: ``python -m tests.demo.recording docs/images/demo.svg``.

It runs the two demos in a terminal of its own, and writes what they print as an SVG that plays in a browser, line by
line, in the colours of the terminal.
"""

from __future__ import annotations

import os
import pty
import subprocess
import sys
from collections.abc import Iterator
from html import escape
from itertools import pairwise
from pathlib import Path
from typing import Final

from rich.console import Console
from rich.text import Text

COLUMNS, ROWS = 104, 39
CHAR_WIDTH, LINE_HEIGHT, MARGIN = 7.8, 18, 16
#: How long the command is on the screen before its output, each line of output comes after the one before it, and the
#: whole output stays, in seconds.
COMMAND_S, LINE_S, STAY_S = 1.2, 0.12, 7.0
SHOWN: Final = ((), ("--crash",))
_console: Final = Console(color_system="truecolor")
#: By the number of the terminal's colour: red, green, yellow.
COLOURS: Final = {1: "#ff7b72", 2: "#7ee787", 3: "#e3b341"}


def record(*options: str) -> list[Text]:
    """Run ``effectonce demo`` in a terminal. Returns its lines as they are in the end."""
    ours, theirs = pty.openpty()
    environment = {**os.environ, "COLUMNS": str(COLUMNS), "LINES": "50", "TERM": "xterm-256color"}
    environment.pop("NO_COLOR", None)
    command = [sys.executable, "-m", "effectonce", "demo", *options]
    with subprocess.Popen(command, stdin=theirs, stdout=theirs, stderr=theirs, env=environment) as process:
        os.close(theirs)
        printed = b"".join(_read(ours))
    assert process.returncode == 0, printed.decode()
    os.close(ours)
    lines = [line.rpartition("\r\x1b[K")[2].rstrip("\r") for line in printed.decode().split("\n")]
    return [Text.from_ansi(line) for line in lines]


def _read(terminal: int) -> Iterator[bytes]:
    while True:
        try:
            chunk = os.read(terminal, 65536)
        except OSError:  # Linux says so where the other side is closed
            return
        if not chunk:
            return
        yield chunk


def svg(recordings: dict[str, list[Text]]) -> str:
    """Draw what each command has printed, one command after the other, for ever."""
    durations = [COMMAND_S + LINE_S * len(lines) + STAY_S for lines in recordings.values()]
    total = sum(durations)
    width, height = COLUMNS * CHAR_WIDTH + 2 * MARGIN, ROWS * LINE_HEIGHT + 2 * MARGIN
    body, styles, began = [], [], 0.0
    for number, ((command, lines), duration) in enumerate(zip(recordings.items(), durations, strict=True)):
        prompt = Text.assemble(("$ ", "color(2)"), command)
        for row, line in enumerate([prompt, *lines]):
            appears = began + (COMMAND_S + LINE_S * row if row else 0.3)
            name = f"l{number}-{row}"
            styles.append(_visible(name, appears / total, (began + duration) / total))
            y = MARGIN + (row + 1) * LINE_HEIGHT - 5
            body.append(f'<text x="{MARGIN}" y="{y}" style="animation-name:{name}">{_spans(line)}</text>')
        began += duration
    title = "One payment is delivered twice and charged once; then workers are killed, and the charges counted"
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:.0f} {height}" role="img" aria-label="{title}">'
        f"<title>{title}</title><style>"
        "text{font:13px ui-monospace,SFMono-Regular,Menlo,Consolas,monospace;fill:#e6edf3;white-space:pre;"
        f"visibility:hidden;animation-duration:{total:.1f}s;animation-iteration-count:infinite;"
        "animation-timing-function:step-end}"
        f'{"".join(styles)}</style><rect width="100%" height="100%" rx="10" fill="#0d1117"/>{"".join(body)}</svg>\n'
    )


def _visible(name: str, begin: float, end: float) -> str:
    """Keyframes of what is visible between two shares of the whole."""
    return (
        f"@keyframes {name}{{0%{{visibility:hidden}}{begin:.2%}{{visibility:visible}}"
        f"{min(end, 1.0):.2%}{{visibility:hidden}}}}"
    )


def _spans(line: Text) -> str:
    """Each part of ``line`` in its colour, where it would stand on a terminal whatever the width of the font."""
    spans, column = [], 0
    for text, colour, dim in _pieces(line):
        if text.strip():
            x = MARGIN + column * CHAR_WIDTH
            style = f' fill="{COLOURS[colour]}"' if colour in COLOURS else ' opacity=".6"' if dim else ""
            spans.append(f'<tspan x="{x:.1f}" textLength="{len(text) * CHAR_WIDTH:.1f}"{style}>{escape(text)}</tspan>')
        column += len(text)
    return "".join(spans)


def _pieces(line: Text) -> Iterator[tuple[str, int | None, bool]]:
    """The parts of ``line`` that have one style: their text, the number of their colour, and whether they are dim."""
    ends = sorted({0, len(line), *(edge for span in line.spans for edge in (span.start, span.end))})
    for start, end in pairwise(ends):
        style = line.get_style_at_offset(_console, start)
        colour = style.color.number if style.color is not None else None
        yield line.plain[start:end], colour, bool(style.dim)


def main(target: str) -> None:
    recordings = {" ".join(("effectonce demo", *options)): record(*options) for options in SHOWN}
    Path(target).write_text(svg(recordings))


if __name__ == "__main__":
    main(sys.argv[1])
