"""Every number of docs/failures.md is cited by at least one test, and no test cites a number that is not there."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
CATALOGUE = ROOT / "docs" / "failures.md"
#: The suites for authors of backends are tests, too: ours run them.
PLACES = (ROOT / "tests", ROOT / "src" / "effectonce" / "testing" / "suites")


def numbers() -> list[str]:
    return re.findall(r"^- \*\*(F\d\d)\*\* \S.{10,}", CATALOGUE.read_text(), re.MULTILINE)


@cache
def cited() -> dict[str, set[str]]:
    """Of each number, the files whose tests name it."""
    found: dict[str, set[str]] = {}
    for place in PLACES:
        for path in sorted(place.rglob("*.py")):
            if "corpus" in path.parts or path == Path(__file__):
                continue
            for number in citations(ast.parse(path.read_text())):
                found.setdefault(number, set()).add(str(path.relative_to(ROOT)))
    return found


def citations(tree: ast.Module) -> Iterator[str]:
    """Numbers in the name or the docstring of a test, a case of a suite, or the module around it; a comment is none."""
    is_test = False
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and (
            node.name.startswith("test") or _is_case(node)
        ):
            is_test = True
            yield from (f"F{number}" for number in re.findall(r"(?:^|_)f(\d\d)(?=_|$)", node.name))
            yield from _named(ast.get_docstring(node))
    if is_test:
        yield from _named(ast.get_docstring(tree))


def _is_case(node: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    return any(isinstance(each, ast.Name | ast.Call) and "case" in ast.unparse(each) for each in node.decorator_list)


def _named(words: str | None) -> list[str]:
    return re.findall(r"\bF\d\d\b", words or "")


def test_the_catalogue_is_whole() -> None:
    assert numbers() == [f"F{number:02}" for number in range(1, 73)]


@pytest.mark.parametrize("number", numbers())
def test_a_failure_has_a_test(number: str) -> None:
    assert cited().get(number), f"no test cites {number}: write one, and name it in its docstring"


def test_no_test_cites_a_number_that_does_not_exist() -> None:
    assert {number: files for number, files in cited().items() if number not in numbers()} == {}


def test_a_comment_is_no_citation() -> None:
    assert list(citations(ast.parse("def test_f01_x():\n    # F02\n    pass"))) == ["F01"]
