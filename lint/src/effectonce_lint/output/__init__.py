"""How findings are printed: for a person, for an editor, for a server."""

from __future__ import annotations

from collections.abc import Callable

from effectonce_lint.engine import Report

from . import machine, sarif, text

FORMATS: dict[str, Callable[[Report, bool], str]] = {
    "full": text.full,
    "concise": text.concise,
    "json": machine.as_json,
    "sarif": sarif.as_sarif,
    "github": machine.github,
    "junit": machine.junit,
}
"""By name: the report, and whether colours are wanted, to what is printed."""
