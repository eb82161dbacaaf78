"""The clocks of stores and brokers without a server."""

from __future__ import annotations

import time

import pytest

from effectonce.values.clocks import MachineClock, SystemClock


@pytest.mark.parametrize("kind", [SystemClock, MachineClock])
def test_a_clock_says_the_time_in_microseconds_since_the_epoch(kind: type[SystemClock] | type[MachineClock]) -> None:
    before = time.time_ns() // 1000
    now = kind().now()
    assert abs(now - before) < 10_000_000
    assert kind.manual is False


def test_a_system_clock_does_not_jump_with_the_wall_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = SystemClock()
    before = clock.now()
    monkeypatch.setattr(time, "time_ns", lambda: 0)
    assert before <= clock.now() < before + 10_000_000


def test_a_machine_clock_is_the_wall_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = MachineClock()
    monkeypatch.setattr(time, "time_ns", lambda: 1_767_225_600_123_456_789)
    assert clock.now() == 1_767_225_600_123_456
