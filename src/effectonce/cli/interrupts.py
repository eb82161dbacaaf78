"""Ctrl-C in commands that work step by step: the current step ends, the rest is skipped."""

from __future__ import annotations

import os
import signal
from types import FrameType


def is_interrupt(error: BaseException | None) -> bool:
    """Whether Ctrl-C is behind ``error``. Up to Python 3.11 a class that is being defined, as in an import, turns it
    into a `RuntimeError`."""
    while error is not None:
        if isinstance(error, KeyboardInterrupt):
            return True
        error = error.__cause__ or error.__context__
    return False


class GracefulInterrupt:
    """Turns Ctrl-C into a request to stop after the current step. A second Ctrl-C interrupts at once."""

    requested = False

    def __enter__(self) -> GracefulInterrupt:
        self._before = signal.signal(signal.SIGINT, self._handle)
        return self

    def __exit__(self, *_: object) -> None:
        signal.signal(signal.SIGINT, self._before)

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if self.requested:
            raise KeyboardInterrupt
        self.requested = True
        # Not with `print`: the signal may have interrupted a `print`, which cannot be entered twice.
        os.write(2, b"\nstopping after this step (Ctrl-C again: at once)\n")

    def raise_if_requested(self) -> None:
        """End the command as Ctrl-C does, if it was pressed."""
        if self.requested:
            raise KeyboardInterrupt
