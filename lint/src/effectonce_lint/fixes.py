"""Applies fixes: all edits of a file at once, none that overlap. Also shows them as a diff."""

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
    fixes_by_path: dict[str, list[tuple[Edit, ...]]] = {}
    for finding in findings:
        if finding.fix is not None and finding.fix.edits:
            fixes_by_path.setdefault(finding.fix.edits[0].place.path, []).append(finding.fix.edits)
    changes = {}
    for path, fixes in fixes_by_path.items():
        before = _read_file(path)
        after, count = _apply_fixes(before, fixes)
        if path.endswith(".py") and not _is_python(after):
            harmless = [edits for edits in fixes if _is_python(_apply_fixes(before, [edits])[0])]
            after, count = _apply_fixes(before, harmless)
        if after != before:
            changes[path] = (before, after, count)
    return changes


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
    """Replace the content of a file by ``text``, wholly or not at all."""
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
    """The text after the fixes, and how many findings that fixes. A fix that overlaps an earlier one is left out; one
    that is the same as an earlier one counts as well."""
    lines = re.findall(r"[^\r\n]*(?:\r\n|\r|\n)|[^\r\n]+$", text)  # as Python counts them: a form feed ends no line
    starts = [0]
    for line in lines:
        starts.append(starts[-1] + len(line))

    def offset(line: int, column: int) -> int:
        return starts[line - 1] + column - 1 if line - 1 < len(lines) else len(text)

    chosen: list[tuple[int, int, str]] = []
    count = 0
    for edits in fixes:
        replacements = [
            (offset(edit.place.line, edit.place.column), offset(edit.place.end_line, edit.place.end_column), edit.text)
            for edit in edits
        ]
        if replacements[0] in chosen:
            count += 1
            continue
        if any(
            start < other_end and other_start < end
            for start, end, _ in replacements
            for other_start, other_end, _ in chosen
        ):
            continue
        chosen += replacements
        count += 1
    for start, end, new in sorted(chosen, key=lambda replacement: replacement[0], reverse=True):
        if not new:  # with a comment, the blanks before it are removed
            while start > 0 and text[start - 1] in " \t":
                start -= 1
        text = text[:start] + new + text[end:]
    return text, count


def unified_diff(path: str, before: str, after: str) -> str:
    """The change of a file as a unified diff, which `patch` reads."""
    name = display_path(path)
    lines = difflib.unified_diff(
        before.splitlines(keepends=True), after.splitlines(keepends=True), f"a/{name}", f"b/{name}"
    )
    return "".join(line if line.endswith("\n") else f"{line}\n\\ No newline at end of file\n" for line in lines)
