"""Formats reports for people: code frames with carets, or one line for each finding."""

from __future__ import annotations

from collections import Counter
from functools import lru_cache

from effectonce_lint.coverage import Coverage, Skip
from effectonce_lint.engine import LintReport
from effectonce_lint.findings import Finding, Place
from effectonce_lint.rules import MODES, RULES

from .printable import display_path, strip_control_characters

_COLOUR_CODES = {"red": "31;1", "yellow": "33;1", "blue": "34;1", "cyan": "36", "bold": "1", "dim": "2", "green": "32"}
_SEVERITY_COLOURS = {"error": "red", "warning": "yellow"}
_TAB_WIDTH = 4
_DECLARE = " Declare them: consumers in [tool.effectonce.lint]; --init proposes some."
_MAX_CODE_WIDTH = 160


class _Painter:
    """Colours text, if colours are wanted."""

    def __init__(self, colours: bool) -> None:
        self.colours = colours

    def __call__(self, text: str, colour: str) -> str:
        return f"\x1b[{_COLOUR_CODES[colour]}m{text}\x1b[0m" if self.colours and text else text


def as_concise(report: LintReport, colours: bool) -> str:
    """One line for each finding, which editors parse: ``path:line:column: RULE message``."""
    paint = _Painter(colours)
    lines = []
    for finding in report.findings:
        place = finding.place
        where = f"{paint(display_path(place.path), 'bold')}:{place.line}:{place.column}:"
        rule = paint(finding.rule, _colour_of(finding)) + (" [*]" if finding.fix is not None else "")
        lines.append(f"{where} {rule} {strip_control_characters(finding.message)}")
    return "\n".join([*lines, *summary_lines(report, paint)])


def as_full(report: LintReport, colours: bool) -> str:
    """A frame of code for each finding, with what to do about it."""
    paint = _Painter(colours)
    lines: list[str] = []
    for finding in report.findings:
        lines += [*_render_finding(finding, paint), ""]
    return "\n".join([*lines, *summary_lines(report, paint)])


def _colour_of(finding: Finding) -> str:
    return _SEVERITY_COLOURS[finding.severity]


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
    spans_by_path: dict[str, list[tuple[Place, str, bool]]] = {}
    for span in spans:
        spans_by_path.setdefault(span[0].path, []).append(span)
    for number, (path, spans_of_file) in enumerate(spans_by_path.items()):
        first, _, _ = spans_of_file[0]
        arrow = "-->" if number == 0 else ":::"
        lines.append(f"{' ' * width}{paint(arrow, 'blue')} {display_path(path)}:{first.line}:{first.column}")
        lines.append(f"{' ' * width} {bar}")
        lines += _render_code(path, spans_of_file, width, paint)
        lines.append(f"{' ' * width} {bar}")
    for word, text in _remarks_of(finding):
        lines.append(f"{' ' * width} {paint('=', 'blue')} {paint(word, 'bold')}: {strip_control_characters(text)}")
    return lines


def _caption_of(finding: Finding) -> str:
    """The words under the finding's own place."""
    if finding.rule == "P11" and finding.place.path.endswith(".py"):
        return "delivered at least once"
    return ""


def _remarks_of(finding: Finding) -> list[tuple[str, str]]:
    """The lines after the code, each with the word that it begins with."""
    remarks = []
    if finding.trail:
        remarks.append(("path", " -> ".join(finding.trail)))
    if finding.note:
        remarks.append(("note", finding.note))
    if finding.help:
        mode = MODES.get(finding.mode)
        remarks.append(("help", finding.help + (f" (mode {mode.letter}, {mode.name})" if mode is not None else "")))
    if finding.fix is not None:
        remarks.append(("fix", f"{finding.fix.text} (--fix)"))
    return remarks


