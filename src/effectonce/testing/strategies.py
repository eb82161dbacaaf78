"""What Hypothesis draws for tests of handlers: messages, and the schedules that a queue may deliver them by.

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

Fate = Literal["handled", "raises", "crashes"]

#: Keys as producers write them, and as they should not: spaces, quotes, other alphabets, all that is no control.
_WORDS = st.text(st.characters(exclude_categories=["Cs", "Cc"]), min_size=1, max_size=40)
_JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**53), 2**53)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=10), inner, max_size=4),
    max_leaves=10,
)


class Delivery(Struct, frozen=True):
    """One delivery of a schedule: which message, how late, and what happens to it."""

    message: Message[Any]
    fate: Fate
    after: float  # seconds since the delivery before
    at_once: int = 1  # so many deliveries of it at the same time


def keys() -> st.SearchStrategy[str]:
    """Keys of operations, of every alphabet: none is empty."""
    return _WORDS


def messages(
    data: st.SearchStrategy[Any] | None = None, type: st.SearchStrategy[str] | None = None
) -> st.SearchStrategy[Message[Any]]:
    """Messages with ids of their own. ``data``: what they carry; default: any JSON."""
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
) -> list[Delivery]:
    """A list of `Delivery`, as an at-least-once queue may make them: up to ``most`` messages of different keys, each up
    to ``redeliveries`` times more, in any order; the last one of each message is handled, as a queue insists on."""
    some = messages() if of is None else of
    drawn = draw(st.lists(some, min_size=1, max_size=most, unique_by=lambda each: each.key))
    times = [draw(st.integers(0, redeliveries)) for _ in drawn]
    flow = draw(st.permutations([at for at, more in enumerate(times) for _ in range(1 + more)]))
    left = [1 + more for more in times]
    out = []
    for at in flow:
        left[at] -= 1
        fate: Fate = draw(st.sampled_from(("handled", "raises", "crashes"))) if left[at] else "handled"
        after = draw(st.sampled_from((0.0, 0.001, 1.0, 31.0, 3600.0)))
        at_once = draw(st.integers(1, 3)) if fate == "handled" else 1
        out.append(Delivery(drawn[at], fate, after, at_once))
    return out
