"""Comments that hide a finding, and the baseline that hides old ones."""

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

_IGNORE = r"\s*effectonce:\s*ignore(?:\[([^\]]*)\])?[ \t]*(.*?)\s*(?:-->)?\s*$"
_COMMENT = re.compile(rf"(?:#|//|%%|--){_IGNORE}")
_IN_MARKDOWN = re.compile(rf"(?:<!--|^\s*%%){_IGNORE}")
"""There a `#` begins a headline, or stands in an example; a Mermaid diagram has comments of its own."""


def find_ignores(content: bytes, path: str) -> tuple[IgnoreComment, ...]:
    """The comments of a file that hide findings."""
    if b"effectonce:" not in content:
        return ()
    out = []
    comment = _IN_MARKDOWN if path.lower().endswith((".md", ".markdown")) else _COMMENT
    for number, before, text in _comments_of(content, not is_design(path)):
        found = comment.search(text)
        if found:
            rules = tuple(each.strip() for each in (found.group(1) or "").split(",") if each.strip())
            start = len(before) + found.start() + 1
            alone = not (before + text[: found.start()]).strip()
            out.append(IgnoreComment(number, start, len(before) + len(text.rstrip()) + 1, rules, alone))
    return tuple(out)


def _comments_of(content: bytes, python: bool) -> Iterable[tuple[int, str, str]]:
    """Each comment: its line, what stands before it there, and itself."""
    if python:
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
    """What is left after the comments, with a finding for each comment that hid nothing."""
    used: set[tuple[str, IgnoreComment]] = set()
    left = []
    for finding in findings:
        comment = _ignore_for(finding, ignores)
        if comment is None:
            left.append(finding)
        else:
            used.add(comment)
    idle = [(path, each) for path, comments in ignores.items() for each in comments if (path, each) not in used]
    for path, each in idle:
        if all(is_selected(rule, select, ignore) for rule in each.rules if rule in RULES):
            left.append(_unused_finding(path, each))
    return left


def _ignore_for(finding: Finding, ignores: dict[str, tuple[IgnoreComment, ...]]) -> tuple[str, IgnoreComment] | None:
    """The comment that hides a finding: on the lines that it points to, or on a line of its own above them."""
    for place in (finding.place, *(label.place for label in finding.labels)):
        for each in ignores.get(place.path, ()):
            named = not each.rules or finding.rule in each.rules
            inside = place.line <= each.line <= max(place.end_line, place.line)
            if named and (inside or (each.alone and each.line == place.line - 1)):
                return place.path, each
    return None


def _unused_finding(path: str, comment: IgnoreComment) -> Finding:
    place = Place(path, comment.line, comment.column, comment.line, comment.end_column)
    named = ", ".join(comment.rules)
    unknown = [rule for rule in comment.rules if rule not in RULES]
    what = (
        f"there is no rule {unknown[0]}" if unknown else f"this comment hides nothing{f' ({named})' if named else ''}"
    )
    return Finding(
        rule="EO901",
        severity="warning",
        place=place,
        message=what,
        symbol=named,
        help="remove it",
        fix=Fix("remove the comment", (Edit(place, ""),)),
    )


# -- the baseline


def fingerprint(finding: Finding, shown: str) -> str:
    """What stays of a finding when lines move: file, rule, consumer and the words without their numbers."""
    words = re.sub(r"\d+", "#", finding.message)
    text = "\0".join((shown, finding.rule, finding.symbol, words))
    return blake2b(text.encode("utf-8", "replace"), digest_size=12).hexdigest()


def read_baseline(path: str) -> Counter[str]:
    try:
        with open(path, encoding="utf-8") as file:
            document = json.load(file)
        known = document["findings"]
        if not isinstance(known, dict) or document.get("version") != 1:
            raise ValueError
        return Counter({str(name): int(entry["count"]) for name, entry in known.items()})
    except OSError as error:
        raise LintError(f"cannot read the baseline {path}: {error.strerror}") from None
    except (ValueError, KeyError, TypeError):
        raise LintError(
            f"{path} is not a baseline of this version; write a new one with --write-baseline {path}"
        ) from None


def write_baseline(path: str, findings: list[tuple[str, Finding]]) -> None:
    entries: dict[str, dict[str, object]] = {}
    for shown, finding in findings:
        entry = entries.setdefault(
            fingerprint(finding, shown), {"count": 0, "rule": finding.rule, "path": shown, "symbol": finding.symbol}
        )
        entry["count"] = int(str(entry["count"])) + 1
    ordered = dict(sorted(entries.items(), key=lambda item: (str(item[1]["path"]), str(item[1]["rule"]), item[0])))
    try:
        with open(path, "w", encoding="utf-8") as file:
            json.dump({"version": 1, "findings": ordered}, file, indent=1)
            file.write("\n")
    except OSError as error:
        raise LintError(f"cannot write the baseline {path}: {error.strerror}") from None


def new_findings(baseline: Counter[str], findings: list[tuple[str, Finding]]) -> list[Finding]:
    """What the baseline does not know yet."""
    left = Counter(baseline)
    new = []
    for shown, finding in findings:
        name = fingerprint(finding, shown)
        if left[name] > 0:
            left[name] -= 1
        else:
            new.append(finding)
    return new
