"""What hides findings: comments, and the baseline of old findings."""

from __future__ import annotations

import io
import json
import re
import tokenize
from collections import Counter
from collections.abc import Iterable
from hashlib import blake2b

from .designs import is_design
from .findings import Edit, Finding, Fix, IgnoreComment, LintError, Place
from .rules import RULES, is_selected

_BASELINE_VERSION = 1
_IGNORE = r"\s*effectonce:\s*ignore(?:\[([^\]]*)\])?[ \t]*(.*?)\s*(?:-->)?\s*$"
_COMMENT = re.compile(rf"(?:#|//|%%|--){_IGNORE}")
_MARKDOWN_COMMENT = re.compile(rf"(?:<!--|^\s*%%){_IGNORE}")
"""In Markdown, `#` begins a headline or stands in an example. `%%` begins a comment of a Mermaid diagram."""


def find_ignores(content: bytes, path: str) -> tuple[IgnoreComment, ...]:
    """The comments of a file that hide findings."""
    if b"effectonce:" not in content:
        return ()
    ignores = []
    comment = _MARKDOWN_COMMENT if path.lower().endswith((".md", ".markdown")) else _COMMENT
    for number, before, text in _comments_of(content, is_python=not is_design(path)):
        match = comment.search(text)
        if match:
            rules = tuple(rule.strip() for rule in (match.group(1) or "").split(",") if rule.strip())
            column = len(before) + match.start() + 1
            is_alone = not (before + text[: match.start()]).strip()
            ignores.append(IgnoreComment(number, column, len(before) + len(text.rstrip()) + 1, rules, is_alone))
    return tuple(ignores)


def _comments_of(content: bytes, *, is_python: bool) -> Iterable[tuple[int, str, str]]:
    """Each comment: its line's number, the text before it on that line, and its own text. In other files than Python,
    any line that may hold one."""
    if is_python:
        try:
            for token in tokenize.tokenize(io.BytesIO(content).readline):
                if token.type == tokenize.COMMENT:
                    yield token.start[0], token.line[: token.start[1]], token.string
            return
        except (tokenize.TokenError, SyntaxError, UnicodeDecodeError, ValueError):
            pass
    for number, line in enumerate(content.decode("utf-8", "replace").splitlines(), 1):
        if "effectonce:" in line:
            yield number, "", line


def apply_ignores(
    findings: list[Finding],
    ignores: dict[str, tuple[IgnoreComment, ...]],
    select: tuple[str, ...],
    ignore: tuple[str, ...],
) -> list[Finding]:
    """The findings that no comment hides, and a finding for each comment that hides nothing.

    A comment for a rule that is not selected may hide something in another run, so it is not reported.
    """
    used: set[tuple[str, IgnoreComment]] = set()
    remaining = []
    for finding in findings:
        hidden_by = _ignore_for(finding, ignores)
        if hidden_by is None:
            remaining.append(finding)
        else:
            used.add(hidden_by)
    for path, comments in ignores.items():
        for comment in comments:
            is_checked = all(is_selected(rule, select, ignore) for rule in comment.rules if rule in RULES)
            if is_checked and (path, comment) not in used:
                remaining.append(_unused_finding(path, comment))
    return remaining


def _ignore_for(finding: Finding, ignores: dict[str, tuple[IgnoreComment, ...]]) -> tuple[str, IgnoreComment] | None:
    """The comment that hides a finding: on the lines that it points to, or on a line of its own above them."""
    for place in (finding.place, *(label.place for label in finding.labels)):
        for comment in ignores.get(place.path, ()):
            names_rule = not comment.rules or finding.rule in comment.rules
            is_inside = place.line <= comment.line <= max(place.end_line, place.line)
            if names_rule and (is_inside or (comment.alone and comment.line == place.line - 1)):
                return place.path, comment
    return None


def _unused_finding(path: str, comment: IgnoreComment) -> Finding:
    place = Place(path, comment.line, comment.column, comment.line, comment.end_column)
    rules = ", ".join(comment.rules)
    unknown = [rule for rule in comment.rules if rule not in RULES]
    if unknown:
        message = f"there is no rule {unknown[0]}"
    else:
        message = "this comment hides nothing" + (f" ({rules})" if rules else "")
    return Finding(
        rule="EO901",
        severity="warning",
        place=place,
        message=message,
        symbol=rules,
        help="remove it",
        fix=Fix("remove the comment", (Edit(place, ""),)),
    )


# -- the baseline


def fingerprint(finding: Finding, shown_path: str) -> str:
    """A digest that stays the same when lines move: of file, rule, consumer, and the message without its numbers."""
    words = re.sub(r"\d+", "#", finding.message)
    text = "\0".join((shown_path, finding.rule, finding.symbol, words))
    return blake2b(text.encode("utf-8", "replace"), digest_size=12).hexdigest()


def read_baseline(path: str) -> Counter[str]:
    """How often each fingerprint is in a baseline."""
    try:
        with open(path, encoding="utf-8") as file:
            document = json.load(file)
        entries = document["findings"]
        if not isinstance(entries, dict) or document.get("version") != _BASELINE_VERSION:
            raise ValueError
        return Counter({str(name): int(entry["count"]) for name, entry in entries.items()})
    except OSError as error:
        raise LintError(f"cannot read the baseline {path}: {error.strerror}") from None
    except (ValueError, KeyError, TypeError):
        raise LintError(
            f"{path} is not a baseline of this version; write a new one with --write-baseline {path}"
        ) from None


def write_baseline(path: str, findings: list[tuple[str, Finding]]) -> None:
    """Write ``findings``, each with its path as it is shown, into a baseline."""
    counts = Counter(fingerprint(finding, shown_path) for shown_path, finding in findings)
    entries: dict[str, dict[str, object]] = {}
    for shown_path, finding in findings:
        name = fingerprint(finding, shown_path)
        entry = {"count": counts[name], "rule": finding.rule, "path": shown_path, "symbol": finding.symbol}
        entries.setdefault(name, entry)
    ordered = dict(sorted(entries.items(), key=lambda item: (str(item[1]["path"]), str(item[1]["rule"]), item[0])))
    try:
        with open(path, "w", encoding="utf-8") as file:
            json.dump({"version": _BASELINE_VERSION, "findings": ordered}, file, indent=1)
            file.write("\n")
    except OSError as error:
        raise LintError(f"cannot write the baseline {path}: {error.strerror}") from None


def new_findings(baseline: Counter[str], findings: list[tuple[str, Finding]]) -> list[Finding]:
    """The findings that are not in the baseline. One that is there twice hides two of that fingerprint."""
    unmatched = Counter(baseline)
    new = []
    for shown_path, finding in findings:
        name = fingerprint(finding, shown_path)
        if unmatched[name] > 0:
            unmatched[name] -= 1
        else:
            new.append(finding)
    return new
