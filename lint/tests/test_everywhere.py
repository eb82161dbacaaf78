"""Code that was not written for the checker: it may find something or not, but it never fails."""

from __future__ import annotations

import os
import sysconfig
from datetime import date
from pathlib import Path
from zlib import crc32

import pytest

from effectonce_lint import engine
from effectonce_lint.config import Config

ROOT = Path(__file__).parents[2]
STDLIB = Path(sysconfig.get_path("stdlib"))
INSTALLED = Path(sysconfig.get_path("purelib"))
THIRD = os.environ.get("EFFECTONCE_LINT_PACKAGES", str(date.today().toordinal() % 3))
"""Which packages: 0, 1 or 2 for a third of them, by default another one each day; all."""


def looked_at(*paths: Path) -> engine.LintReport:
    report = engine.run([str(path) for path in paths], Config(), cache=False)
    assert [each.message for each in report.findings if "please report" in each.message] == []
    return report


def chosen(package: Path) -> bool:
    python = package.is_dir() or package.suffix == ".py"
    return python and THIRD in ("all", str(crc32(package.name.encode()) % 3))


@pytest.mark.long
@pytest.mark.timeout(600)
def test_every_file_of_the_standard_library() -> None:
    assert looked_at(STDLIB).files > 500  # Debian leaves out its tests


@pytest.mark.long
@pytest.mark.timeout(1200)
def test_every_file_of_the_installed_packages() -> None:
    """A third of them in each run; ``EFFECTONCE_LINT_PACKAGES=all`` takes them all."""
    packages = sorted(filter(chosen, INSTALLED.iterdir()))
    assert looked_at(*packages).files > 500


def test_packages_that_are_full_of_consumers() -> None:
    report = looked_at(*(INSTALLED / name for name in ("dramatiq", "pika", "taskiq", "aio_pika", "babelqueue")))
    assert report.files > 100
    assert not report.has_unreadable_files


def test_our_own_examples_are_clean() -> None:
    report = looked_at(ROOT / "examples")
    assert report.files > 20
    assert [(each.rule, each.place.path, each.place.line) for each in report.findings] == []


@pytest.mark.long
def test_and_so_are_we() -> None:
    found = looked_at(ROOT / "src", ROOT / "lint" / "src", ROOT / "benchmarks").findings
    assert [(each.rule, each.place.path, each.place.line) for each in found] == []
