"""The tests near a mutant: which they are, in which order they run, and for how long."""

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
from pathlib import Path
from typing import Final

import msgspec
import psutil

from tests.harness import reaper

from .checkout_copy import CheckoutCopy
from .mutations import Mutant
from .selection import Reach

MEMORY_BYTES: Final = 4 << 30  # of a test process: a mutant may fill a list for ever
ONE_TEST_SECONDS: Final = 90
PASSED, FAILED = 0, 1  # exit codes of pytest

TOOLS: Final = "guard inbox outbox relay sagas intents http worker"
BACKENDS: Final = "common memory sqlite redis postgres mysql dynamodb rabbitmq kafka nats sqs servicebus"
OUTBOX_PORT: Final = ("relay/test_port.py", "relay/test_port_details.py")
TOOLS_ON_CORE: Final = (
    *(f"worker/test_{part}.py" for part in ("effects", "stop", "poison", "retries")),
    *(f"intents/test_{part}.py" for part in ("operators", "recovery")),
)
DOCTOR: Final = ("doctor/test_servers.py",)
PROVIDERS: Final = tuple(f"intents/test_{part}.py" for part in ("providers", "verdicts", "clients", "user_errors"))
FRAMEWORKS: Final = tuple(
    f"http/test_{part}.py"
    for part in ("fastapi", "flask", "django", "django_app", "django_disconnects", "django_transactions")
)

#: The tests near each room, as folders and files of tests/.
ROOMS: Final[dict[str, tuple[str, ...]]] = {
    **{room: (room,) for room in (*TOOLS.split(), *(f"backends/{name}" for name in BACKENDS.split()))},
    "outbox": ("outbox", "relay/test_relay.py"),
    "worker": ("worker", "dead_letters"),  # a redrive reads and changes the records of the worker
    "core": ("core", "guard", "backends/memory", "backends/test_guarded_calls.py", "test_connect.py", *TOOLS_ON_CORE),
    **{room: (room,) for room in ("babelqueue", "envelopes")},
    "telemetry": ("telemetry", "cli/test_audit.py"),
    "dead_letters": ("dead_letters", "worker/test_poison.py", "worker/test_quarantine.py"),
    "integrations": ("integrations", "guard/test_dispatch.py", *FRAMEWORKS),
    "providers": PROVIDERS,
    "values": ("values", "test_keys.py", "test_connect.py", "http/test_client.py", *PROVIDERS),
    "backends/sqlite": ("backends/sqlite", *OUTBOX_PORT),
    "backends/redis": ("backends/redis", *DOCTOR),
    "backends/postgres": ("backends/postgres", *OUTBOX_PORT, *DOCTOR),
    "backends/mysql": ("backends/mysql", *OUTBOX_PORT, *DOCTOR),
}


def room_of(mutant: Mutant) -> str:
    return next(room for room in ROOMS if mutant.path.startswith(f"{room}/"))


@dataclass(frozen=True)
class PytestRun:
    """How a run of pytest ended."""

    exit_code: int | None  # None: it took too long
    first_failure: str  # the name of a test, or ""
    seconds: float
    output: str


def run_tests(
    copy: CheckoutCopy, servers: str, name: str, paths: Sequence[str], limit: float = 3600, **variables: str
) -> PytestRun:
    """Run the tests in ``paths`` of ``copy`` until one fails, for at most ``limit`` seconds.

    ``servers``: the address of the registry that starts servers. ``name``: of this test process, unlike all others.
    ``variables``: those of `selection`.
    """
    options = ("-q", "-x", "-rfE", "--tb=line", "--no-header", "-p", "no:cacheprovider", "-m", "not long")
    plugin = ("-p", "tests.proof.sampled_mutants.selection")
    command = (sys.executable, "-m", "pytest", *options, *plugin, f"--timeout={ONE_TEST_SECONDS}", *paths)
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


class NearTests:
    """The tests near a room. They run once without a mutant, to learn which lines they reach and how long they take."""

    def __init__(self, room: str, copy: CheckoutCopy, servers: str, name: str) -> None:
        self._servers = servers
        paths = [f"tests/{path}" for path in ROOMS[room]]
        with tempfile.NamedTemporaryFile(suffix=".json") as file:
            for _ in range(3):
                run = run_tests(copy, servers, name, paths, EFFECTONCE_REACH=file.name)
                if run.exit_code == PASSED:
                    break
            else:
                raise SystemExit(f"the tests near {room} fail without a mutant:\n{run.output[-3000:]}")
            self._reach = msgspec.json.decode(Path(file.name).read_bytes(), type=Reach)

    def run(self, mutant: Mutant, copy: CheckoutCopy, name: str) -> PytestRun:
        """Run the tests that reach the mutant's line, the quickest first. Then run all others, too, where the line is
        reached by an import, whose effect any test may see, or by none that is known: one may do so in another process.
        """
        seconds = self._reach.seconds
        reaching = self._reach.tests.get(mutant.path, {}).get(mutant.line, ())
        tests = sorted(seconds, key=lambda test: (test not in reaching, seconds[test]))
        if reaching and "" not in reaching:
            tests = [test for test in tests if test in reaching]
        run = self._run_only(tests, copy, name)
        flaky = run.first_failure in seconds and self._run_only([run.first_failure], copy, name).exit_code == PASSED
        if flaky:
            run = self._run_only(tests, copy, name)
        return run

    def _run_only(self, tests: Sequence[str], copy: CheckoutCopy, name: str) -> PytestRun:
        files = sorted({test.partition("::")[0] for test in tests})
        limit = 60 + 4 * sum(self._reach.seconds[test] for test in tests)
        with tempfile.NamedTemporaryFile("w", suffix=".tests") as file:
            file.write("\n".join(tests))
            file.flush()
            return run_tests(copy, self._servers, name, files, limit, EFFECTONCE_TESTS=file.name)
