"""The output of commands: pages, details and figures for people, or JSON for programs."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from msgspec import json

from effectonce.display.formatting import STATE_WORDS
from effectonce.errors import show

from .tables import Cell, table
from .terminal import Colour, Screen

#: The colour of a state or a tone (see `effectonce.display`), by its name or its word.
COLOURS: dict[str, Colour] = {
    "done": "green",
    "failed": "red",
    "timed out": "red",
    "unreadable": "red",
    "in_doubt": "yellow",
    "in doubt": "yellow",
    "parked": "yellow",
    "claimed": "bold",
    "running": "bold",
    "free": "dim",
}

MAX_CELL_CHARACTERS = 300

_STATE_WORDS: dict[str, str] = dict(STATE_WORDS.items())


def print_json(value: object) -> None:
    print(json.encode(value).decode(), flush=True)


def report(as_json: bool, text: str, **facts: object) -> None:
    """Print ``text``, or the ``facts`` as one JSON object."""
    if as_json:
        print_json(facts)
    else:
        print(text, flush=True)


def print_page(
    as_json: bool, name: str, rows: Sequence[Mapping[str, Any]], heads: Sequence[str], *, none: str, cursor: str | None
) -> None:
    """Print a page: as a table of the columns in ``heads`` that are not empty, or as one JSON object with all columns.

    ``none`` is printed where there are no rows. The cursor of the next page goes to stderr: a pipe sees rows only.
    """
    if as_json:
        print_json({name: rows, "cursor": cursor})
        return
    if rows:
        heads = [head for head in heads if any(row[head] not in (None, "") for row in rows)]
        cells = [[_cell(head, row[head]) for head in heads] for row in rows]
        print("\n".join(table(Screen(), [head.replace("_", " ") for head in heads], cells)))
    elif cursor is None:
        print(none)
    if cursor is not None:
        # The cursor holds a key, which may contain control characters.
        how = f"--cursor {shlex.quote(cursor)}" if cursor.isprintable() else "--json prints the cursor"
        print(f"there may be more: {how}", file=sys.stderr)


def _cell(head: str, value: object) -> Cell:
    text = "" if value is None else show(value, MAX_CELL_CHARACTERS)
    if head == "state":
        return Cell(_STATE_WORDS.get(text, text), COLOURS.get(text, ""))
    return Cell(text or "-")


def print_details(facts: Mapping[str, Any]) -> None:
    """Print a line for each of the facts about one thing."""
    screen = Screen()
    width = max(len(name) for name in facts) + 2
    for name, value in facts.items():
        if value is None:
            value = "-"
        text = value if isinstance(value, str) else json.encode(value).decode()
        screen.print(f"{screen.paint(name.replace('_', ' ').ljust(width), 'dim')}{show(text, 4000)}")


def print_figure(name: str, figure: str, colour: Colour = "") -> None:
    """Print one figure on a line, aligned with those above and below."""
    Screen().print(f"{name:<16}{figure or '-':>10}", colour)
