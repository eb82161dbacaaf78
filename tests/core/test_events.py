"""Hooks: who gets an event, and that none of them changes an outcome."""

from __future__ import annotations

import pytest

from effectonce.contracts import Event
from effectonce.core.events import Events


def test_every_hook_gets_the_event_once_however_often_it_was_added() -> None:
    first: list[Event] = []
    second: list[Event] = []
    add_to_first, add_to_second = first.append, second.append
    events = Events((add_to_first,))
    for hook in (add_to_first, add_to_second, add_to_second):
        events.add_hook(hook)
    events.emit("claimed", "charge", "o-1", 2, 7, 0.5, "lapsed")
    assert first == second == [Event("claimed", "charge", "o-1", 2, 7, 0.5, "lapsed")]


def test_an_event_says_only_what_is_known() -> None:
    seen: list[Event] = []
    Events((seen.append,)).emit("swept")
    (event,) = seen
    assert (event.scope, event.key, event.attempt, event.token, event.seconds, event.detail) == ("", "", 0, 0, 0.0, "")


def test_a_hook_that_raises_is_logged_and_the_next_one_is_called(caplog: pytest.LogCaptureFixture) -> None:
    seen: list[Event] = []

    def fail(event: Event) -> None:
        raise ZeroDivisionError

    Events((fail, seen.append)).emit("claimed")
    assert [event.kind for event in seen] == ["claimed"]
    assert "an effectonce hook raised on claimed" in caplog.text
    assert "ZeroDivisionError" in caplog.text


def test_a_hook_that_is_added_by_a_hook_gets_the_next_event() -> None:
    late: list[Event] = []
    events = Events()
    events.add_hook(lambda event: events.add_hook(late.append) if not late else None)
    events.emit("claimed")
    assert late == []
    events.emit("done")
    assert [event.kind for event in late] == ["done"]
