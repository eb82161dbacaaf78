"""Tables, on rich. No text is ever cut: in a terminal it wraps, and in a pipe every row is one line."""

from __future__ import annotations

from collections.abc import Sequence

from rich import box
from rich.console import Console, RenderableType
from rich.table import Table
from rich.text import Text

from effectonce.display.terminal import Screen

_MIN_PROSE_COLUMNS = 28
_GAP = "  "
_NOTHING = ("", "-")


def make_console(screen: Screen) -> Console:
    """Return rich's console for a screen: it prints texts as they are, with colours only where the screen has them."""
    return Console(
        file=screen.stream,
        width=screen.width,
        force_terminal=screen.live,
        color_system="standard" if screen.colours else None,
        markup=False,
        highlight=False,
        emoji=False,
    )


def print_table(heads: Sequence[str], rows: Sequence[Sequence[Text]]) -> None:
    """Print a table on stdout.

    In a pipe every row is one line with aligned columns, for grep and awk. In a terminal the last column is prose: it
    wraps, or becomes a list below the table if there is no room for it. If the other columns are too wide as well,
    every row becomes a block with a line for each column.
    """
    screen = Screen()
    columns = [[Text(head, "bold"), *column] for head, column in zip(heads, zip(*rows, strict=True), strict=True)]
    widths = [max(text.cell_len for text in column) for column in columns]
    if not screen.live:
        _print_lines(columns, widths)
        return
    console = make_console(screen)
    room = screen.width - 3 * len(widths) - 1 - sum(widths[:-1])
    if room >= min(_MIN_PROSE_COLUMNS, widths[-1]):
        console.print(_make_grid(screen, heads, rows))
    elif room + 3 >= 0:
        console.print(_make_grid(screen, heads[:-1], [row[:-1] for row in rows]))
        if prose := [(row[0], row[-1]) for row in rows if row[-1].plain not in _NOTHING]:
            console.print()
            console.print(Text(f"{heads[-1]}:", "bold"))
            console.print(_make_list(prose))
    else:
        for row in rows:
            pairs = [(Text(head, "dim"), text) for head, text in zip(heads, row, strict=True)]
            console.print(_make_list([(head, text) for head, text in pairs if text.plain not in _NOTHING]))
            console.print()


def _print_lines(columns: Sequence[Sequence[Text]], widths: Sequence[int]) -> None:
    for row in zip(*columns, strict=True):
        cells = [text.plain + " " * (width - text.cell_len) for text, width in zip(row, widths, strict=True)]
        print(_GAP.join(cells).rstrip())


def _make_grid(screen: Screen, heads: Sequence[str], rows: Sequence[Sequence[Text]]) -> RenderableType:
    """Return a table whose last column wraps, at words where there are any."""
    grid = Table(box=box.SQUARE if screen.boxes else box.ASCII)
    for number, head in enumerate(heads, 1):
        grid.add_column(Text(head, "bold"), no_wrap=number < len(heads), overflow="fold")
    for row in rows:
        grid.add_row(*row)
    return grid


def _make_list(pairs: Sequence[tuple[Text, Text]]) -> RenderableType:
    """Return lines of a name and a text, which wraps."""
    pairs_table = Table.grid(padding=(0, len(_GAP)))
    pairs_table.add_column(overflow="fold")
    pairs_table.add_column(overflow="fold")
    for name, text in pairs:
        pairs_table.add_row(name, text)
    return pairs_table
