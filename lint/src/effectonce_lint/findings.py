"""A finding: what is wrong, where, and the fix for it."""

from __future__ import annotations

from typing import Literal

from msgspec import Struct

Severity = Literal["error", "warning"]


class Place(Struct, frozen=True):
    """A span of a file. Lines and columns begin at 1; columns count characters; the end is exclusive."""

    path: str
    line: int
    column: int = 1
    end_line: int = 0
    end_column: int = 0

    @property
    def start(self) -> tuple[str, int, int]:
        """The position without the end: findings are sorted by it."""
        return (self.path, self.line, self.column)


class Label(Struct, frozen=True):
    """A further place of a finding, with what it shows there."""

    place: Place
    text: str


class Edit(Struct, frozen=True):
    """Replace a span by ``text``; an empty span inserts."""

    place: Place
    text: str


class Fix(Struct, frozen=True):
    """Edits of one file that belong together, and what they do in a few words."""

    text: str
    edits: tuple[Edit, ...]


class Finding(Struct, frozen=True, kw_only=True):
    """One thing that can go wrong, in words for the person who wrote the code."""

    rule: str
    severity: Severity
    place: Place
    message: str
    symbol: str = ""
    """The consumer's name, or the queue's. It identifies the finding when lines move."""
    note: str = ""
    """What the reader should know besides."""
    labels: tuple[Label, ...] = ()
    trail: tuple[str, ...] = ()
    """The calls that lead from the consumer to the place."""
    help: str = ""
    """What to do about it."""
    mode: str = ""
    """The letter of the effectonce mode that fits."""
    fix: Fix | None = None
    confidence: float = 1.0
    """How sure it is, from 0 to 1. Settings and designs say what they mean, so those are sure."""


class IgnoreComment(Struct, frozen=True):
    """A comment ``# effectonce: ignore[P11] why``."""

    line: int
    column: int
    end_column: int
    rules: tuple[str, ...] = ()
    """The rules that it hides. None named: it hides all."""
    alone: bool = False
    """It stands on a line of its own, so it hides findings of the next line."""


class LintError(Exception):
    """The run cannot be done as asked. The message says what to change; the exit code is 2."""
