"""Fixtures of servers: one of each kind per run, started when a test first asks for it, ended with the run.

All test processes share them (`tests.harness.shared`). In a server that knows databases each test process has one of
its own; there and elsewhere isolate by `unique_name` (table, prefix, scope, queue), not by restarting or flushing.
Tests that kill a server or change its settings start their own with `tests.harness.servers`.
"""

import gc
import logging
import os
import signal
import uuid
from collections.abc import Callable, Generator, Iterator
from contextlib import nullcontext
from functools import partial
from typing import Any, NoReturn
from urllib.parse import urlsplit

import hypothesis
import pytest

from effectonce.core.guarded_call.run import current_run
from tests.harness import installed, process, servers, shared, tiers

if (
    signal.getsignal(signal.SIGINT) is signal.SIG_IGN
):  # the shell started us in the background: our children would inherit that
    signal.signal(signal.SIGINT, signal.default_int_handler)
os.environ.pop(
    "PYTHONDONTWRITEBYTECODE", None
)  # set in some containers: hundreds of child processes would then compile every module again

# How long an example takes says how busy the machine is, and nothing about the code.
hypothesis.settings.register_profile(
    "any machine", deadline=None, suppress_health_check=[hypothesis.HealthCheck.too_slow]
)
hypothesis.settings.load_profile("any machine")


@pytest.hookimpl(tryfirst=True)  # before `-m` chooses
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    tiers.mark_long_tests(items)


@pytest.hookimpl(tryfirst=True)
def pytest_collection() -> None:
    """Collecting creates objects that stay: garbage collection would only cost time."""
    gc.disable()


def pytest_collection_finish() -> None:
    """Exclude what is loaded by now, fourteen thousand tests and their modules, from every later garbage collection."""
    gc.enable()
    gc.collect()
    gc.freeze()


@pytest.hookimpl(wrapper=True)
def pytest_report_to_serializable() -> Generator[None, Any, Any]:
    """Escape lone surrogates: a report with one cannot be sent to the main process, and would end the whole run."""
    return _escape_surrogates((yield))


