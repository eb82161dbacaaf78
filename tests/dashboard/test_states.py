"""The words of states: which failures are refusals, and what each filter of a list takes."""

from __future__ import annotations

import pytest

from effectonce.core.codec import ABANDONED_ERROR, encode_error, encode_last_error
from effectonce.core.privacy import Privacy
from effectonce.core.refusals import is_refused
from effectonce.display.formatting import format_near, format_state, tone_of
from effectonce.display.state_filters import STATE_FILTERS
from effectonce.record import EXHAUSTED_ERROR, Record, State

DECLINED = encode_error(ValueError("card declined"))


def a_record(state: State, error: bytes | None = None, scope: str = "charge") -> Record:
    times = {"token": 1, "created_at": 1, "changed_at": 1}
    counts = {"attempts": 1, "generation": 0}
    return Record(scope=scope, key="k", state=state, doubt_on_lapse=False, error=error, **times, **counts)


def test_a_permanent_error_is_a_refusal() -> None:
    refused = a_record("failed", DECLINED)
    assert (format_state(refused, 0), tone_of(refused)) == ("refused", "refused")
    assert is_refused(a_record("failed", DECLINED, scope="intents/billing/stripe/charge"))


@pytest.mark.parametrize(
    "record",
    [
        a_record("failed", EXHAUSTED_ERROR),
        a_record("failed", ABANDONED_ERROR),
        a_record("failed", DECLINED, scope="saga/order"),
        a_record("failed", Privacy("a secret of at least 32 characters").seal(DECLINED, "charge", "k", 0)),
        a_record("failed", b"not an error"),
        a_record("failed"),
    ],
    ids=["exhausted", "abandoned", "saga", "sealed", "unreadable", "none"],
)
def test_other_failures_are_not(record: Record) -> None:
    assert (format_state(record, 0), tone_of(record)) == ("failed", "failed")


def test_the_last_error_of_a_released_record_is_not_a_refusal() -> None:
    assert format_state(a_record("free", encode_last_error(ValueError())), 0) == "released"
    assert format_state(a_record("done", DECLINED), 0) == "done"


def test_a_filter_takes_what_has_its_word() -> None:
    records = [a_record("failed", DECLINED), a_record("failed", EXHAUSTED_ERROR), a_record("done"), a_record("free")]
    taken = {name: [format_state(r, 0) for r in records if choice.matches(r)] for name, choice in STATE_FILTERS.items()}
    assert taken == {
        "claimed": [],
        "done": ["done"],
        "failed": ["failed"],
        "refused": ["refused"],
        "failed_or_refused": ["refused", "failed"],
        "in_doubt": [],
        "free": ["released"],
    }


def test_a_near_time_has_no_date() -> None:
    now = 1_795_111_249_238_711
    assert format_near(now - 1_500_000, now) == "18:00:47.738"
    assert format_near(now + 30 * 86_400_000_000, now) == "2026-12-19 18:00:49"
