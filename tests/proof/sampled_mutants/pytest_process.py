"""One run of pytest in a copy of the checkout."""

from __future__ import annotations

import os
import re
import resource
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

import psutil

from tests.harness import reaper

from .checkout_copy import CheckoutCopy

MEMORY_BYTES: Final = 4 << 30  # of a test process: a mutant may fill a list for ever
PASSED, FAILED, NO_TESTS = 0, 1, 5  # exit codes of pytest


@dataclass(frozen=True)
class PytestRun:
    """How a run of pytest ended."""

    exit_code: int | None  # None: it took too long
    first_failure: str  # the name of a test, or ""
    seconds: float
    output: str


def run_tests(
    copy: CheckoutCopy,
    servers: str,
    name: str,
    paths: Sequence[str],
    *,
    limit: float = 3600,
    one_test_seconds: float = 90,
    max_failures: int = 1,
    **variables: str,
) -> PytestRun:
    """Run the tests in ``paths`` of ``copy`` until ``max_failures`` fail (0: all), for at most ``limit`` seconds.

    ``servers``: the address of the registry that starts servers. ``name``: of this test process, unlike all others.
    ``variables``: those of `selection`.
    """
    options = ("-q", f"--maxfail={max_failures}", "-rfE", "--tb=line", "--no-header", "-p", "no:cacheprovider")
    plugin = ("-p", "tests.proof.sampled_mutants.selection")
    only = ("-m", "not long", f"--timeout={one_test_seconds:.0f}")
    command = (sys.executable, "-m", "pytest", *options, *plugin, *only, *paths)
    environment = {
        **os.environ,
        "PYTHONPATH": str(copy.package.parent),
        "EFFECTONCE_TEST_SERVERS": servers,
        "EFFECTONCE_TEST_PROCESS": name,
        **variables,
    }
    started = time.monotonic()
    with tempfile.TemporaryFile() as output:
        process = subprocess.Popen(
            command, cwd=copy.root, env=environment, stdin=subprocess.DEVNULL, stdout=output, stderr=output,
            start_new_session=True,
        )  # fmt: skip
        resource.prlimit(process.pid, resource.RLIMIT_DATA, (MEMORY_BYTES, MEMORY_BYTES))
        exit_code: int | None
        try:
            exit_code = process.wait(limit)
        except subprocess.TimeoutExpired:
            exit_code = None
        finally:
            _end(process)
        output.seek(0)
        text = output.read().decode(errors="replace")
    summary = text.rpartition("short test summary info")[2]
    failure = re.search(r"^(?:FAILED|ERROR) (.+?)(?: - |$)", summary, re.MULTILINE)
    return PytestRun(exit_code, failure[1] if failure else "", time.monotonic() - started, text)


def _end(process: subprocess.Popen[bytes]) -> None:
    """End the test process and what it left behind in its group."""
    if process.poll() is None:
        reaper.kill_tree(psutil.Process(process.pid))
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
