"""Every example is a folder with a short README and a test that runs it."""

from __future__ import annotations

from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FOLDERS = sorted(path.name for path in (ROOT / "examples").iterdir() if path.is_dir() and path.name[0] not in "._")
TESTS = [path.read_text() for path in (ROOT / "tests").rglob("test_*.py") if '"examples"' in path.read_text()]


@pytest.mark.parametrize("name", FOLDERS)
def test_it_says_what_it_is_and_how_to_run_it(name: str) -> None:
    lines = (ROOT / "examples" / name / "README.md").read_text().splitlines()
    assert lines[0].startswith("# ")
    assert any(line.startswith("    pip install ") for line in lines)
    assert len(lines) <= 15, "it is to be read in a minute: what is longer belongs into docs/guides"


@pytest.mark.parametrize("name", FOLDERS)
def test_it_is_run_by_a_test(name: str) -> None:
    assert any(f'"{name}"' in text or f'"{name}/' in text or f"examples/{name}" in text for text in TESTS)
