"""For people: code frames with carets, or one line a finding."""

from __future__ import annotations

from collections import Counter
from functools import lru_cache

from effectonce_lint.engine import Report
from effectonce_lint.findings import Finding, Place
from effectonce_lint.rules import MODES, RULES

from .printable import display_path, strip_control_characters

_CODES = {"red": "31;1", "yellow": "33;1", "blue": "34;1", "cyan": "36", "bold": "1", "dim": "2", "green": "32"}
_COLOURS = {"error": "red", "warning": "yellow"}
_MAX_WIDTH = 160


class _Painter:
    def __init__(self, colours: bool) -> None:
        self.colours = colours

    def __call__(self, text: str, colour: str) -> str:
        return f"\x1b[{_CODES[colour]}m{text}\x1b[0m" if self.colours and text else text


def as_concise(report: Report, colours: bool) -> str:
    """One line a finding, as editors parse it: ``path:line:column: RULE message``."""
    paint = _Painter(colours)
    out = []
    for each in report.findings:
        where = f"{paint(display_path(each.place.path), 'bold')}:{each.place.line}:{each.place.column}:"
        fixable = " [*]" if each.fix is not None else ""
        out.append(f"{where} {paint(each.rule, _colour_of(each))}{fixable} {strip_control_characters(each.message)}")
    return "\n".join([*out, *summary_lines(report, paint)])


def as_full(report: Report, colours: bool) -> str:
    """A frame of code for each finding, with what to do about it."""
    paint = _Painter(colours)
    out: list[str] = []
    for each in report.findings:
        out += [*_render_finding(each, paint), ""]
    return "\n".join([*out, *summary_lines(report, paint)])


def _colour_of(finding: Finding) -> str:
    return _COLOURS[finding.severity]


def _render_finding(finding: Finding, paint: _Painter) -> list[str]:
    fixable = paint(" [*]", "cyan") if finding.fix is not None else ""
    name = RULES[finding.rule].name if finding.rule in RULES else ""
    message = paint(strip_control_characters(finding.message), "bold")
    head = f"{paint(finding.rule, _colour_of(finding))}{fixable} {message} {paint(f'({name})', 'dim')}"
    spans = [
        (finding.place, _caption_of(finding), True),
        *((label.place, label.text, False) for label in finding.labels),
    ]
    width = len(str(max(place.line for place, _, _ in spans)))
    bar = paint("|", "blue")
    lines = [head]
    by_file: dict[str, list[tuple[Place, str, bool]]] = {}
    for span in spans:
        by_file.setdefault(span[0].path, []).append(span)
    for number, (path, group) in enumerate(by_file.items()):
        first = group[0][0]
        arrow = "-->" if number == 0 else ":::"
        lines.append(f"{' ' * width}{paint(arrow, 'blue')} {display_path(path)}:{first.line}:{first.column}")
        lines.append(f"{' ' * width} {bar}")
        lines += _render_code(path, group, width, paint)
        lines.append(f"{' ' * width} {bar}")
    for word, text in _remarks_of(finding):
        lines.append(f"{' ' * width} {paint('=', 'blue')} {paint(word, 'bold')}: {strip_control_characters(text)}")
    return lines


def _caption_of(finding: Finding) -> str:
    if finding.rule == "P11" and finding.place.path.endswith(".py"):
        return "delivered at least once"
    return ""


def _remarks_of(finding: Finding) -> list[tuple[str, str]]:
    out = []
    if finding.trail:
        out.append(("path", " -> ".join(finding.trail)))
    if finding.note:
        out.append(("note", finding.note))
    if finding.help:
        mode = MODES.get(finding.mode)
        out.append(("help", finding.help + (f" (mode {mode.letter}, {mode.name})" if mode is not None else "")))
    if finding.fix is not None:
        out.append(("fix", f"{finding.fix.text} (--fix)"))
    return out


def _render_code(path: str, group: list[tuple[Place, str, bool]], width: int, paint: _Painter) -> list[str]:
    source = _read_lines(path)
    if not source:
        return []
    wanted: dict[int, list[tuple[Place, str, bool]]] = {}
    context: set[int] = set()
    for place, text, primary in group:
        wanted.setdefault(place.line, []).append((place, text, primary))
        if primary:
            context |= {place.line - 1}
    out: list[str] = []
    last = 0
    for number in sorted({*wanted, *(each for each in context if each >= 1)}):
        if number > len(source):
            continue
        if last and number > last + 1:
            out.append(paint("...".ljust(width + 3), "blue"))
        last = number
        text = source[number - 1].expandtabs(4)[:_MAX_WIDTH]
        out.append(
            f"{paint(str(number).rjust(width), 'blue')} {paint('|', 'blue')} {strip_control_characters(text)}".rstrip()
        )
        for place, words, primary in wanted.get(number, ()):
            out.append(_render_carets(source[number - 1], place, words, primary, width, paint))
    return out


def _render_carets(line: str, place: Place, words: str, primary: bool, width: int, paint: _Painter) -> str:
    start = len(line[: place.column - 1].expandtabs(4))
    end_column = place.end_column if place.end_line == place.line else len(line.rstrip()) + 1
    length = max(1, min(len(line[: end_column - 1].expandtabs(4)), _MAX_WIDTH) - start)
    marks = paint(("^" if primary else "-") * length, "red" if primary else "cyan")
    text = paint(f" {strip_control_characters(words)}", "red" if primary else "cyan") if words else ""
    return f"{' ' * width} {paint('|', 'blue')} {' ' * start}{marks}{text}"


@lru_cache(maxsize=64)
def _read_lines(path: str) -> list[str]:
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            return file.read().splitlines()
    except OSError:
        return []


def summary_lines(report: Report, paint: _Painter) -> list[str]:
    if not report.findings:
        return [paint("All clear.", "green") if report.files else "Nothing to look at."]
    count = len(report.findings)
    fixable = sum(each.fix is not None for each in report.findings)
    files = len({each.place.path for each in report.findings})
    text = f"Found {_pluralize(count, 'problem')} in {files} of {_pluralize(report.files, 'file')}."
    if fixable:
        text += f" {fixable} [*] fixable with --fix (--diff shows the changes)."
    return [text]


def _pluralize(count: int, what: str) -> str:
    return f"{count} {what}{'s' if count != 1 else ''}"


def as_statistics(report: Report, colours: bool) -> str:
    """How often each rule was found."""
    paint = _Painter(colours)
    counts = Counter(each.rule for each in report.findings)
    fixes = Counter(each.rule for each in report.findings if each.fix is not None)
    rows = [
        f"{count:>6}  {paint(rule.ljust(6), _COLOURS[RULES[rule].severity])} {'[*]' if fixes[rule] else '   '}"
        f" {RULES[rule].name}"
        for rule, count in sorted(counts.items(), key=lambda item: (-item[1], item[0]))
    ]
    return "\n".join([*rows, *summary_lines(report, paint)])
