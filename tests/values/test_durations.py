"""Durations as users write them."""

from __future__ import annotations

from datetime import timedelta

import pytest

from effectonce.errors import InvalidOption
from effectonce.values.durations import Duration, format_span, micros, span_text

CENTURY_S = 100 * 365 * 86_400


@pytest.mark.parametrize(
    ("written", "microseconds"),
    [
        ("7us", 7),
        ("7ms", 7_000),
        ("7s", 7_000_000),
        ("7m", 420_000_000),
        ("7h", 25_200_000_000),
        ("7d", 604_800_000_000),
        ("1.5s", 1_500_000),
        (" 2 m ", 120_000_000),
        (2, 2_000_000),
        (0.25, 250_000),
        (timedelta(seconds=1, microseconds=1), 1_000_001),
        ("1us", 1),
        (CENTURY_S - 1, (CENTURY_S - 1) * 1_000_000),
    ],
)
def test_a_duration_is_counted_in_microseconds(written: Duration, microseconds: int) -> None:
    assert micros(written) == microseconds


@pytest.mark.parametrize(
    "written", [0, "0s", -1, timedelta(0), "36500d", CENTURY_S, -CENTURY_S, 1e300, -1e300, float("inf"), timedelta.max]
)
def test_a_duration_is_more_than_zero_and_less_than_a_century(written: Duration) -> None:
    with pytest.raises(InvalidOption, match=r"keep=.*must be more than zero and less than a century"):
        micros(written, "keep")


@pytest.mark.parametrize("written", ["", "5", "5 weeks", "-5s", "5s 3m", "\u0665s", "1.s"])
def test_a_text_that_is_no_duration_is_refused_with_examples(written: str) -> None:
    with pytest.raises(InvalidOption, match=r"lease=.*write it like '30s'"):
        micros(written, "lease")


@pytest.mark.parametrize("given", [True, None, [], b"5s"])
def test_only_texts_timedeltas_and_numbers_are_durations(given: object) -> None:
    with pytest.raises(InvalidOption, match="give '30s', a timedelta or seconds"):
        micros(given)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("microseconds", "shown"),
    [
        (1_296_000_000_000, "15d"),
        (86_400_000_000, "1d"),
        (5_400_000_000, "1.5h"),
        (3_600_000_000, "1h"),
        (60_000_000, "1m"),
        (30_000_000, "30s"),
        (1_000_000, "1s"),
        (1_000, "1ms"),
        (999, "999us"),
    ],
)
def test_a_duration_is_shown_in_its_largest_unit(microseconds: int, shown: str) -> None:
    assert span_text(microseconds) == shown


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0, "0 s"),
        (0.000_9, "0 s"),
        (0.001, "1 ms"),
        (0.25, "250 ms"),
        (1, "1 s"),
        (119, "119 s"),
        (120, "2 min"),
        (7_199, "120 min"),
        (7_200, "2 h"),
        (172_799, "48 h"),
        (172_800, "2 d"),
        (30 * 86_400, "30 d"),
    ],
)
def test_a_span_is_shown_in_the_largest_unit_of_which_there_are_two(seconds: float, text: str) -> None:
    assert format_span(seconds * 1e6) == text
