"""Running the tests near a mutant: which they are, in what order, and for how long."""

from __future__ import annotations

import os
import re
import resource
import signal
import subprocess
import sys
import tempfile
import time
import xml.etree.ElementTree as xml
from collections import defaultdict
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import psutil

from tests.harness import leash

from .mutations import Mutant
from .source_copy import PACKAGE, SourceCopy

ROOT: Final = PACKAGE.parents[1]
MEMORY_BYTES: Final = 4 << 30  # of a test process: a mutant may fill a list for ever
ONE_TEST_SECONDS: Final = 90
PASSED, FAILED = 0, 1  # exit codes of pytest

TOOLS: Final = "guard inbox outbox relay sagas intents http worker"
BACKENDS: Final = "memory sqlite redis postgres mysql dynamodb rabbitmq kafka nats sqs servicebus"

#: The tests near each room, as folders and files of tests/.
ROOMS: Final[dict[str, tuple[str, ...]]] = {
    **{room: (room,) for room in (*TOOLS.split(), *(f"backends/{name}" for name in BACKENDS.split()))},
    "outbox": ("outbox", "relay/test_relay.py"),
    "core": ("guard", "backends/memory", "backends/test_guarded_calls.py"),
}


def room_of(mutant: Mutant) -> str:
    return next(room for room in ROOMS if mutant.path.startswith(f"{room}/"))


@dataclass(frozen=True)
class PytestRun:
    """How a run ended: ``code`` is pytest's exit code, None where it took too long; ``failed`` the first failure."""

    code: int | None
    failed: str
    seconds: float
    output: str


def run_tests(copy: SourceCopy, tests: Sequence[str], servers: str, name: str, limit: float, *extra: str) -> PytestRun:
    """Run ``tests`` on the package in ``copy`` until one fails, for at most ``limit`` seconds.

    ``servers`` is the address of the registry that has the servers, ``name`` tells this test process from others.
    """
    options = ("-q", "-x", "-rfE", "--tb=line", "--no-header", "-p", "no:cacheprovider", "-m", "not long")
    command = (sys.executable, "-m", "pytest", *options, f"--timeout={ONE_TEST_SECONDS}", *extra, *tests)
    environment = {
        **os.environ,
        "PYTHONPATH": str(copy.folder),
        "EFFECTONCE_TEST_SERVERS": servers,
        "EFFECTONCE_TEST_PROCESS": name,
    }
    started = time.monotonic()
    with tempfile.TemporaryFile() as output:
        process = subprocess.Popen(
            command, cwd=ROOT, env=environment, stdin=subprocess.DEVNULL, stdout=output, stderr=output,
            start_new_session=True,
        )  # fmt: skip
        resource.prlimit(process.pid, resource.RLIMIT_DATA, (MEMORY_BYTES, MEMORY_BYTES))
        code: int | None
        try:
            code = process.wait(limit)
        except subprocess.TimeoutExpired:
            code = None
        finally:
            _end(process)
        output.seek(0)
        text = output.read().decode(errors="replace")
    failure = re.search(r"^(?:FAILED|ERROR) (.+?)(?: - |$)", text, re.MULTILINE)
    return PytestRun(code, failure[1] if failure else "", time.monotonic() - started, text)


def _end(process: subprocess.Popen[bytes]) -> None:
    """End the test process and what it left behind in its group."""
    if process.poll() is None:
        leash.kill_tree(psutil.Process(process.pid))
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


class Baseline:
    """The tests near a room, and how long each of their files takes on the original."""

    def __init__(self, room: str, copy: SourceCopy, servers: str, name: str) -> None:
        with tempfile.NamedTemporaryFile(suffix=".xml") as report:
            tests = [f"tests/{path}" for path in ROOMS[room]]
            run = run_tests(copy, tests, servers, name, 1800, f"--junitxml={report.name}", "-o", "junit_family=xunit1")
            if run.code != PASSED:
                raise SystemExit(f"the tests near {room} fail without a mutant:\n{run.output[-3000:]}")
            self._file_seconds: defaultdict[str, float] = defaultdict(float)
            for case in xml.parse(report.name).iter("testcase"):
                self._file_seconds[case.get("file", "")] += float(case.get("time", 0))
        self.limit = 60 + 3 * run.seconds

    def tests_for(self, mutant: Mutant) -> list[str]:
        """All test files, the one with the module's name first, then the quick ones before the slow ones."""
        words = Path(mutant.path).stem.split("_")

        def rank(file: str) -> tuple[bool, float]:
            return not any(word in Path(file).stem.split("_") for word in words), self._file_seconds[file]

        return sorted(self._file_seconds, key=rank)