def _escape_surrogates(value: Any) -> Any:
    if isinstance(value, str):
        return value.encode(errors="backslashreplace").decode()
    if isinstance(value, dict):
        return {_escape_surrogates(key): _escape_surrogates(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(map(_escape_surrogates, value))
    return value


# Servers

REGISTRY = pytest.StashKey[shared.ServerRegistry]()


def pytest_configure(config: pytest.Config) -> None:
    if not hasattr(config, "workerinput"):
        config.stash[REGISTRY] = shared.ServerRegistry()


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node: Any) -> None:
    """Test processes of pytest-xdist ask this process for servers."""
    node.workerinput["servers"] = node.config.stash[REGISTRY].listen()


def pytest_unconfigure(config: pytest.Config) -> None:
    if (registry := config.stash.get(REGISTRY, None)) is not None:
        registry.close()


def server_url(variable: str, start: Callable[[], str]) -> str:
    """Return the URL in the environment, else that of a server that ``start`` starts. Skip the test if it is not
    installed."""
    if url := os.environ.get(f"EFFECTONCE_TEST_{variable}_URL"):
        return url
    try:
        return start()
    except installed.Missing as missing:
        skip_or_fail(str(missing))


def skip_or_fail(reason: str) -> NoReturn:
    """Skip on a developer's machine; fail in CI, where a missing server would leave promises untested."""
    if os.environ.get("CI", "").lower() in ("true", "1"):
        pytest.fail(reason, pytrace=False)
    pytest.skip(reason)


@pytest.fixture(scope="session")
def shared_server(request: pytest.FixtureRequest) -> Callable[[str], str]:
    """``shared_server("redis")``: the URL of the one that all test processes use."""
    address = registry_address(request.config)
    return request.config.stash[REGISTRY].url if address is None else partial(shared.ask, address)


def registry_address(config: pytest.Config) -> str | None:
    """Return the address of the process that owns the servers; None if it is this one.

    It is the controlling process of pytest-xdist, or the one that started this run (see `tests.proof.sampled_mutants`).
    """
    if hasattr(config, "workerinput"):
        return str(config.workerinput["servers"])
    return os.environ.get("EFFECTONCE_TEST_SERVERS")


@pytest.fixture
def one_at_a_time(request: pytest.FixtureRequest) -> Iterator[None]:
    """For tests whose programs use the same names in a shared server: they run one at a time."""
    address = registry_address(request.config)
    with shared.one_at_a_time(address) if address is not None else nullcontext():
        yield


SharedServer = Callable[[str], str]
#: gw0, gw1, ...: the name of this test process, if it is one of several that share servers.
WORKER = os.environ.get("PYTEST_XDIST_WORKER") or os.environ.get("EFFECTONCE_TEST_PROCESS")


@pytest.fixture(scope="session")
def redis_url(shared_server: SharedServer) -> str:
    return server_url("REDIS", lambda: _numbered_database(shared_server("redis")))


@pytest.fixture(scope="session")
def redis_cluster_url(shared_server: SharedServer) -> str:
    return server_url("REDIS_CLUSTER", lambda: shared_server("redis_cluster"))


@pytest.fixture(scope="session")
def valkey_url(shared_server: SharedServer) -> str:
    return server_url("VALKEY", lambda: _numbered_database(shared_server("valkey")))


def _numbered_database(url: str) -> str:
    return url if WORKER is None else url.removesuffix("/0") + f"/{WORKER.removeprefix('gw')}"


@pytest.fixture(scope="session")
def postgres_url(shared_server: SharedServer) -> str:
    import psycopg

    def start() -> str:
        url = shared_server("postgres")
        if WORKER is None:
            return url
        with psycopg.connect(url, autocommit=True) as admin:
            admin.execute(f"DROP DATABASE IF EXISTS {WORKER} WITH (FORCE)".encode())  # an earlier run's
            admin.execute(f"CREATE DATABASE {WORKER}".encode())
        return _at_database(url, WORKER)

    return server_url("POSTGRES", start)


def _at_database(url: str, database: str) -> str:
    return f"{url.rpartition('/')[0]}/{database}"


@pytest.fixture
def empty_postgres(postgres_url: str, unique_name: str) -> Iterator[str]:
    """A database of its own, for programs that use the default names."""
    import psycopg

    with psycopg.connect(postgres_url, autocommit=True) as admin:
        admin.execute(f"CREATE DATABASE {unique_name}".encode())
        yield _at_database(postgres_url, unique_name)
        admin.execute(f"DROP DATABASE {unique_name} WITH (FORCE)".encode())


@pytest.fixture(scope="session")
def pgbouncer_url(shared_server: SharedServer, postgres_url: str) -> str:
    database = urlsplit(postgres_url).path[1:]
    upstream = _at_database(postgres_url, "postgres")
    return server_url("PGBOUNCER", lambda: _at_database(shared_server(f"pgbouncer {upstream}"), database))


@pytest.fixture(scope="session")
def mariadb_url(shared_server: SharedServer) -> str:
    import pymysql

    def start() -> str:
        url = shared_server("mariadb")
        if WORKER is None:
            return url
        with pymysql.connect(host="127.0.0.1", port=urlsplit(url).port or 3306, user="root") as admin:
            admin.cursor().execute(f"DROP DATABASE IF EXISTS {WORKER}")  # an earlier run's
            admin.cursor().execute(f"CREATE DATABASE {WORKER}")
        return _at_database(url, WORKER)

    return server_url("MYSQL", start)


@pytest.fixture(scope="session")
def own_mariadb() -> Iterator[servers.MariaDB]:
    """A server of this test process alone. A test may change its settings, and must change them back."""
    try:
        server = servers.mariadb()
    except installed.Missing as missing:
        skip_or_fail(str(missing))
    with server:
        yield server


@pytest.fixture(scope="session")
def aws_credentials() -> None:
    """Servers that imitate AWS require credentials, and accept any."""
    for name, value in {"AWS_ACCESS_KEY_ID": "local", "AWS_SECRET_ACCESS_KEY": "local"}.items():
        os.environ.setdefault(name, value)


@pytest.fixture(scope="session")
def dynamodb_url(shared_server: SharedServer, aws_credentials: None) -> str:
    """`dynamodb://effectonce?region=…&endpoint=…`; the table is the test's to create and name."""
    return server_url("DYNAMODB", lambda: shared_server("dynamodb"))


@pytest.fixture(scope="session")
def rabbitmq_url(shared_server: SharedServer) -> str:
    return server_url("AMQP", lambda: shared_server("rabbitmq"))


@pytest.fixture(scope="session")
def nats_url(shared_server: SharedServer) -> str:
    return server_url("NATS", lambda: shared_server("nats"))


@pytest.fixture(scope="session")
def kafka_url(shared_server: SharedServer) -> str:
    return server_url("KAFKA", lambda: shared_server("kafka"))


@pytest.fixture(scope="session", params=["elasticmq", "ministack"])
def sqs_url(request: pytest.FixtureRequest, shared_server: SharedServer, aws_credentials: None) -> str:
    """`sqs://?region=…&endpoint=…`: each test runs on two servers."""
    return server_url("SQS", lambda: shared_server(request.param))


@pytest.fixture(scope="session")
def pubsub_url(shared_server: SharedServer) -> str:
    """`pubsub://project?endpoint=…`"""
    return server_url("PUBSUB", lambda: shared_server("pubsub"))


@pytest.fixture(scope="session")
def dynamodb_endpoint(dynamodb_url: str) -> str:
    return dynamodb_url.partition("endpoint=")[2].partition("&")[0]


# Every test


@pytest.fixture(autouse=True)
def _no_run_of_another_test() -> Iterator[None]:
    """A streamed response that a test does not close leaves its run in this thread: remove it before the next test."""
    yield
    current_run.set(None)


@pytest.fixture(autouse=True)
def _no_log_level_of_another_test() -> Iterator[None]:
    """A Celery worker in a thread of this process changes the level of the root logger: restore it."""
    root = logging.getLogger()
    level = root.level
    yield
    root.setLevel(level)


@pytest.fixture
def unique_name() -> str:
    """A name that no other test uses, for tables, prefixes and scopes."""
    return f"t{uuid.uuid4().hex[:16]}"


@pytest.hookimpl(trylast=True)
def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    process.keep_logs = process.keep_logs or report.failed
