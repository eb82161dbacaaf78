"""The pauses while a server does not answer: longer each time, random, and short again after an answer."""

from __future__ import annotations

import logging

import pytest

from effectonce.core import backoff
from effectonce.core.backoff import Backoff


@pytest.fixture
def longest(monkeypatch: pytest.MonkeyPatch) -> None:
    """No pause is shorter than it may be."""
    monkeypatch.setattr(backoff.random, "uniform", lambda least, most: most)


@pytest.mark.usefixtures("longest")
def test_pauses_double_up_to_the_longest() -> None:
    pauses = Backoff("store")
    assert [pauses.record_failure(OSError()) for _ in range(10)] == pytest.approx(
        [0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 6.4, 12.8, 15.0, 15.0]
    )


def test_pauses_are_random_and_at_least_half_as_long() -> None:
    firsts = [Backoff("store").record_failure(OSError()) for _ in range(200)]
    assert len(set(firsts)) > 100
    assert 0.05 <= min(firsts) < max(firsts) <= 0.1


@pytest.mark.usefixtures("longest")
def test_after_an_answer_the_first_pause_is_short_again() -> None:
    pauses = Backoff("store")
    for _ in range(5):
        pauses.record_failure(OSError())
    pauses.record_success()
    assert (pauses.failures, pauses.record_failure(OSError())) == (0, pytest.approx(0.1))


def test_a_server_that_is_away_for_years_is_asked_again() -> None:
    pauses = Backoff("store")
    pauses.failures = 10_000_000
    assert 7.5 <= pauses.record_failure(OSError()) <= 15.0


def test_the_log_says_when_it_began_when_it_lasts_and_when_it_is_over(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING)
    pauses = Backoff("the store")
    pauses.record_success()
    assert caplog.messages == []
    for _ in range(9):
        pauses.record_failure(OSError("no route"))
    began, lasts = caplog.messages
    assert began == lasts == "the store: no route; trying again (pauses grow to 15 s)"
    pauses.record_success()
    assert caplog.messages[2:] == ["the store: it answers again (attempts: 9)"]
