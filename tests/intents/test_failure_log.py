"""Each failed call of an operation is one log line with its traceback."""

from __future__ import annotations

from typing import Any

import pytest

import effectonce as eo
from effectonce.intents.intents import Intents
from effectonce.intents.operation import Intent
from effectonce.providers import Verdict
from effectonce.testing import ManualClock
from tests.harness.failure_lines import facts, failures, raised


def sending(intents: Intents, error: Exception, **options: Any) -> Any:
    @intents.operation("ses", "send", returns=str, **options)
    def send(intent: Intent[str]) -> str:
        raise error

    return send


@pytest.mark.parametrize(
    ("without_key", "level", "then"),
    [
        ("at-most-once", "ERROR", "is in doubt: look it up at the provider"),
        ("at-least-once", "WARNING", "its next delivery, or a recovery, tries it again"),
    ],
)
def test_a_failed_call_is_logged_once(
    intents: Intents, caplog: pytest.LogCaptureFixture, without_key: Any, level: str, then: str
) -> None:
    error = TimeoutError()
    with pytest.raises((eo.InDoubt, eo.OutcomeUnknown)):
        sending(intents, error, without_key=without_key)("hello", key="m")
    (line,) = failures(caplog)
    assert (line.levelname, raised(line)) == (level, error)
    assert {name: facts(line)[name] for name in ("provider", "operation", "attempt")} == {
        "provider": "ses",
        "operation": "send",
        "attempt": 1,
    }
    assert then in line.getMessage()
    assert "in send" in caplog.text


def test_a_refusal_is_logged_once(intents: Intents, caplog: pytest.LogCaptureFixture) -> None:
    intents.classify("ses")(lambda outcome: Verdict.failure("the address bounces"))
    error = ValueError("no such address")
    with pytest.raises(ValueError, match="no such"):
        sending(intents, error, without_key="at-most-once")("hello", key="m")
    (line,) = failures(caplog)
    assert (line.levelname, raised(line)) == ("WARNING", None), "it is an answer, and no defect"
    assert line.getMessage().startswith(
        "provider ses, operation send failed and is not sent again: duplicates get the same error: "
        "ValueError: no such address"
    )
    assert "Traceback" not in caplog.text


def test_a_recovery_that_fails_is_logged_with_its_traceback(
    clock: ManualClock, intents: Intents, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    send = sending(intents, TimeoutError(), without_key="at-least-once")
    with pytest.raises(eo.OutcomeUnknown):
        send("hello", key="m")
    caplog.clear()
    clock.advance(3600)

    def broken(*arguments: Any) -> Any:
        raise KeyError("a defect")

    monkeypatch.setattr(send, "prepare_run", broken)
    assert intents.recover().broken == 1
    (line,) = failures(caplog)
    assert (line.levelname, type(raised(line))) == ("WARNING", KeyError)
    assert facts(line)["recovery"] == "of an intent"


@pytest.mark.parametrize("raises", [None, TimeoutError("no answer")])
def test_a_classifier_that_raises_is_logged_once_with_what_it_was_given(
    intents: Intents, caplog: pytest.LogCaptureFixture, raises: Exception | None
) -> None:
    defect = KeyError("status")

    @intents.classify("ses")
    def classify(outcome: Any) -> Verdict:
        raise defect

    @intents.operation("ses", "send", returns=str, without_key="at-most-once")
    def send(intent: Intent[str]) -> str:
        if raises is not None:
            raise raises
        return "sent"

    with pytest.raises(eo.InDoubt):
        send("hello", key="m")
    (line,) = failures(caplog)
    assert (line.levelname, raised(line)) == ("ERROR", defect)
    assert "in classify" in caplog.text
    assert ("in send" in caplog.text) is (raises is not None), "both tracebacks"
    assert {"provider": "ses", "operation": "send", "attempt": 1}.items() <= facts(line).items()


def test_a_reconciler_that_raises_is_logged_once(
    clock: ManualClock, intents: Intents, caplog: pytest.LogCaptureFixture
) -> None:
    defect = KeyError("charges")

    @intents.reconcile("ses")
    def look_up(intent: Intent[str]) -> Verdict:
        raise defect

    send = sending(intents, TimeoutError(), without_key="at-most-once")
    with pytest.raises(eo.OutcomeUnknown):
        send("hello", key="m")
    caplog.clear()
    clock.advance(3600)
    with pytest.raises(eo.OutcomeUnknown):
        send("hello", key="m")
    (line,) = failures(caplog)
    assert (line.levelname, raised(line)) == ("WARNING", defect)
    assert "in look_up" in caplog.text
    assert {"provider": "ses", "reconciler": "send", "attempt": 1}.items() <= facts(line).items()
    assert facts(line)["next"] == "its outcome stays unknown: the reconciler is asked again"
