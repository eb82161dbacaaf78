"""The tests near a mutant: which they are, in which order they run, and for how long."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from .checkout_copy import CheckoutCopy
from .mutations import Mutant
from .pytest_process import PASSED, PytestRun, run_tests
from .selection import Reach

ONE_TEST_SECONDS: Final = 30  # for a quick test with a mutant, which may hang

TOOLS: Final = "guard inbox outbox relay sagas intents http worker"
BACKENDS: Final = "common memory sqlite redis postgres mysql dynamodb rabbitmq kafka nats sqs servicebus pubsub"
#: The ports of a SQL store that belong to tools: an outbox, an inbox, and an intent that completes with its rows.
TOOL_PORTS: Final = (
    *("relay/test_port.py", "relay/test_port_details.py", "cli/test_outbox.py"),
    *("inbox/test_admin.py", "intents/test_transactional.py"),
)
TOOLS_ON_CORE: Final = (
    *("test_broker.py", "test_one_event_loop.py", "telemetry/test_opentelemetry.py"),
    *(f"worker/test_{part}.py" for part in ("effects", "stop", "poison", "retries")),
    *(f"intents/test_{part}.py" for part in ("operators", "recovery")),
    "integrations/test_aws_lambda.py",  # leases in a process that its platform ends
    *("telemetry/test_work_spans.py", "cli/test_records.py"),  # spans; what an operator reads of a record
)
DOCTOR: Final = ("doctor/test_servers.py", "doctor/test_rights.py")
#: Near every room: the documented defaults are those of the code.
EVERY_ROOM: Final = ("docs/test_reference.py",)
PROVIDERS: Final = tuple(
    f"intents/test_{part}.py" for part in ("providers", "outcome_fields", "verdicts", "clients", "user_errors")
)
FRAMEWORKS: Final = tuple(
    f"http/test_{part}.py"
    for part in (
        "fastapi",
        "flask",
        "django",
        "django_app",
        "django_bodies",
        "django_disconnects",
        "django_transactions",
    )
)

#: The tests near each room, as folders and files of tests/.
ROOMS: Final[dict[str, tuple[str, ...]]] = {
    **{room: (room,) for room in (*TOOLS.split(), *(f"backends/{name}" for name in BACKENDS.split()))},
    "inbox": ("inbox", "worker/test_transactions.py"),
    "guard": ("guard", "integrations/frameworks/test_introspection.py", "integrations/test_tasks.py"),
    **{room: (room, "telemetry/test_work_spans.py") for room in ("sagas", "intents")},
    "outbox": ("outbox", "relay/test_relay.py"),
    "sessions": ("inbox", "outbox"),  # the caller's connections, of which these two take one
    "search": ("search", "cli/test_find.py"),
    "relay": ("relay", "telemetry/test_endpoints.py"),
    "worker": ("worker", "dead_letters"),  # a redrive reads and changes the records of the worker
    "core": ("core", "guard", "backends/memory", "backends/test_guarded_calls.py", "test_connect.py", *TOOLS_ON_CORE),
    **{room: (room,) for room in ("babelqueue", "envelopes", "dashboard", "doctor")},
    "cli": ("cli", "relay/test_cli.py", "dead_letters/test_dead_letters.py"),
    "telemetry": ("telemetry", "cli/test_audit.py"),
    "dead_letters": ("dead_letters", "worker/test_poison.py", "worker/test_quarantine.py"),
    "integrations": ("integrations", "guard/test_dispatch.py", *FRAMEWORKS),
    "providers": PROVIDERS,
    "values": ("values", "test_keys.py", "test_connect.py", "http/test_client.py", *PROVIDERS, "cli/test_find.py"),
    "backends/sqlite": ("backends/sqlite", *TOOL_PORTS),
    "backends/redis": ("backends/redis", *DOCTOR),
    "backends/postgres": ("backends/postgres", *TOOL_PORTS, *DOCTOR),
    "backends/mysql": ("backends/mysql", *TOOL_PORTS, *DOCTOR),
}


def room_of(mutant: Mutant) -> str:
    return next(room for room in ROOMS if mutant.path.startswith(f"{room}/"))


def files_near(room: str, root: Path) -> list[str]:
    """The files of the tests near ``room``, relative to ``root``, which is the checkout or a copy of it."""
    paths = [root / "tests" / path for path in (*ROOMS[room], *EVERY_ROOM)]
    files = {file for path in paths for file in (path.rglob("test_*.py") if path.is_dir() else [path])}
    return sorted(str(file.relative_to(root)) for file in files)


class NearTests:
    """The tests near a room, of which ``reach`` says which lines they reach and how long they take."""

    def __init__(self, reach: Reach, servers: str) -> None:
        self._reach = reach
        self._servers = servers

    def run(self, mutant: Mutant, copy: CheckoutCopy, name: str) -> PytestRun:
        """Run the tests that reach the mutant's line, the quickest first. Then run all others, too, where the line is
        run by an import, whose effect any test may see, or reached by none that is known: one may do so in another
        process. Of these, the tests that reach other lines of the file come first.
        """
        seconds = self._reach.seconds
        lines = self._reach.tests.get(mutant.path, {})
        reaching = lines.get(mutant.line, ())
        beside = {test for tests in lines.values() for test in tests}
        tests = sorted(seconds, key=lambda test: (test not in reaching, test not in beside, seconds[test]))
        if mutant.in_function and reaching and "" not in reaching:
            tests = [test for test in tests if test in reaching]
        while True:
            run = self._run_only(tests, copy, name)
            if run.first_failure not in tests:
                return run
            alone = self._run_only([run.first_failure], copy, name)
            if alone.exit_code != PASSED:
                return run
            tests = tests[tests.index(run.first_failure) + 1 :]  # alone it passes: its failure proves nothing
            if not tests:
                return alone

    def _run_only(self, tests: Sequence[str], copy: CheckoutCopy, name: str) -> PytestRun:
        files = sorted({test.partition("::")[0] for test in tests})
        seconds = [self._reach.seconds[test] for test in tests]
        with tempfile.NamedTemporaryFile("w", suffix=".tests") as file:
            file.write("\n".join(tests))
            file.flush()
            return run_tests(
                copy, self._servers, name, files,
                limit=60 + 4 * sum(seconds),
                one_test_seconds=max(ONE_TEST_SECONDS, 10 * max(seconds)),
                EFFECTONCE_TESTS=file.name,
            )  # fmt: skip
