"""What the stock integrations of Sentry and structlog, and plain `logging`, see of a failed attempt."""

from __future__ import annotations

import io
import json
import logging
from collections.abc import Iterator
from typing import Any

import pytest
import sentry_sdk
import structlog
from sentry_sdk.envelope import Envelope
from sentry_sdk.integrations.logging import LoggingIntegration
from sentry_sdk.transport import Transport

from effectonce.core.failure_log import log_failed_attempt, retried_in, traceback_tail

WHAT = {"queue": "orders", "handler": "shop:book"}


def caught(error: BaseException) -> BaseException:
    try:
        raise error
    except type(error) as caught:
        return caught


def log_two_attempts() -> None:
    for attempt, then in ((1, retried_in(2)), (2, "goes to the dead letters: attempts-exhausted")):
        error = caught(KeyError("sku"))
        log_failed_attempt(
            WHAT, error, then, last=attempt == 2, message="m-1", scope="books", key="o-1", attempt=attempt
        )


class FakeTransport(Transport):
    def __init__(self) -> None:
        super().__init__()
        self.events: list[Any] = []

    def capture_envelope(self, envelope: Envelope) -> None:
        self.events.append(envelope.get_event())


@pytest.fixture
def transport() -> Iterator[FakeTransport]:
    transport = FakeTransport()
    integrations = [LoggingIntegration()]
    with sentry_sdk.isolation_scope():
        sentry_sdk.init(
            "http://key@localhost/1", transport=transport, integrations=integrations, default_integrations=False
        )
        yield transport
        sentry_sdk.init()


def test_sentry_gets_an_event_with_the_traceback_and_the_retries_as_breadcrumbs(transport: FakeTransport) -> None:
    log_two_attempts()
    (event,) = transport.events
    (raised,) = event["exception"]["values"]
    assert (event["level"], raised["type"], raised["value"]) == ("error", "KeyError", "'sku'")
    assert raised["stacktrace"]["frames"][-1]["function"] == "caught"
    assert event["extra"]["effectonce"]["message"] == "m-1"
    (breadcrumb,) = event["breadcrumbs"]["values"]
    assert breadcrumb["level"] == "warning"
    assert breadcrumb["message"].startswith("queue orders, handler shop:book failed and is retried in 2s: KeyError")


def test_structlog_gets_the_facts_and_the_traceback() -> None:
    out = io.StringIO()
    handler = logging.StreamHandler(out)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=[structlog.stdlib.add_log_level, structlog.stdlib.ExtraAdder()],
            processors=[
                structlog.stdlib.ProcessorFormatter.remove_processors_meta,
                structlog.processors.dict_tracebacks,
                structlog.processors.JSONRenderer(),
            ],
        )
    )
    logger = logging.getLogger("effectonce")
    logger.addHandler(handler)
    try:
        log_two_attempts()
    finally:
        logger.removeHandler(handler)
    first, last = (json.loads(line) for line in out.getvalue().splitlines())
    assert (first["level"], last["level"]) == ("warning", "error")
    assert first["effectonce"]["key"] == "o-1"
    assert last["effectonce"] == {
        **WHAT,
        "message": "m-1",
        "scope": "books",
        "key": "o-1",
        "attempt": 2,
        "error": "builtins:KeyError",
        "next": "goes to the dead letters: attempts-exhausted",
    }
    assert last["exception"][0]["exc_type"] == "KeyError"
    assert last["exception"][0]["frames"][-1]["name"] == "caught"


def test_the_passwords_of_urls_are_logged_nowhere(caplog: pytest.LogCaptureFixture) -> None:
    error = caught(RuntimeError("postgresql://shop:s3cret@host/db?sslkey=k3y is away"))
    log_failed_attempt(WHAT, error, retried_in(0), last=False)
    assert "RuntimeError: postgresql://host/db is away" in caplog.text
    assert "Traceback" in caplog.text
    assert not [secret for secret in ("s3cret", "k3y") if secret in caplog.text + traceback_tail(error)]
    assert caplog.records[0].exc_info is not None
    assert caplog.records[0].exc_info[1] is error


def test_a_line_stays_one_line_and_short(caplog: pytest.LogCaptureFixture) -> None:
    log_failed_attempt(WHAT, caught(ValueError("a\nb" + "c" * 5000)), retried_in(0), last=False, key="k\r\n" * 500)
    assert "\n" not in caplog.messages[0]
    assert len(caplog.messages[0]) < 1000


def test_an_error_whose_text_cannot_be_made_is_logged_all_the_same(caplog: pytest.LogCaptureFixture) -> None:
    class Mute(Exception):
        def __str__(self) -> str:
            raise RuntimeError

    error = caught(Mute())
    log_failed_attempt(WHAT, error, retried_in(0), last=False)
    assert "failed and is retried at once: Mute" in caplog.messages[0]
    assert "in caught" in traceback_tail(error)


def test_nothing_is_made_of_a_line_that_nobody_reads(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.CRITICAL, "effectonce")
    log_two_attempts()
    assert not caplog.records
