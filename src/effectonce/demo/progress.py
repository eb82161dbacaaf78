"""The progress line of `demo --crash`, which runs without rich."""

from __future__ import annotations

import sys
import time

from effectonce.display.terminal import Screen

_BAR_COLUMNS = 20


class DemoProgress:
    """Shows how far the demo is, with its rate and the time left, on one line of a terminal that is wiped at the end.
    Prints nothing in a pipe."""

    def __init__(self, total: int) -> None:
        self._screen = Screen(sys.stderr)
        self._total = total
        self._done = 0
        self._started_at = time.monotonic()

    def step(self, text: str) -> None:
        """Count one more step as done; ``text`` says which."""
        self._done += 1
        self.show(text)

    def show(self, text: str) -> None:
        if self._screen.live:
            line = f"  {self._bar()} {self._figures()}{text}"[: self._screen.width - 1]
            print(f"\r\x1b[K{self._screen.paint(line, 'dim')}", end="", file=self._screen.stream, flush=True)

    def _bar(self) -> str:
        full = round(self._done / self._total * _BAR_COLUMNS)
        on, off = "█░" if self._screen.boxes else "#."
        return on * full + off * (_BAR_COLUMNS - full)

    def _figures(self) -> str:
        figures = f"{self._done}/{self._total}  "
        if not self._done:
            return figures
        rate = self._done / max(time.monotonic() - self._started_at, 0.001)
        return f"{figures}{rate:.1f}/s  {(self._total - self._done) / rate:.0f} s left  "

    def wipe(self) -> None:
        if self._screen.live:
            print("\r\x1b[K", end="", file=self._screen.stream, flush=True)
