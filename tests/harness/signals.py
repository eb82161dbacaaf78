"""Handlers of a signal that ends the program, in every form in which programs write them."""

import functools
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any


def plain(number: int, frame: FrameType | None) -> None:
    sys.exit(3)


def once(number: int, frame: FrameType | None) -> None:
    """A second signal is to end the process at once."""
    signal.signal(number, signal.SIG_DFL)
    sys.exit(3)


def with_reason(why: str, number: int, frame: FrameType | None) -> None:
    sys.exit(3)


class Stopping:
    def __call__(self, number: int, frame: FrameType | None) -> None:
        sys.exit(3)

    def stop(self, number: int, frame: FrameType | None) -> None:
        sys.exit(3)


HANDLERS: dict[str, Any] = {
    "function": plain,
    "lambda": lambda number, frame: sys.exit(3),
    "takes itself away": once,
    "partial": functools.partial(with_reason, "stop"),
    "object": Stopping(),
    "method": Stopping().stop,
}


@contextmanager
def signal_handled_by(handler: Any) -> Iterator[None]:
    """Make ``handler`` the handler of SIGTERM in the block."""
    before = signal.signal(signal.SIGTERM, handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
