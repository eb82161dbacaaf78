"""What a refused claim raises, and an error of the handler's that is raised again for its duplicates."""

from __future__ import annotations

from typing import Any

import pytest

import effectonce as eo
from effectonce.core.claim_errors import claim_error
from effectonce.core.codec import ABANDONED_ERROR, encode_error, encode_last_error
from effectonce.record import Answer


class Declined(Exception):
    def __init__(self, reason: str, code: int = 7) -> None:
        super().__init__(reason, code)


class Reworded(Exception):
    """Its text is another one than its arguments give."""

    def __init__(self, reason: str) -> None:
        super().__init__(f"{reason} again")


class Demanding(Exception):
    def __init__(self, *, reason: str) -> None:
        super().__init__(reason)


def refuse(kind: Any, stored: bytes | None = None, *permanent: type[Exception], **facts: Any) -> BaseException:
    return claim_error(Answer(kind, **facts), "charge", "p1", stored, permanent)


@pytest.mark.parametrize(
    ("kind", "error"),
    [
        ("done", eo.ResultNotStored),
        ("in_progress", eo.InProgress),
        ("in_doubt", eo.InDoubt),
        ("mismatch", eo.PayloadMismatch),
        ("exhausted", eo.AttemptsExhausted),
        ("failed", eo.PermanentFailure),
    ],
)
def test_each_refusal_has_an_error_that_names_the_record(kind: str, error: type[Exception]) -> None:
    raised = refuse(kind)
    assert type(raised) is error
    assert "scope 'charge', key 'p1'" in str(raised)


def test_what_is_in_progress_says_when_its_lease_ends() -> None:
    raised: Any = refuse("in_progress", retry_after=2.5)
    assert (raised.retry_after, raised.lease_left) == (0.2, 2.5), "a duplicate comes back soon, and later each time"
    assert "its lease ends in 2.5s" in str(raised)
    assert "its lease ends in 1ms" in str(refuse("in_progress", retry_after=0.0))


@pytest.mark.parametrize(
    ("scope", "command"),
    [("charge", "records"), ("intents/shop/ses/receipt", "intents"), ("saga/order", "sagas")],
)
def test_what_is_in_doubt_names_the_command_that_may_decide_it(scope: str, command: str) -> None:
    error = claim_error(Answer("in_doubt"), scope, "p1", None, ())
    assert f"decide: effectonce {command} resolve" in str(error)


def test_a_permanent_error_is_raised_again_as_it_was() -> None:
    raised = refuse("failed", encode_error(Declined("no funds", 51)), ValueError, Declined)
    assert type(raised) is Declined
    assert raised.args == ("no funds", 51)


@pytest.mark.parametrize(
    ("error", "permanent"),
    [
        (Declined("no funds"), ()),
        (Declined("no funds"), (ValueError,)),
        (Reworded("no funds"), (Reworded,)),
        (Demanding(reason="no funds"), (Demanding,)),
    ],
)
def test_an_error_that_cannot_be_made_again_is_told_by_its_name_and_text(
    error: Exception, permanent: tuple[type[Exception], ...]
) -> None:
    raised: Any = refuse("failed", encode_error(error), *permanent)
    assert type(raised) is eo.PermanentFailure
    assert type(error).__name__ in str(raised)
    assert "no funds" in str(raised)


def test_what_an_operator_abandoned_says_so() -> None:
    assert "an operator abandoned it" in str(refuse("failed", ABANDONED_ERROR, Declined))


def test_where_no_attempt_is_left_the_last_error_is_named() -> None:
    last_error = encode_last_error(Declined("no funds"))
    assert "used all of its attempts; the last error was Declined: ('no funds', 7); fix" in str(
        refuse("exhausted", last_error)
    )
    assert "used all of its attempts; fix the cause" in str(refuse("exhausted"))
    assert "the last error cannot be read by this release; fix" in str(refuse("exhausted", b"9?"))
