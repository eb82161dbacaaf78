"""Formats reports for programs: JSON, GitHub's workflow commands, JUnit."""

from __future__ import annotations

from xml.sax.saxutils import escape, quoteattr

import msgspec

from effectonce_lint.engine import LintReport
from effectonce_lint.findings import Finding, Place
from effectonce_lint.rules import RULES

from .printable import display_path, strip_control_characters


def as_json(report: LintReport, colours: bool) -> str:
    """An object with the findings, and the coverage: how much was looked at."""
    coverage = report.coverage
    document = {
        "findings": list(map(_finding_object, report.findings)),
        "hidden": report.hidden,
        "coverage": {
            "files": coverage.files,
            "consumers": coverage.consumers,
            "judged": coverage.judged,
            "skipped": [
                {"subject": skip.subject, "reason": skip.reason, "location": _location_object(skip.place)}
                for skip in coverage.skipped
            ],
        },
    }
    return msgspec.json.format(msgspec.json.encode(document), indent=1).decode()


def _finding_object(finding: Finding) -> dict[str, object]:
    return {
        "rule": finding.rule,
        "name": RULES[finding.rule].name,
        "severity": finding.severity,
        "confidence": finding.confidence,
        "message": finding.message,
        "symbol": finding.symbol,
        "location": _location_object(finding.place),
        "related": [{"message": label.text, "location": _location_object(label.place)} for label in finding.labels],
        "path": list(finding.trail),
        "note": finding.note,
        "help": finding.help,
        "mode": finding.mode,
        "fix": None
        if finding.fix is None
        else {
            "message": finding.fix.text,
            "edits": [{"location": _location_object(edit.place), "content": edit.text} for edit in finding.fix.edits],
        },
    }


def _location_object(place: Place) -> dict[str, object]:
    return {
        "file": display_path(place.path),
        "line": place.line,
        "column": place.column,
        "end_line": place.end_line or place.line,
        "end_column": place.end_column or place.column,
    }


def as_github(report: LintReport, colours: bool) -> str:
    """GitHub's workflow commands, which annotate a pull request."""
    commands = []
    for finding in report.findings:
        place = finding.place
        span = f"line={place.line},col={place.column},endLine={place.end_line or place.line}"
        where = f"file={_escape_property(display_path(place.path))},{span}"
        title = _escape_property(f"effectonce {finding.rule} ({RULES[finding.rule].name})")
        message = _escape_data(finding.message + (f"\nhelp: {finding.help}" if finding.help else ""))
        commands.append(f"::{finding.severity} {where},title={title}::{message}")
    return "\n".join(commands)


def _escape_data(text: str) -> str:
    return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def _escape_property(text: str) -> str:
    return _escape_data(text).replace(":", "%3A").replace(",", "%2C")


def as_junit(report: LintReport, colours: bool) -> str:
    """A JUnit test suite with a failed case for each finding."""
    cases = []
    for finding in report.findings:
        place = finding.place
        name = quoteattr(
            strip_control_characters(f"{finding.rule} {display_path(place.path)}:{place.line}:{place.column}")
        )
        text = escape(
            strip_control_characters(f"line {place.line}, column {place.column}: {finding.message}")
            + (f"\nhelp: {strip_control_characters(finding.help)}" if finding.help else "")
        )
        path = quoteattr(strip_control_characters(display_path(place.path)))
        message = quoteattr(strip_control_characters(finding.message))
        cases.append(
            f'  <testcase name={name} classname={path} line="{place.line}">\n'
            f"    <failure type={quoteattr(finding.rule)} message={message}>{text}</failure>\n"
            "  </testcase>"
        )
    failures = len(cases)
    if not cases:  # Jenkins fails on a report without any case
        cases = ['  <testcase name="effectonce lint" classname="effectonce"/>']
    body = "\n".join(cases)
    head = '<?xml version="1.0" encoding="UTF-8"?>'
    suite = f'<testsuite name="effectonce" tests="{len(cases)}" failures="{failures}" errors="0">'
    return f"{head}\n<testsuites>{suite}\n{body}\n</testsuite></testsuites>"