def _render_code(path: str, spans: list[tuple[Place, str, bool]], width: int, paint: _Painter) -> list[str]:
    """The lines of a file with ``spans`` in them, and the line before each primary one, with carets."""
    source = _read_lines(path)
    if not source:
        return []
    spans_by_line: dict[int, list[tuple[Place, str, bool]]] = {}
    context: set[int] = set()
    for place, text, primary in spans:
        spans_by_line.setdefault(place.line, []).append((place, text, primary))
        if primary and place.line > 1:
            context.add(place.line - 1)
    lines: list[str] = []
    last = 0
    for number in sorted({*spans_by_line, *context}):
        if number > len(source):
            continue
        if last and number > last + 1:
            lines.append(paint("...".ljust(width + 3), "blue"))
        last = number
        text = source[number - 1].expandtabs(_TAB_WIDTH)[:_MAX_CODE_WIDTH]
        lines.append(
            f"{paint(str(number).rjust(width), 'blue')} {paint('|', 'blue')} {strip_control_characters(text)}".rstrip()
        )
        for place, words, primary in spans_by_line.get(number, ()):
            lines.append(_render_carets(source[number - 1], place, words, primary, width, paint))
    return lines


def _render_carets(line: str, place: Place, words: str, primary: bool, width: int, paint: _Painter) -> str:
    start = len(line[: place.column - 1].expandtabs(_TAB_WIDTH))
    end_column = place.end_column if place.end_line == place.line else len(line.rstrip()) + 1
    length = max(1, min(len(line[: end_column - 1].expandtabs(_TAB_WIDTH)), _MAX_CODE_WIDTH) - start)
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


def summary_lines(report: LintReport, paint: _Painter) -> list[str]:
    """What was not checked to its end, the result, and how much was looked at."""
    coverage = report.coverage
    if not coverage.files:
        return ["Nothing to look at."]
    unreadable_places = {finding.place for finding in report.findings if finding.rule == "EO900"}
    skips = [_render_skip(skip, paint) for skip in coverage.skipped if skip.place not in unreadable_places]
    hidden = [f"{_pluralize(report.hidden, 'less sure finding')} not shown: see --all."] if report.hidden else []
    return [*skips, _result_line(report, paint), *hidden, _coverage_line(coverage)]


def _render_skip(skip: Skip, paint: _Painter) -> str:
    where = f"{paint(display_path(skip.place.path), 'bold')}:{skip.place.line}:{skip.place.column}:"
    return f"{where} {paint('skipped', 'yellow')} {strip_control_characters(f'{skip.subject}: {skip.reason}')}"


def _result_line(report: LintReport, paint: _Painter) -> str:
    if report.findings:
        fixable = sum(finding.fix is not None for finding in report.findings)
        files = len({finding.place.path for finding in report.findings})
        text = f"Found {_pluralize(len(report.findings), 'problem')} in {files} of {_pluralize(report.files, 'file')}."
        if fixable:
            text += f" {fixable} [*] fixable with --fix (--diff shows the changes)."
        return text
    if report.coverage.skipped:
        return paint("Nothing found in what was checked.", "yellow")
    if not report.coverage.consumers:
        return paint("No consumers found.", "yellow") + _DECLARE
    return paint("All clear.", "green") if not report.hidden else paint("Nothing found that is sure.", "green")


def _coverage_line(coverage: Coverage) -> str:
    """`4 files, 3 consumers (celery 2, kafka 1), 5 handlers judged, 1 skipped.`"""
    consumers = _pluralize(sum(coverage.consumers.values()), "consumer")
    if coverage.consumers:
        consumers += f" ({', '.join(f'{name} {count}' for name, count in coverage.consumers.items())})"
    skipped = f"{len(coverage.skipped)} skipped" if coverage.skipped else "none skipped"
    judged = f"{_pluralize(coverage.judged, 'handler')} judged"
    return f"{_pluralize(coverage.files, 'file')}, {consumers}, {judged}, {skipped}."


def _pluralize(count: int, what: str) -> str:
    return f"{count} {what}{'s' if count != 1 else ''}"


def as_statistics(report: LintReport, colours: bool) -> str:
    """How often each rule was found."""
    paint = _Painter(colours)
    counts = Counter(finding.rule for finding in report.findings)
    fixes = Counter(finding.rule for finding in report.findings if finding.fix is not None)
    rows = [
        f"{count:>6}  {paint(rule.ljust(6), _SEVERITY_COLOURS[RULES[rule].severity])} {'[*]' if fixes[rule] else '   '}"
        f" {RULES[rule].name}"
        for rule, count in sorted(counts.items(), key=lambda item: (-item[1], item[0]))
    ]
    return "\n".join([*rows, *summary_lines(report, paint)])
