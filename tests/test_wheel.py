"""What is published: the two wheels, each in an empty environment with what it requires and nothing else.

The library's runs the demo; the checker's checks code and designs, and no effectonce is there.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Sequence
from importlib.metadata import distribution
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
CARRIED = (".py", ".sql", ".lua", ".typed", ".html", ".css", ".js", ".svg")


class Installed:
    """An environment that holds Python, one of our wheels and what it requires."""

    def __init__(self, folder: Path, sources: Path) -> None:
        self.sources = sources
        self.scripts = folder / ("Scripts" if os.name == "nt" else "bin")
        self.python = str(self.scripts / "python")

    def run(self, command: Sequence[str | Path]) -> subprocess.CompletedProcess[str]:
        """``command``, away from the checkout and from everything that leads to it."""
        clean = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "EFFECTONCE"))}
        return subprocess.run(command, cwd=self.scripts, env=clean, capture_output=True, text=True, timeout=100)


CHECKER_NEEDS = ("PyYAML", "msgspec", "tree-sitter", "tree-sitter-python")


def pip(*arguments: str | Path) -> None:
    done = subprocess.run([sys.executable, "-m", "pip", "--quiet", *arguments], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Installed:
    return install(ROOT, tmp_path_factory.mktemp("wheel"), "msgspec")


@pytest.fixture(scope="module")
def checker(tmp_path_factory: pytest.TempPathFactory) -> Installed:
    return install(ROOT / "lint", tmp_path_factory.mktemp("checker"), *CHECKER_NEEDS)


def install(project: Path, folder: Path, *requirements: str) -> Installed:
    """Build and install ``project`` without the network; pip refuses if the wheel requires anything else."""
    sources = folder / "sources"
    sources.mkdir()
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(project / name, sources)
    shutil.copytree(project / "src", sources / "src", ignore=shutil.ignore_patterns("__pycache__"))
    pip("wheel", "--no-deps", "--no-build-isolation", "--no-index", "--wheel-dir", folder, sources)
    (wheel,) = folder.glob("*.whl")

    empty = folder / "empty"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", empty], check=True, timeout=60)
    environment = Installed(empty, sources)
    asked = environment.run([environment.python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"])
    for requirement in requirements:
        lend(requirement, Path(asked.stdout.strip()))
    pip("--python", environment.python, "install", "--no-index", "--no-compile", wheel)
    return environment


def lend(requirement: str, to: Path) -> None:
    """Copy ours: the test is about our wheel, and must not need an index to fetch another's."""
    for file in distribution(requirement).files or ():
        if ".." not in file.parts and "__pycache__" not in file.parts:
            target = to / file
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(file.locate(), target)


def names_of_distributions(environment: Installed) -> list[str]:
    script = "from importlib.metadata import distributions; print(*sorted(d.name for d in distributions()))"
    return environment.run([environment.python, "-c", script]).stdout.split()


def test_nothing_else_is_there(installed: Installed, checker: Installed) -> None:
    assert names_of_distributions(installed) == ["effectonce", "msgspec"]
    assert names_of_distributions(checker) == sorted((*CHECKER_NEEDS, "effectonce-lint"))


def test_the_demo_runs(installed: Installed) -> None:
    done = installed.run([installed.scripts / "effectonce", "demo"])
    assert (done.returncode, done.stderr) == (0, "")
    assert "side-effect fired 1 time(s)." in done.stdout


def test_the_crash_demo_runs(installed: Installed) -> None:
    done = installed.run([installed.scripts / "effectonce", "demo", "--crash", "--json"])
    assert (done.returncode, done.stderr) == (0, "")
    assert json.loads(done.stdout)["ok"] is True


def test_the_other_commands_say_what_to_install(installed: Installed) -> None:
    done = installed.run([installed.python, "-m", "effectonce", "migrate", "--store", "sqlite:///shop.db"])
    assert done.returncode == 2
    assert "pip install 'effectonce[cli]'" in done.stderr


def test_without_the_checker_lint_says_what_to_install(installed: Installed) -> None:
    done = installed.run([installed.scripts / "effectonce", "lint", "."])
    assert (done.returncode, done.stdout) == (2, "")
    assert "pip install effectonce-lint" in done.stderr


@pytest.mark.parametrize("command", ["effectonce-lint", "python -m effectonce_lint"])
def test_the_checker_runs_without_effectonce(checker: Installed, command: str) -> None:
    corpus = ROOT / "lint" / "tests" / "corpus"
    script = [checker.scripts / part if at == 0 else part for at, part in enumerate(command.split())]
    done = checker.run([*script, "--no-cache", "--isolated", "--json", corpus / "celery", corpus / "designs"])
    assert (done.returncode, done.stderr) == (1, "")
    suffixes = {Path(finding["location"]["file"]).suffix for finding in json.loads(done.stdout)["findings"]}
    assert suffixes >= {".py", ".yaml", ".json", ".md", ".tf", ".sql"}


@pytest.mark.parametrize(("fixture", "package"), [("installed", "effectonce"), ("checker", "effectonce_lint")])
def test_the_types_and_all_that_is_no_code_are_in_it(
    fixture: str, package: str, request: pytest.FixtureRequest
) -> None:
    environment: Installed = request.getfixturevalue(fixture)
    script = f"import {package}, pathlib; print(pathlib.Path({package}.__file__).parent)"
    there = Path(environment.run([environment.python, "-c", script]).stdout.strip())
    ours = environment.sources / "src" / package
    wanted = {path.relative_to(ours) for path in ours.rglob("*") if path.suffix in CARRIED}
    assert {path for path in wanted if not (there / path).exists()} == set()
    assert Path("py.typed") in wanted


def test_the_two_distributions_have_one_version_and_one_licence() -> None:
    library, checker = (
        tomllib.loads((folder / "pyproject.toml").read_text())["project"] for folder in (ROOT, ROOT / "lint")
    )
    assert library["version"] == checker["version"]
    assert (ROOT / "LICENSE").read_bytes() == (ROOT / "lint" / "LICENSE").read_bytes()


@pytest.mark.parametrize("project", [ROOT, ROOT / "lint"], ids=["effectonce", "effectonce-lint"])
def test_a_wheel_is_built_from_the_source_distribution_alone(project: Path, tmp_path: Path) -> None:
    """The checker's tests are in its own, the library's in the library's."""
    build = [sys.executable, "-m", "hatchling", "build", "--target", "sdist", "--directory", str(tmp_path)]
    done = subprocess.run(build, cwd=project, capture_output=True, text=True, timeout=100)
    assert done.returncode == 0, done.stderr
    (archive,) = tmp_path.glob("*.tar.gz")
    shutil.unpack_archive(archive, tmp_path)
    (sources,) = (path for path in tmp_path.iterdir() if path.is_dir())
    assert (sources / "tests" / "conftest.py").exists()
    assert not (sources / "lint").exists()
    pip("wheel", "--no-deps", "--no-build-isolation", "--no-index", "--wheel-dir", tmp_path, sources)
    assert len(list(tmp_path.glob("*.whl"))) == 1
