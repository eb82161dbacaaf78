"""The shapes in which programs write the handler of a signal that is to end them."""

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


def told(why: str, number: int, frame: FrameType | None) -> None:
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
    "partial": functools.partial(told, "stop"),
    "object": Stopping(),
    "method": Stopping().stop,
}


@contextmanager
def handled(handler: Any) -> Iterator[None]:
    """SIGTERM goes to ``handler``."""
    before = signal.signal(signal.SIGTERM, handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
