"""Applying fixes: all edits of a file at once, none that overlap, and a diff of what they do."""

from __future__ import annotations

import ast
import difflib
import os
import re
import tokenize

from .findings import Edit, Finding, LintError
from .output.printable import display_path


def plan_fixes(findings: list[Finding]) -> dict[str, tuple[str, str, int]]:
    """Compute, for each path, the text before and after, and how many findings that fixes. Writes nothing."""
    by_file: dict[str, list[tuple[Edit, ...]]] = {}
    for each in findings:
        if each.fix is not None and each.fix.edits:
            by_file.setdefault(each.fix.edits[0].place.path, []).append(each.fix.edits)
    out = {}
    for path, fixes in by_file.items():
        before = _read_file(path)
        after, count = _apply_fixes(before, fixes)
        if path.endswith(".py") and not _is_python(after):
            after, count = _apply_fixes(before, [each for each in fixes if _is_python(_apply_fixes(before, [each])[0])])
        if after != before:
            out[path] = (before, after, count)
    return out


def _is_python(text: str) -> bool:
    """Whether a fixed file is still Python. A fix that breaks it is not applied."""
    try:
        ast.parse(text)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return False
    return True


def _read_file(path: str) -> str:
    try:
        with tokenize.open(path) if path.endswith(".py") else open(path, encoding="utf-8", newline="") as file:
            encoding = file.encoding
        with open(path, encoding=encoding, newline="") as file:
            return file.read()
    except (OSError, SyntaxError, UnicodeDecodeError) as error:
        raise LintError(f"cannot fix {display_path(path)}: {error}") from None


def replace_file(path: str, text: str) -> None:
    """Put ``text`` in the place of a file, whole or not at all."""
    try:
        with tokenize.open(path) if path.endswith(".py") else open(path, encoding="utf-8") as file:
            encoding = file.encoding
        scratch = f"{path}.effectonce-{os.getpid()}"
        with open(scratch, "w", encoding=encoding, newline="") as file:
            file.write(text)
        os.chmod(scratch, os.stat(path).st_mode & 0o7777)
        os.replace(scratch, path)
    except OSError as error:
        raise LintError(f"cannot write {display_path(path)}: {error.strerror}") from None


def _apply_fixes(text: str, fixes: list[tuple[Edit, ...]]) -> tuple[str, int]:
    lines = re.findall(r"[^\r\n]*(?:\r\n|\r|\n)|[^\r\n]+$", text)  # as Python counts them: a form feed ends no line
    starts = [0]
    for line in lines:
        starts.append(starts[-1] + len(line))

    def offset(line: int, column: int) -> int:
        return starts[line - 1] + column - 1 if line - 1 < len(lines) else len(text)

    taken: list[tuple[int, int]] = []
    chosen: list[tuple[int, int, str]] = []
    count = 0
    for edits in fixes:
        spans = [
            (offset(each.place.line, each.place.column), offset(each.place.end_line, each.place.end_column), each.text)
            for each in edits
        ]
        if (spans[0][0], spans[0][1], spans[0][2]) in chosen:
            count += 1
            continue
        if any(start < other_end and other_start < end for start, end, _ in spans for other_start, other_end in taken):
            continue
        chosen += spans
        taken += [(start, end) for start, end, _ in spans]
        count += 1
    for start, end, new in sorted(chosen, key=lambda each: each[0], reverse=True):
        if not new:  # a comment that goes takes the blanks before it along
            while start > 0 and text[start - 1] in " \t":
                start -= 1
        text = text[:start] + new + text[end:]
    return text, count


def unified_diff(path: str, before: str, after: str) -> str:
    """A unified diff, as `patch` takes it."""
    name = display_path(path)
    lines = difflib.unified_diff(
        before.splitlines(keepends=True), after.splitlines(keepends=True), f"a/{name}", f"b/{name}"
    )
    return "".join(line if line.endswith("\n") else f"{line}\n\\ No newline at end of file\n" for line in lines)
