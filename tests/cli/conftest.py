"""The command line as operators run it: a process, its output, its exit code."""

from __future__ import annotations

import json
import logging
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from effectonce.cli import main, settings

Run = Callable[..., "subprocess.CompletedProcess[str]"]


class Done(NamedTuple):
    """The output of a command, run in this process."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)


Cli = Callable[..., Done]
Sabotage = Callable[[str], str]

#: The SQLite store, answering every operation with what `answer(op)` says.
SABOTAGE = """\
from effectonce.record import Answer, Claim, Look
from effectonce.backends.sqlite.store import SQLiteStoreBackend

class Sabotaged:
    def __init__(self, port):
        self._port = port
    def __getattr__(self, name):
        return getattr(self._port, name)
    async def run(self, batch):
        return [answer(op) for op in batch]

honest = SQLiteStoreBackend.sync_port
SQLiteStoreBackend.sync_port = lambda self: Sabotaged(honest(self))
"""
LETS_EVERYTHING_THROUGH = """
def answer(op):
    if isinstance(op, Claim):
        return Answer("claimed", 1, 1, note=op.note)
    return Answer("absent") if isinstance(op, Look) else True
"""
BREAKS = """
def answer(op):
    return 1 / 0
"""


@pytest.fixture
def temporary() -> Iterator[Path]:
    """The folder for temporary files of a command; short, as sockets in it have short names."""
    with tempfile.TemporaryDirectory(prefix="eo") as folder:
        yield Path(folder)


@pytest.fixture
def environment(temporary: Path) -> dict[str, str]:
    """The environment of commands, without variables that change what they print."""
    unwanted = ("NO_COLOR", "FORCE_COLOR", "EFFECTONCE_STORE", "COLUMNS", "PYTHONPATH")
    kept = {name: value for name, value in os.environ.items() if name not in unwanted}
    return {**kept, "TMPDIR": str(temporary), "TERM": "xterm", "PYTHONIOENCODING": "utf-8"}


@pytest.fixture
def run(environment: dict[str, str], tmp_path: Path) -> Run:
    """``run("demo", "--json", NO_COLOR="1")``: the command in a pipe, in a folder of its own."""

    def run(*arguments: str, **extra: str) -> subprocess.CompletedProcess[str]:
        if "PYTHONPATH" not in extra and arguments[:1] != ("demo",):
            return run_in_fork(arguments, {**environment, **extra}, tmp_path)
        options: dict[str, Any] = {"capture_output": True, "text": True, "timeout": 100, "cwd": tmp_path}
        command = [sys.executable, "-m", "effectonce", *arguments]
        return subprocess.run(command, env={**environment, **extra}, **options)

    return run


def run_in_fork(arguments: Sequence[str], variables: dict[str, str], folder: Path) -> subprocess.CompletedProcess[str]:
    """Run the command in a fork of this process, which saves half a second of imports."""
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        sys.stdout.flush()
        sys.stderr.flush()
        pid = os.fork()
        if pid == 0:
            code = 70
            try:
                os.environ.clear()
                os.environ.update(variables)
                os.chdir(folder)
                os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
                os.dup2(out.fileno(), 1)
                os.dup2(err.fileno(), 2)
                sys.stdin, sys.stdout, sys.stderr = os.fdopen(0), os.fdopen(1, "w"), os.fdopen(2, "w")
                settings._read_pyproject.cache_clear()
                logging.root.handlers.clear()
                for name in [name for name, module in sys.modules.items() if _temporary(module)]:  # of another test
                    del sys.modules[name]
                code = main(arguments)
            except SystemExit as ended:
                code = int(ended.code or 0)
            finally:
                sys.stdout.flush()
                sys.stderr.flush()
                os._exit(code)
        _, status = os.waitpid(pid, 0)
        outputs = []
        for file in (out, err):
            file.seek(0)
            outputs.append(file.read().decode())
    return subprocess.CompletedProcess(arguments, os.waitstatus_to_exitcode(status), *outputs)


def _temporary(module: object) -> bool:
    return "/pytest-of-" in str(getattr(module, "__file__", None) or "")


@pytest.fixture
def inline(capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Cli:
    """``inline("check", "--json")``: the command in this process, which is quicker, in a folder of its own."""
    monkeypatch.chdir(tmp_path)
    for name in ("EFFECTONCE_STORE", "EFFECTONCE_BROKER", "EFFECTONCE_AUDIT"):
        monkeypatch.delenv(name, raising=False)

    def inline(*arguments: str) -> Done:
        settings._read_pyproject.cache_clear()
        try:
            code = main(arguments)
        except SystemExit as ended:  # argparse, of the demo
            code = int(ended.code or 0)
        return Done(code, *capsys.readouterr())

    return inline


@pytest.fixture
def without(tmp_path: Path) -> Callable[..., str]:
    """Return a PYTHONPATH under which the named libraries seem not to be installed."""

    def without(*modules: str) -> str:
        folder = tmp_path / "hidden"
        folder.mkdir(exist_ok=True)
        (folder / "sitecustomize.py").write_text(
            "import sys\n"
            "class Hidden:\n"
            "    def find_spec(name, path=None, target=None):\n"
            f"        if name in {modules!r}:\n"
            "            raise ModuleNotFoundError(f'No module named {name}', name=name)\n"
            "sys.meta_path.insert(0, Hidden)\n"
        )
        return str(folder)

    return without


@pytest.fixture
def sabotaged(tmp_path: Path) -> Sabotage:
    """A PYTHONPATH under which the SQLite store is sabotaged, in the command and in every process it starts."""

    def sabotaged(how: str) -> str:
        folder = tmp_path / "sabotage"
        folder.mkdir()
        (folder / "sitecustomize.py").write_text(SABOTAGE + how)
        return str(folder)

    return sabotaged
