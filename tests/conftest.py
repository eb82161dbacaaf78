"""The servers as fixtures: started when a test first asks, one per test process, ended with it.

Isolate by `unique_name` (table, prefix, scope), not by restarting or flushing. Tests that kill a server start
their own with `tests.harness.servers`.
"""

import gc
import logging
import os
import signal
import uuid
from collections.abc import Callable, Generator, Iterator
from typing import Any, NoReturn, Protocol

import pytest

from effectonce.core.guarded_call.run import running
from tests.harness import process, servers
from tests.harness.kafka import kafka
from tests.harness.nats import nats
from tests.harness.rabbitmq import rabbitmq
from tests.harness.sqs import elasticmq, ministack

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # started in the background of a shell; it would be inherited
    signal.signal(signal.SIGINT, signal.default_int_handler)
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)  # set in some containers; hundreds of children would compile us anew


def pytest_collection_finish() -> None:
    """What is loaded by now stays: a `gc.collect()` in a test, and every one that Python does by itself, need not look
    through twelve thousand tests and their modules."""
    gc.collect()
    gc.freeze()


@pytest.hookimpl(wrapper=True)
def pytest_report_to_serializable() -> Generator[None, Any, Any]:
    """A report with half a surrogate pair in it cannot be sent to the main process, and would end the whole run."""
    return _sendable((yield))


def _sendable(value: Any) -> Any:
    if isinstance(value, str):
        return value.encode(errors="backslashreplace").decode()
    if isinstance(value, dict):
        return {_sendable(key): _sendable(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(map(_sendable, value))
    return value


class Running(Protocol):
    @property
    def url(self) -> str: ...

    def close(self) -> object: ...


def serve(variable: str, start: Callable[[], Running]) -> Generator[str, None, None]:
    """The URL in the environment, else a server of our own, else a skip that says what to install."""
    if given := os.environ.get(f"EFFECTONCE_TEST_{variable}_URL"):
        yield given
        return
    try:
        server = start()
    except servers.Missing as missing:
        skip_or_fail(str(missing))
    yield server.url
    server.close()


def skip_or_fail(reason: str) -> NoReturn:
    """On a developer's machine a missing server is a skip; in CI it would be a hole in the proof."""
    if os.environ.get("CI", "").lower() in ("true", "1"):
        pytest.fail(reason, pytrace=False)
    pytest.skip(reason)


@pytest.fixture(scope="session")
def redis_url() -> Iterator[str]:
    yield from serve("REDIS", servers.redis)


@pytest.fixture(scope="session")
def redis_cluster_url() -> Iterator[str]:
    yield from serve("REDIS_CLUSTER", servers.redis_cluster)


@pytest.fixture(scope="session")
def valkey_url() -> Iterator[str]:
    yield from serve("VALKEY", servers.valkey)


@pytest.fixture(scope="session")
def postgres_url() -> Iterator[str]:
    yield from serve("POSTGRES", lambda: servers.postgres(durable=True))  # `check` refuses fsync=off


@pytest.fixture
def empty_postgres(postgres_url: str, unique_name: str) -> Iterator[str]:
    """A database of its own, for programs that use the default names."""
    import psycopg

    with psycopg.connect(postgres_url, autocommit=True) as admin:
        admin.execute(f"CREATE DATABASE {unique_name}")
        yield postgres_url.rpartition("/")[0] + f"/{unique_name}"
        admin.execute(f"DROP DATABASE {unique_name} WITH (FORCE)")


@pytest.fixture(scope="session")
def pgbouncer_url(postgres_url: str) -> Iterator[str]:
    yield from serve("PGBOUNCER", lambda: servers.pgbouncer(postgres_url))


@pytest.fixture(scope="session")
def mariadb_url() -> Iterator[str]:
    yield from serve("MYSQL", servers.mariadb)


@pytest.fixture(scope="session")
def aws_credentials() -> None:
    """Servers that speak as AWS does want credentials and believe any."""
    for name, value in {"AWS_ACCESS_KEY_ID": "local", "AWS_SECRET_ACCESS_KEY": "local"}.items():
        os.environ.setdefault(name, value)


@pytest.fixture(scope="session")
def dynamodb_url(aws_credentials: None) -> Iterator[str]:
    """`dynamodb://effectonce?region=…&endpoint=…`; the table is the test's to create and name."""
    yield from serve("DYNAMODB", servers.dynamodb)


@pytest.fixture(scope="session")
def rabbitmq_url() -> Iterator[str]:
    yield from serve("AMQP", rabbitmq)


@pytest.fixture(scope="session")
def nats_url() -> Iterator[str]:
    yield from serve("NATS", nats)


@pytest.fixture(scope="session")
def kafka_url() -> Iterator[str]:
    yield from serve("KAFKA", kafka)


@pytest.fixture(scope="session", params=[elasticmq, ministack], ids=["elasticmq", "ministack"])
def sqs_url(request: pytest.FixtureRequest, aws_credentials: None) -> Iterator[str]:
    """`sqs://?region=…&endpoint=…`, of two servers in turn."""
    yield from serve("SQS", request.param)


@pytest.fixture(scope="session")
def dynamodb_endpoint(dynamodb_url: str) -> str:
    return dynamodb_url.partition("endpoint=")[2].partition("&")[0]


@pytest.fixture(autouse=True)
def _no_run_of_another_test() -> Iterator[None]:
    """A streamed response that a test does not close leaves its run in this thread: the next test is not inside it."""
    yield
    running.set(None)


@pytest.fixture(autouse=True)
def _no_log_level_of_another_test() -> Iterator[None]:
    """A Celery worker in a thread of ours takes the root logger for its own."""
    root = logging.getLogger()
    level = root.level
    yield
    root.setLevel(level)


@pytest.fixture
def unique_name() -> str:
    """A name no other test uses: for tables, prefixes, scopes."""
    return f"t{uuid.uuid4().hex[:16]}"


@pytest.hookimpl(trylast=True)
def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    process.keep_logs = process.keep_logs or report.failed
