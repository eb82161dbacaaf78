"""The assertions of the contract suites. They work under ``python -O`` and without pytest, where `assert` does not."""

from __future__ import annotations

import gc
import os
import sys
import unittest
from collections.abc import Awaitable, Callable
from typing import TypeVar

T = TypeVar("T")

OPEN_FILES = "/proc/self/fd"
MIN_LEAKED_FILES = 3  # fewer may be open for other reasons


def expect(actual: object, expected: object, what: str) -> None:
    """Require that ``actual`` equals ``expected`` and is of the same type."""
    if actual != expected or type(actual) is not type(expected):
        raise AssertionError(f"{what}: expected {_shorten(expected)}, got {_shorten(actual)}")


def expect_between(low: float, actual: float, high: float, what: str) -> None:
    """Require that ``actual`` lies between ``low`` and ``high``, or is one of them."""
    if not low <= actual <= high:
        raise AssertionError(f"{what}: expected a value from {low} to {high}, got {actual}")


def expect_fields(actual: object, what: str = "", **fields: object) -> None:
    """Require that each named field of ``actual`` has this value."""
    for name, expected in fields.items():
        expect(getattr(actual, name), expected, f"{name} of {what or type(actual).__name__}")


def require(condition: bool, problem: str) -> None:
    if not condition:
        raise AssertionError(problem)


def skip_unless(value: T | None, what: str) -> T:
    """Return ``value``. If it is None or False, skip the case: it does not apply to this backend."""
    if value is None or value is False:
        raise unittest.SkipTest(f"needs {what}")
    return value


async def expect_no_leak(
    use: Callable[[], Awaitable[None]], sleep: Callable[[float], Awaitable[None]], attempts: int
) -> None:
    """Require that ``use``, which opens things and closes them, leaves no file open.

    Files that its first round leaves open may be for reuse, as in SQLite. What a second round adds is a leak.
    """
    skip_unless(sys.platform == "linux", f"a system that lists open files in {OPEN_FILES}")
    await use()
    gc.collect()  # what others have left open must not be closed between the two counts
    before = len(os.listdir(OPEN_FILES))
    await use()
    for _ in range(attempts):
        gc.collect()
        leaked = len(os.listdir(OPEN_FILES)) - before
        if leaked < MIN_LEAKED_FILES:
            return
        await sleep(0.05)
    raise AssertionError(f"all was closed after use, and {leaked} more files are open than before")


def _shorten(value: object) -> str:
    text = repr(value)
    return text if len(text) < 400 else f"{text[:400]}… ({len(text)} characters)"
