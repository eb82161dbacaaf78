"""Messages and schedules that Hypothesis draws, against a guarded handler and a naive one."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from collections import Counter

import pytest
from hypothesis import find, given, settings
from hypothesis import strategies as st

import effectonce as eo
from effectonce.backends.memory.store import MemoryStoreBackend
from effectonce.envelopes import CloudEvents
from effectonce.testing import ManualClock
from effectonce.testing import strategies as est


class Crash(BaseException):
    """The process ends here."""


def effects(schedule: list[est.ScheduledDelivery], guarded: bool) -> Counter[str]:
    """Run a handler over all of ``schedule``, and count its effects by key."""
    clock = ManualClock()
    store = eo.Store(MemoryStoreBackend(clock=clock), sweep_every=None)
    done: Counter[str] = Counter()
    fate = ""

    def handle(message: eo.Message[object]) -> None:
        if fate == "raises":
            raise ConnectionError
        if fate == "crashes":
            raise Crash
        done[message.key] += 1

    handler = eo.once(store, scope="drawn")(handle) if guarded else handle
    for delivery in schedule:
        clock.advance_micros(round(delivery.seconds_since_previous * 1e6))
        fate = delivery.fate
        for _ in range(delivery.copies):
            try:
                handler(delivery.message)
            except (ConnectionError, Crash):
                pass
    return done


@settings(deadline=None, max_examples=60)
@given(est.schedules())
def test_on_every_schedule_a_guarded_handler_has_each_effect_once(schedule: list[est.ScheduledDelivery]) -> None:
    assert effects(schedule, guarded=True) == Counter(dict.fromkeys((delivery.message.key for delivery in schedule), 1))


@pytest.mark.long
def test_a_naive_handler_is_caught_by_some_schedule() -> None:
    schedule = find(est.schedules(), lambda schedule: max(effects(schedule, guarded=False).values(), default=0) > 1)
    assert len(schedule) <= 2, "and Hypothesis makes it short"


@given(est.messages(data=st.integers()))
def test_messages_survive_their_envelope(message: eo.Message[int]) -> None:
    """F22: whatever the alphabet of their keys."""
    assert message.key
    back = CloudEvents().decode(CloudEvents().encode(message, "orders"))
    assert (back.id, back.key, back.data, back.type) == (message.id, message.key, message.data, message.type)


@pytest.mark.parametrize("installed", [True, False])
def test_it_is_imported_only_when_asked_for_and_says_what_is_missing(installed: bool) -> None:
    code = f"""
        import sys
        import effectonce.testing
        assert "hypothesis" not in sys.modules
        if not {installed}:
            sys.modules["hypothesis"] = None
        import effectonce as eo
        try:
            import effectonce.testing.strategies
        except eo.MissingDriver as error:
            print(error)
    """
    done = subprocess.run([sys.executable, "-c", textwrap.dedent(code)], capture_output=True, text=True, check=True)
    assert ("pip install hypothesis" in done.stdout) is not installed
