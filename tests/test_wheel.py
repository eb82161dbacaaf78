"""What is published: the wheel, in an empty environment with msgspec and nothing else, runs the demo."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from importlib.metadata import distribution
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
CARRIED = (".py", ".sql", ".lua", ".typed", ".html", ".css", ".js", ".svg")


class Installed:
    """An environment that holds Python, msgspec and our wheel."""

    def __init__(self, folder: Path, sources: Path) -> None:
        self.sources = sources
        self.scripts = folder / ("Scripts" if os.name == "nt" else "bin")
        self.python = str(self.scripts / "python")

    def run(self, command: Sequence[str | Path]) -> subprocess.CompletedProcess[str]:
        """``command``, away from the checkout and from everything that leads to it."""
        clean = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "EFFECTONCE"))}
        return subprocess.run(command, cwd=self.scripts, env=clean, capture_output=True, text=True, timeout=100)


def pip(*arguments: str | Path) -> None:
    done = subprocess.run([sys.executable, "-m", "pip", "--quiet", *arguments], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Installed:
    """Built and installed without the network; pip refuses if the wheel asks for anything but msgspec."""
    folder = tmp_path_factory.mktemp("wheel")
    sources = folder / "sources"
    sources.mkdir()
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, sources)
    shutil.copytree(ROOT / "src", sources / "src", ignore=shutil.ignore_patterns("__pycache__"))
    pip("wheel", "--no-deps", "--no-build-isolation", "--no-index", "--wheel-dir", folder, sources)
    (wheel,) = folder.glob("effectonce-*.whl")

    empty = folder / "empty"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", empty], check=True, timeout=60)
    environment = Installed(empty, sources)
    asked = environment.run([environment.python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"])
    lend_msgspec(Path(asked.stdout.strip()))
    pip("--python", environment.python, "install", "--no-index", "--no-compile", wheel)
    return environment


def lend_msgspec(to: Path) -> None:
    """Copy ours: the test is about our wheel, and must not need an index to fetch another's."""
    for file in distribution("msgspec").files or ():
        if ".." not in file.parts and "__pycache__" not in file.parts:
            target = to / file
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(file.locate(), target)


def test_nothing_else_is_there(installed: Installed) -> None:
    script = "from importlib.metadata import distributions; print(*sorted(d.name for d in distributions()))"
    assert installed.run([installed.python, "-c", script]).stdout.split() == ["effectonce", "msgspec"]


def test_the_demo_runs(installed: Installed) -> None:
    done = installed.run([installed.scripts / "effectonce", "demo"])
    assert (done.returncode, done.stderr) == (0, "")
    assert "side-effect fired 1 time(s)." in done.stdout


def test_the_crash_demo_runs(installed: Installed) -> None:
    done = installed.run([installed.scripts / "effectonce", "demo", "--crash", "--json"])
    assert (done.returncode, done.stderr) == (0, "")
    assert json.loads(done.stdout)["ok"] is True


def test_the_other_commands_say_what_to_install(installed: Installed) -> None:
    done = installed.run([installed.python, "-m", "effectonce", "migrate", "sqlite:///shop.db"])
    assert done.returncode == 2
    assert "pip install 'effectonce[cli]'" in done.stderr


def test_the_types_and_all_that_is_no_code_are_in_it(installed: Installed) -> None:
    script = "import effectonce, pathlib; print(pathlib.Path(effectonce.__file__).parent)"
    package = Path(installed.run([installed.python, "-c", script]).stdout.strip())
    ours = installed.sources / "src" / "effectonce"
    wanted = {path.relative_to(ours) for path in ours.rglob("*") if path.suffix in CARRIED}
    assert {path for path in wanted if not (package / path).exists()} == set()
    assert Path("py.typed") in wanted
