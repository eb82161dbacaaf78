"""The Retry-After header: seconds or a date."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from email.utils import format_datetime

import pytest

from effectonce.values.retry_after import parse_retry_after

YEAR_S = 365 * 86_400


@pytest.mark.parametrize(
    ("header", "seconds"), [("120", 120.0), (" 120 ", 120.0), ("0", 0.0), ("1.5", 1.5), ("99999999999", YEAR_S)]
)
def test_a_number_is_seconds_and_at_most_a_year(header: str, seconds: float) -> None:
    assert parse_retry_after(header) == seconds


@pytest.mark.parametrize("header", ["", "soon", "-5", "1e3", "\u0663", "Fri, 99 Nov 2026 00:00:00 GMT"])
def test_what_is_neither_a_number_nor_a_date_says_nothing(header: str) -> None:
    assert parse_retry_after(header) is None


def test_a_date_is_seconds_from_now() -> None:
    in_an_hour = format_datetime(datetime.now(UTC) + timedelta(hours=1), usegmt=True)
    assert parse_retry_after(in_an_hour) == pytest.approx(3600, abs=60)


def test_a_date_without_a_zone_is_in_utc() -> None:
    in_an_hour = (datetime.now(UTC) + timedelta(hours=1)).strftime("%a, %d %b %Y %H:%M:%S -0000")
    assert parse_retry_after(in_an_hour) == pytest.approx(3600, abs=60)


def test_a_date_that_has_passed_is_now() -> None:
    assert parse_retry_after("Fri, 31 Dec 1999 23:59:59 GMT") == 0.0


def test_a_date_is_at_most_a_year_away() -> None:
    assert parse_retry_after("Fri, 31 Dec 9999 23:59:59 GMT") == YEAR_S
