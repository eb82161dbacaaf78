"""Code that was not written for the checker: it may find something or not, but it never fails."""

from __future__ import annotations

import sysconfig
from pathlib import Path

import pytest

from effectonce.lint import engine
from effectonce.lint.config import Config

ROOT = Path(__file__).parents[2]
STDLIB = Path(sysconfig.get_path("stdlib"))
INSTALLED = Path(sysconfig.get_path("purelib"))


def looked_at(*paths: Path) -> engine.Report:
    report = engine.run([str(path) for path in paths], Config(), cache=False)
    assert report.files > 20
    assert [each.message for each in report.findings if "please report" in each.message] == []
    return report


@pytest.mark.parametrize("package", ["asyncio", "email", "concurrent", "json", "importlib", "unittest"])
def test_packages_of_the_standard_library(package: str) -> None:
    report = looked_at(STDLIB / package, STDLIB / "encodings")
    assert not report.unreadable


@pytest.mark.parametrize(
    "package", ["celery/app", "celery/worker", "dramatiq", "pika", "taskiq", "aio_pika", "babelqueue"]
)
def test_packages_that_are_full_of_consumers(package: str) -> None:
    report = looked_at(INSTALLED / package, STDLIB / "encodings")
    assert not report.unreadable


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_every_file_of_the_standard_library_and_of_all_installed_packages() -> None:
    looked_at(STDLIB)
    looked_at(INSTALLED)


def test_our_own_examples_are_clean() -> None:
    assert [(each.rule, each.place.path, each.place.line) for each in looked_at(ROOT / "examples").findings] == []


def test_and_so_are_we() -> None:
    found = looked_at(ROOT / "src", ROOT / "benchmarks").findings
    assert [(each.rule, each.place.path, each.place.line) for each in found] == []
