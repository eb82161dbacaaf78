"""Hypothesis strategies for tests of handlers: messages, and the schedules in which a queue may deliver them.

    from effectonce.testing import strategies as est

    @given(est.schedules(est.messages(data=st.integers())))
    def test_each_message_has_its_effect_once(schedule): ...

It needs Hypothesis: ``pip install hypothesis``.
"""

from __future__ import annotations

from typing import Any, Literal

from msgspec import Struct

from effectonce.errors import MissingDriver
from effectonce.message import Message

try:
    from hypothesis import strategies as st
except ImportError as error:
    raise MissingDriver("effectonce.testing.strategies needs Hypothesis: pip install hypothesis") from error

HandlerFate = Literal["handled", "raises", "crashes"]

PAUSES_S = (0.0, 0.001, 1.0, 31.0, 3600.0)  # between deliveries: at once, within a lease, after it, much later
#: Keys as producers write them, and as they should not: spaces, quotes, every alphabet, but no control characters.
_KEYS = st.text(st.characters(exclude_categories=["Cs", "Cc"]), min_size=1, max_size=40)
_JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**53), 2**53)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=10), inner, max_size=4),
    max_leaves=10,
)


class ScheduledDelivery(Struct, frozen=True):
    """One delivery of a schedule: which message, how late, and what happens to it."""

    message: Message[Any]
    fate: HandlerFate
    seconds_since_previous: float
    copies: int = 1  # deliveries of it at the same time


def keys() -> st.SearchStrategy[str]:
    """Draw keys of operations, of every alphabet: none is empty."""
    return _KEYS


def messages(
    data: st.SearchStrategy[Any] | None = None, type: st.SearchStrategy[str] | None = None
) -> st.SearchStrategy[Message[Any]]:
    """Draw messages with ids of their own. ``data``: what they carry; default: any JSON."""
    return st.builds(
        Message,
        data=_JSON if data is None else data,
        type=st.sampled_from(("", "order.paid", "order.cancelled")) if type is None else type,
        id=st.uuids(version=4).map(str),
        key=st.just("") | keys(),
        ordering_key=st.none() | keys(),
        headers=st.dictionaries(st.text("abcdefghijklmnopqrstuvwxyz-", min_size=1, max_size=12), keys(), max_size=3),
    )


@st.composite
def schedules(
    draw: st.DrawFn, of: st.SearchStrategy[Message[Any]] | None = None, *, most: int = 5, redeliveries: int = 4
) -> list[ScheduledDelivery]:
    """Draw a list of deliveries as an at-least-once queue may make them.

    It has up to ``most`` messages of different keys, each redelivered up to ``redeliveries`` times, in any order. The
    last delivery of each message is handled, since a queue redelivers until then.
    """
    strategy = messages() if of is None else of
    drawn = draw(st.lists(strategy, min_size=1, max_size=most, unique_by=lambda message: message.key))
    deliveries_left = [1 + draw(st.integers(0, redeliveries)) for _ in drawn]
    order = draw(st.permutations([index for index, count in enumerate(deliveries_left) for _ in range(count)]))
    schedule = []
    for index in order:
        deliveries_left[index] -= 1
        is_last = deliveries_left[index] == 0
        fate: HandlerFate = "handled" if is_last else draw(st.sampled_from(("handled", "raises", "crashes")))
        copies = draw(st.integers(1, 3)) if fate == "handled" else 1
        schedule.append(ScheduledDelivery(drawn[index], fate, draw(st.sampled_from(PAUSES_S)), copies))
    return schedule
