"""An exception in one line of text, as intents, sagas, outboxes and dead letters store it."""

from __future__ import annotations

from os import path
from traceback import walk_tb
from typing import Final

from effectonce.errors import scrub_urls, show

from .interrupts import raise_interrupt

MAX_FRAMES: Final = 4
MAX_FRAME_CHARACTERS: Final = 200
_OWN_FOLDER: Final = path.dirname(path.dirname(__file__)) + path.sep


def describe_error(error: BaseException, limit: int = 1000) -> str:
    """Return the class and the text of ``error`` on one line, without the secrets of URLs, cut at ``limit``."""
    try:
        return show(scrub_urls(f"{type(error).__name__}: {error}".rstrip(": ")), limit)
    except Exception as failure:  # its own __str__ raises
        raise_interrupt(failure)
        return type(error).__name__


def error_text(error: BaseException, limit: int = 1000) -> str:
    """Return the text of ``error`` alone, as `describe_error` does; "" if it has none."""
    try:
        return show(scrub_urls(str(error)), limit)
    except Exception as failure:
        raise_interrupt(failure)
        return ""


def error_class(error: BaseException) -> str:
    """The name of the class of ``error``, with its module: ``shop.orders:OutOfStock``."""
    return f"{type(error).__module__}:{type(error).__qualname__}"


def error_frames(error: BaseException) -> list[str]:
    """Where ``error`` was raised, as ``file:line in function``: the handler first, then the last frames up to the line
    that raised it. Frames of effectonce are left out."""
    frames = []
    for frame, line in walk_tb(error.__traceback__):
        code = frame.f_code
        if not code.co_filename.startswith(_OWN_FOLDER):
            frames.append(show(f"{code.co_filename}:{line} in {code.co_name}", MAX_FRAME_CHARACTERS))
    return frames if len(frames) <= MAX_FRAMES else [frames[0], *frames[1 - MAX_FRAMES :]]
