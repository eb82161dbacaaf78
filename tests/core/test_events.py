"""Hooks that want only some events, or only how long something took."""

from __future__ import annotations

from typing import Any

import pytest

from effectonce.contracts import Event
from effectonce.core.events import Events


class Selective:
    """Wants what ``answer`` says, of every kind."""

    def __init__(self, answer: Any) -> None:
        self.answer = answer
        self.asked: list[tuple[str, str]] = []
        self.events: list[Event] = []

    def wants(self, kind: str, scope: str) -> Any:
        self.asked.append((kind, scope))
        return self.answer

    def __call__(self, event: Event) -> None:
        self.events.append(event)


def test_a_meter_gets_the_seconds_and_its_hook_no_event() -> None:
    seconds: list[float] = []
    hook = Selective(seconds.append)
    Events((hook,)).emit("completed", "charge", seconds=1.5)
    assert (seconds, hook.events) == ([1.5], [])


def test_a_hook_that_wants_an_event_gets_it() -> None:
    hook = Selective(True)
    Events((hook,)).emit("completed", "charge", "p1", seconds=1.5)
    assert [(event.kind, event.scope, event.key, event.seconds) for event in hook.events] == [
        ("completed", "charge", "p1", 1.5)
    ]


def test_a_hook_that_does_not_want_an_event_is_left_alone(caplog: pytest.LogCaptureFixture) -> None:
    hook, other = Selective(False), list[Event]()
    events = Events((hook, other.append))
    for _ in range(3):
        events.emit("completed", "charge")
    assert (hook.events, len(other)) == ([], 3)
    assert caplog.text == ""
    assert hook.asked == [("completed", "charge")], "it is asked once for each kind and scope"


def test_a_hook_or_meter_that_raises_does_not_stop_the_others(caplog: pytest.LogCaptureFixture) -> None:
    def fail(seconds: float) -> None:
        raise RuntimeError("broken meter")

    seconds, events = list[float](), list[Event]()
    Events((Selective(fail), Selective(seconds.append), events.append)).emit("completed", "charge", seconds=1.5)
    assert (seconds, len(events)) == ([1.5], 1)
    assert "an effectonce hook raised on completed" in caplog.text
