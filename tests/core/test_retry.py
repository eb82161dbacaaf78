"""`Retry`: how long it may take from the first attempt to the last."""

from __future__ import annotations

import math

import pytest

from effectonce.core.retry import Retry


@pytest.mark.parametrize(
    ("retry", "seconds"),
    [
        (Retry(1), 0.0),
        (Retry(3, first="1s", factor=2, cap="1h"), 1 + 2),
        (Retry(5, first="1s", factor=2, cap="3s"), 1 + 2 + 3 + 3),
        (Retry(100, first="2s", factor=1), 99 * 2),
        (Retry(200, first="1s", factor=2, cap="10s"), 1 + 2 + 4 + 8 + 195 * 10),
        (Retry(2, first="1s", on={OSError: Retry(2, first="30s"), ValueError: "dead"}), 30),
        (Retry(2, first="40s", on={OSError: Retry(2, first="30s")}), 40),
        (Retry(None), math.inf),
        (Retry(2, on={OSError: Retry(None)}), math.inf),
    ],
    ids=repr,
)
def test_the_horizon_is_the_sum_of_the_longest_delays(retry: Retry, seconds: float) -> None:
    assert retry.horizon_s == pytest.approx(seconds)


def test_a_delay_stops_growing_where_a_float_would_overflow() -> None:
    retry = Retry(None, first="1s", factor=100, cap=None)
    assert retry.max_delay(10_000_000) == retry.max_delay(61) == 100.0**60
