"""Every number of docs/failures.md is cited by at least one test, and tests cite no other numbers."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
CATALOGUE = ROOT / "docs" / "failures.md"
#: The suites for authors of backends are tests, too: our backends run them.
SUITES = ROOT / "src" / "effectonce" / "testing" / "suites"


def numbers() -> list[str]:
    return re.findall(r"^- \*\*(F\d\d)\*\* \S.{10,}", CATALOGUE.read_text(), re.MULTILINE)


@cache
def files_by_number() -> dict[str, set[str]]:
    """Return, for each number, the files whose tests cite it."""
    files: dict[str, set[str]] = {}
    cases = sorted(SUITES.glob("*/*.py"))
    for path in (*sorted((ROOT / "tests").rglob("*.py")), *cases):
        if "corpus" in path.parts or path == Path(__file__):
            continue
        for number in citations(ast.parse(path.read_text()), has_cases=path in cases):
            files.setdefault(number, set()).add(str(path.relative_to(ROOT)))
    return files


def citations(tree: ast.Module, *, has_cases: bool = False) -> Iterator[str]:
    """Yield the numbers in names and docstrings of tests, and in the docstring of their module. Comments do not count.

    In a module of a suite, every public coroutine function is a case, which is a test.
    """
    functions = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)]
    cases = [node for node in tree.body if isinstance(node, ast.AsyncFunctionDef) and not node.name.startswith("_")]
    tests = [node for node in functions if node.name.startswith("test")] + (cases if has_cases else [])
    for test in tests:
        yield from (f"F{number}" for number in re.findall(r"(?:^|_)f(\d\d)(?=_|$)", test.name))
        yield from _numbers_in(ast.get_docstring(test))
    if tests:
        yield from _numbers_in(ast.get_docstring(tree))


def _numbers_in(text: str | None) -> list[str]:
    return re.findall(r"\bF\d\d\b", text or "")


def test_the_catalogue_is_whole() -> None:
    """Up to F72 every number is there; those of later attacks are added with their tests."""
    assert numbers()[:72] == [f"F{number:02}" for number in range(1, 73)]
    assert numbers()[72:] == sorted(set(numbers()[72:]))


@pytest.mark.parametrize("number", numbers())
def test_a_failure_has_a_test(number: str) -> None:
    assert files_by_number().get(number), f"no test cites {number}: write one, and name it in its docstring"


def test_no_test_cites_a_number_that_does_not_exist() -> None:
    assert {number: files for number, files in files_by_number().items() if number not in numbers()} == {}


def test_cases_of_the_suites_are_citations() -> None:
    files = files_by_number()["F69"]
    assert "src/effectonce/testing/suites/stores/claims.py" in files


def test_a_comment_is_no_citation() -> None:
    assert list(citations(ast.parse("def test_f01_x():\n    # F02\n    pass"))) == ["F01"]
