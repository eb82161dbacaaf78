"""Formats reports as SARIF 2.1.0, which code scanning servers read."""

from __future__ import annotations

from importlib.metadata import version
from pathlib import Path
from urllib.parse import quote

import msgspec

from effectonce_lint.coverage import Skip
from effectonce_lint.engine import LintReport
from effectonce_lint.findings import Finding, Place
from effectonce_lint.rules import RULES, Rule
from effectonce_lint.suppressions import fingerprint

from .printable import display_path

_SCHEMA = "https://json.schemastore.org/sarif-2.1.0.json"


def as_sarif(report: LintReport, colours: bool) -> str:
    index = {rule: number for number, rule in enumerate(RULES)}
    document = {
        "$schema": _SCHEMA,
        "version": "2.1.0",
        "runs": [
            {
                "tool": {
                    "driver": {
                        "name": "effectonce",
                        "semanticVersion": version("effectonce-lint"),
                        "rules": [_rule_object(rule) for rule in RULES.values()],
                    }
                },
                "columnKind": "unicodeCodePoints",
                "originalUriBaseIds": {"SRCROOT": {"uri": Path.cwd().as_uri() + "/"}},
                "results": [_result_object(finding, index[finding.rule]) for finding in report.findings],
                "invocations": [
                    {
                        "executionSuccessful": not report.has_unreadable_files,
                        "toolExecutionNotifications": list(map(_notification_object, report.coverage.skipped)),
                    }
                ],
                "properties": {
                    "files": report.coverage.files,
                    "consumers": report.coverage.consumers,
                    "judged": report.coverage.judged,
                    "skipped": len(report.coverage.skipped),
                },
            }
        ],
    }
    return msgspec.json.format(msgspec.json.encode(document), indent=1).decode()


def _rule_object(rule: Rule) -> dict[str, object]:
    return {
        "id": rule.id,
        "name": "".join(part.capitalize() for part in rule.name.split("-")),
        "shortDescription": {"text": rule.summary},
        "fullDescription": {"text": " ".join(rule.why.split())},
        "help": {"text": " ".join(rule.modes.split())},
        "defaultConfiguration": {"level": rule.severity},
    }


def _result_object(finding: Finding, index: int) -> dict[str, object]:
    text = finding.message + (f" ({finding.help})" if finding.help else "")
    result: dict[str, object] = {
        "ruleId": finding.rule,
        "ruleIndex": index,
        "level": finding.severity,
        "rank": round(finding.confidence * 100, 1),
        "message": {"text": text},
        "locations": [{"physicalLocation": _physical_location(finding.place)}],
        "partialFingerprints": {"effectonce/v1": fingerprint(finding, display_path(finding.place.path))},
    }
    if finding.labels:
        result["relatedLocations"] = [
            {"id": number, "physicalLocation": _physical_location(label.place), "message": {"text": label.text}}
            for number, label in enumerate(finding.labels)
        ]
    if finding.fix is not None:
        result["fixes"] = [
            {
                "description": {"text": finding.fix.text},
                "artifactChanges": [
                    {
                        "artifactLocation": _artifact_location(edit.place),
                        "replacements": [
                            {"deletedRegion": _region_of(edit.place), "insertedContent": {"text": edit.text}}
                        ],
                    }
                    for edit in finding.fix.edits
                ],
            }
        ]
    return result


def _notification_object(skip: Skip) -> dict[str, object]:
    return {
        "level": "warning",
        "message": {"text": f"skipped {skip.subject}: {skip.reason}"},
        "locations": [{"physicalLocation": _physical_location(skip.place)}],
    }


def _physical_location(place: Place) -> dict[str, object]:
    return {"artifactLocation": _artifact_location(place), "region": _region_of(place)}


def _artifact_location(place: Place) -> dict[str, object]:
    path = display_path(place.path)
    if path.startswith("/") or ":" in path[:3]:
        return {"uri": Path(path).as_uri()}
    return {"uri": quote(path), "uriBaseId": "SRCROOT"}


def _region_of(place: Place) -> dict[str, object]:
    region: dict[str, object] = {"startLine": place.line, "startColumn": place.column}
    if place.end_line:
        region["endLine"] = place.end_line
        region["endColumn"] = max(place.end_column, 1)
    return region
