"""Every example is a folder with little code and a README that shows what it prints, and a test runs it."""

from __future__ import annotations

import ast
import io
import json
import os
import re
import shutil
import subprocess
import sys
import tokenize
from pathlib import Path

import pytest

from tests.docs.pages import blocks, commands, pages, servers_of

ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "examples"
TOURS = ("service", "shop")
MAX_CODE_LINES = 59
MAX_README_LINES = 45
FOLDERS = sorted(path.name for path in EXAMPLES.iterdir() if path.is_dir() and path.name[0] not in "._")
#: Their servers run beside them, so tests of their own start them; the other READMEs are run as they stand.
BESIDE_A_SERVER = {"task_queues", "faststream", "http", "django", "outbox_celery", *TOURS}
TESTS = [path.read_text() for path in (ROOT / "tests").rglob("test_*.py") if '"examples"' in path.read_text()]


def readme(name: str) -> str:
    return (EXAMPLES / name / "README.md").read_text()


def code_lines(source: str) -> int:
    """How many lines hold code: no comments, no docstrings, no blank lines."""
    layout = {tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER}
    lines: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type not in layout:
            lines.update(range(token.start[0], token.end[0] + 1))
    for node in ast.walk(ast.parse(source)):
        documented = isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef)
        if documented and ast.get_docstring(node) is not None:
            lines -= set(range(node.body[0].lineno, (node.body[0].end_lineno or 0) + 1))
    return len(lines)


@pytest.mark.parametrize("name", FOLDERS)
def test_its_readme_is_short_and_shows_what_it_prints(name: str) -> None:
    lines = readme(name).splitlines()
    assert lines[0].startswith("# ")
    assert len(lines) <= MAX_README_LINES, "it is to be read in a minute: what is longer belongs in docs/guides"
    consoles = [commands(block) for block in blocks(readme(name)) if block.language == "console"]
    assert any(command.startswith("pip install ") for console in consoles for command, _ in console)
    assert any(output for console in consoles for _, output in console)


@pytest.mark.parametrize("name", sorted({*FOLDERS} - {*TOURS}))
def test_its_code_is_read_in_a_minute(name: str) -> None:
    assert sum(code_lines(path.read_text()) for path in (EXAMPLES / name).rglob("*.py")) <= MAX_CODE_LINES


def test_the_list_of_examples_has_every_folder() -> None:
    linked = re.findall(r"\]\((\w+)\)", (EXAMPLES / "README.md").read_text())
    assert sorted(linked) == FOLDERS


@pytest.mark.parametrize("page", pages(), ids=lambda page: str(page.relative_to(ROOT)))
def test_the_examples_that_a_page_names_exist(page: Path) -> None:
    named = re.findall(r"\bexamples/\w[\w/.]*\w", page.read_text())
    assert not [path for path in named if not (ROOT / path).exists()]


@pytest.mark.parametrize("name", sorted(BESIDE_A_SERVER))
def test_it_is_run_by_a_test_of_its_own(name: str) -> None:
    assert any(f'"{name}"' in text or f'"{name}/' in text or f"examples/{name}" in text for text in TESTS)


@pytest.mark.quick_on("charge_once", "inbox", "intents", "outbox", "saga")
@pytest.mark.chaos
@pytest.mark.parametrize("name", sorted({*FOLDERS} - BESIDE_A_SERVER))
def test_its_commands_print_what_its_readme_shows(name: str, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    """F02, F14, F33, F40 and others: each kills, repeats or loses something, and counts."""
    addresses = {written: request.getfixturevalue(it) for written, it in servers_of(blocks(readme(name))).items()}
    folder = shutil.copytree(EXAMPLES / name, tmp_path / name)
    variables = {name: value for name, value in os.environ.items() if not name.startswith("EFFECTONCE_")}
    sources = f"{ROOT / 'src'}:{ROOT / 'lint' / 'src'}:{ROOT}"
    done = subprocess.run(
        [sys.executable, "-m", "tests.docs.session", str(folder / "README.md")],
        input=json.dumps(addresses),
        cwd=folder,
        env={**variables, "PYTHONPATH": sources, "NO_COLOR": "1", "COLUMNS": "200"},
        capture_output=True,
        text=True,
        timeout=280,
    )
    assert done.returncode == 0, done.stdout + done.stderr
