"""How findings are printed: for a person, for an editor, for a server."""

from __future__ import annotations

from collections.abc import Callable

from effectonce_lint.engine import Report

from . import machine_readable, sarif, text

FORMATS: dict[str, Callable[[Report, bool], str]] = {
    "full": text.as_full,
    "concise": text.as_concise,
    "json": machine_readable.as_json,
    "sarif": sarif.as_sarif,
    "github": machine_readable.as_github,
    "junit": machine_readable.as_junit,
}
"""By name: the report, and whether colours are wanted, to what is printed."""
