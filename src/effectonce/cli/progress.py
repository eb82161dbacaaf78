"""The progress of long commands, on rich: on stderr, and in a terminal only."""

from __future__ import annotations

import sys

from rich.progress import BarColumn, ProgressColumn, Task, TextColumn
from rich.progress import Progress as RichProgress
from rich.table import Column
from rich.text import Text

from effectonce.display.terminal import Screen

from .tables import make_console

BAR_COLUMNS = 20


class FiguresColumn(ProgressColumn):
    """How much is done, at which rate, and how long the rest takes, where the total is known."""

    def render(self, task: Task) -> Text:
        done = f"{task.completed:,.0f}" if task.total is None else f"{task.completed:,.0f}/{task.total:,.0f}"
        if not task.completed:
            return Text("" if task.total is None else done)
        rate = task.completed / max(task.elapsed or 0.0, 0.001)
        left = "" if task.total is None else f"  {max(0.0, task.total - task.completed) / rate:,.0f} s left"
        return Text(f"{done}  {rate:,.1f}/s{left}")


class Progress:
    """Shows how far work is, with its rate and the time left, on one line of the terminal that is wiped at the end.

    Prints nothing in a pipe. Any thread may call `step`.
    """

    def __init__(self, title: str = "", total: int | None = None) -> None:
        screen = Screen(sys.stderr)
        self._bar = RichProgress(
            TextColumn("{task.description}", markup=False),
            BarColumn(bar_width=BAR_COLUMNS),
            FiguresColumn(),
            TextColumn("{task.fields[text]}", markup=False, table_column=Column(no_wrap=True, overflow="crop")),
            console=make_console(screen),
            transient=True,
            disable=not screen.live,
            redirect_stdout=sys.stdout.isatty(),  # its lines then stand above the progress
        )
        self._task = self._bar.add_task(title, total=total, text="")

    def __enter__(self) -> Progress:
        self._bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._bar.stop()

    def step(self, text: str = "", *, count: int = 1, total: int | None = None) -> None:
        """Count ``count`` more steps as done. ``text`` says what comes next; ``total`` is how many steps there are."""
        self._bar.update(self._task, advance=count, text=text, total=total)
