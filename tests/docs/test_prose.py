"""The linter of our prose finds what it is to find."""

from __future__ import annotations

from pathlib import Path

import pytest

from . import prose


def test_a_word_of_ours_is_found_in_prose_and_not_in_code(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs" / "page.md").write_text("Whoever reads this.\n\n```python\nwhoever = 1\n```\n\nAnd `nobody`.\n")
    module = tmp_path / "src" / "module.py"
    module.parent.mkdir()
    module.write_text("nobody = 1\nother = nobody  # what becomes of it\n")
    monkeypatch.setattr(prose, "ROOT", tmp_path)
    assert list(prose.findings()) == [
        "docs/page.md:1: Write 'the actor' instead of 'Whoever'.",
        "src/module.py:2: Write 'what happens to' instead of 'what becomes of'.",
    ]


def test_comments_in_the_code_of_a_page_are_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "README.md").write_text("Text.\n\n```python\nstore = connect(url)  # redis:// in earnest\n```\n")
    monkeypatch.setattr(prose, "ROOT", tmp_path)
    assert list(prose.findings()) == ["README.md:4: Write 'in production' instead of 'in earnest'."]


def test_nothing_is_no_thing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = "There is no key.\nIt is no longer here, and is no larger.\nA return is no\nsuccess.\n"
    (tmp_path / "README.md").write_text(text)
    monkeypatch.setattr(prose, "ROOT", tmp_path)
    assert list(prose.findings()) == ["README.md:3: Write 'is not a …' instead of 'return is no success'."]
