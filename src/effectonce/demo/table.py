"""The table of `demo --crash`, which runs without rich."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import zip_longest
from textwrap import wrap

from msgspec import Struct

from effectonce.display.terminal import Colour, Screen

_MIN_PROSE_COLUMNS = 28


class Cell(Struct, frozen=True):
    """One cell of a table; its text may have several lines."""

    text: str
    colour: Colour = ""


def draw_table(screen: Screen, heads: Sequence[str], rows: Iterable[Sequence[Cell]]) -> list[str]:
    """Return the lines of a table. The last column is prose: it gets the remaining width, or becomes a list below the
    table if that is too narrow."""
    columns = [[Cell(head, "bold"), *column] for head, column in zip(heads, zip(*rows, strict=True), strict=True)]
    widths = [max(len(line) for cell in column for line in cell.text.splitlines()) for column in columns]
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
            screen.paint(text.ljust(width), cell.colour) for text, width, cell in zip(texts, widths, row, strict=True)
        ]
        out.append(f"{bar} " + f" {bar} ".join(parts) + f" {bar}")
    return out


def _prose_list(screen: Screen, names: Sequence[Cell], prose: Sequence[Cell]) -> list[str]:
    indent = max(len(cell.text) for cell in names) + 2
    out = []
    for name, cell in zip(names[1:], prose[1:], strict=True):
        first, *more = wrap(cell.text, max(_MIN_PROSE_COLUMNS, screen.width - indent - 1)) or [""]
        out += [name.text.ljust(indent) + first, *(" " * indent + line for line in more)]
    return [screen.paint(f"{prose[0].text.capitalize()}:", prose[0].colour), *out]
