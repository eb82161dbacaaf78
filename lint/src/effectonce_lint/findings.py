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
    def at(self) -> tuple[str, int, int]:
        """What findings are sorted by."""
        return (self.path, self.line, self.column)


class Label(Struct, frozen=True):
    """A further place that explains the finding."""

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
    """One thing that can go wrong, told to a person.

    ``symbol`` names the consumer (or the queue): it identifies the finding where line numbers move.
    """

    rule: str
    severity: Severity
    place: Place
    message: str
    symbol: str = ""
    note: str = ""
    labels: tuple[Label, ...] = ()
    trail: tuple[str, ...] = ()
    help: str = ""
    mode: str = ""
    fix: Fix | None = None


class IgnoreComment(Struct, frozen=True):
    """A comment ``# effectonce: ignore[P11] why``. No rules: it hides all of them. ``alone``: on a line of its own."""

    line: int
    column: int
    end_column: int
    rules: tuple[str, ...] = ()
    alone: bool = False


class LintError(Exception):
    """The run cannot go on as asked; its message says what to change. Ends with exit code 2."""
