"""Formats reports: for people, for editors, for servers."""

from __future__ import annotations

from collections.abc import Callable

from effectonce_lint.engine import LintReport

from . import machine_readable, sarif, text

FORMATS: dict[str, Callable[[LintReport, bool], str]] = {
    "full": text.as_full,
    "concise": text.as_concise,
    "json": machine_readable.as_json,
    "sarif": sarif.as_sarif,
    "github": machine_readable.as_github,
    "junit": machine_readable.as_junit,
}
"""The functions that format a report, by the name of the format. The second argument asks for colours."""
