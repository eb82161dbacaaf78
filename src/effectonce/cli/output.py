"""The output of commands: pages, details, timelines and figures for people, or JSON for programs."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Mapping, Sequence
from typing import Any, Final

from msgspec import json
from rich.text import Text

from effectonce.core.codec import FORMAT_VERSION, without_trace
from effectonce.display.formatting import STATE_WORDS, format_ago, format_iso
from effectonce.display.terminal import Colour, Screen
from effectonce.display.timeline import Moment
from effectonce.errors import EffectOnceError, show

from .tables import print_table

#: The colour of a state or a tone (see `effectonce.display`), by its name or its word.
COLOURS: dict[str, Colour] = {
    "done": "green",
    "failed": "red",
    "refused": "bold",
    "timed out": "red",
    "unreadable": "red",
    "in_doubt": "yellow",
    "in doubt": "yellow",
    "parked": "yellow",
    "claimed": "bold",
    "running": "bold",
    "free": "dim",
}

WHOLE: Final = sys.maxsize
"""As the limit of `show`: nothing is cut."""

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
    """Print a page: as a table of the columns in ``heads``, or as one JSON object with all columns. A terminal shows
    only the columns in which there is something.

    ``none`` is printed where there are no rows. The cursor of the next page goes to stderr: a pipe sees rows only.
    """
    if as_json:
        print_json({name: rows, "cursor": cursor})
        return
    if rows:
        if Screen().live:
            heads = [head for head in heads if any(row[head] not in (None, "") for row in rows)]
        cells = [[_cell(head, row[head]) for head in heads] for row in rows]
        print_table([head.replace("_", " ") for head in heads], cells)
    elif cursor is None:
        print(none)
    if cursor is not None:
        # Of a list of dead letters it is an id, which may contain control characters.
        how = f"--cursor {shlex.quote(cursor)}" if cursor.isprintable() else "--json prints the cursor"
        print(f"there may be more: {how}", file=sys.stderr)


def _cell(head: str, value: object) -> Text:
    text = "" if value is None else show(value, WHOLE)
    if head == "state":
        return Text(_STATE_WORDS.get(text, text), COLOURS.get(text, ""))
    return Text(text or "-")


def print_details(facts: Mapping[str, Any]) -> None:
    """Print a line for each of the facts about one thing."""
    screen = Screen()
    width = max(len(name) for name in facts) + 2
    for name, value in facts.items():
        if value is None:
            value = "-"
        text = value if isinstance(value, str) else json.encode(value).decode()
        screen.print(f"{screen.paint(name.replace('_', ' ').ljust(width), 'dim')}{show(text, WHOLE)}")


def print_timeline(moments: Sequence[Moment], now: int) -> None:
    """Print a line for each moment: when it was, how long ago that is, and what happened."""
    screen = Screen()
    for moment in moments:
        detail = f": {moment.detail}" if moment.detail else ""
        screen.print(f"{format_iso(moment.at)}  {format_ago(moment.at, now):>12}  {moment.what}{detail}")


def timeline_facts(moments: Sequence[Moment]) -> list[dict[str, str | None]]:
    """Return the moments as JSON has them."""
    return [{"at": format_iso(moment.at), "what": moment.what, "detail": moment.detail} for moment in moments]


def print_figure(name: str, figure: str, colour: Colour = "") -> None:
    """Print one figure on a line, aligned with those above and below."""
    Screen().print(f"{name:<16}{figure or '-':>10}", colour)


def decode_stored(stored: bytes | None) -> Any:
    """Decode a stored result or note, as far as that is possible without its program."""
    if stored is None:
        return None
    stored, _ = without_trace(stored)
    try:
        return json.decode(stored[1:] if stored[:1] == FORMAT_VERSION else stored)
    except (ValueError, EffectOnceError):
        return f"<{len(stored)} bytes that cannot be read here>"
