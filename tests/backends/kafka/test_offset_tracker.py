"""The offset tracker of a Kafka consumer, without a broker: what it delivers and commits."""

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from effectonce.backends.kafka.offset_tracker import (
    MAX_DELAYED,
    MAX_NOTE_CHARS,
    Commit,
    OffsetTracker,
    read_note,
    write_note,
)
from effectonce.contracts import Delivery


class Message:
    """As much of confluent_kafka's as the tracker looks at."""

    def __init__(self, partition: int, offset: int, key: bytes | None = None) -> None:
        self._at, self._offset, self._key = partition, offset, key

    def partition(self) -> int:
        return self._at

    def offset(self) -> int:
        return self._offset

    def key(self) -> bytes | None:
        return self._key

    def value(self) -> bytes:
        return b"%d" % self._offset

    def headers(self) -> None:
        return None


def make_tracker(
    count: int = 0, *, prefetch: int = 100, key: bytes | None = None, note: str | None = None
) -> OffsetTracker:
    """A tracker of one partition, which has read ``count`` messages."""
    tracker = OffsetTracker("queue", prefetch)
    tracker.assign(0, 0, note)
    tracker.add(Message(0, offset, key) for offset in range(count))
    return tracker


def ack(tracker: OffsetTracker, deliveries: list[Delivery]) -> list[bool]:
    return [tracker.ack(delivery) for delivery in deliveries]


def nack(tracker: OffsetTracker, deliveries: list[Delivery], due: float) -> list[bool]:
    return [tracker.nack(delivery, due) for delivery in deliveries]


def offsets(deliveries: list[Delivery]) -> list[int]:
    return [int(delivery.packet.body) for delivery in deliveries]


# -- commits


def test_f53_only_what_is_settled_without_a_gap_is_committed() -> None:
    tracker = make_tracker(5)
    held = tracker.take(5, 0)
    assert tracker.due_commits() == []
    ack(tracker, [held[1], held[2]])
    ((_, offset, note),) = tracker.due_commits()
    assert offset == 0
    assert read_note(offset, note) == (5, frozenset({0, 3, 4}))
    ack(tracker, [held[0]])
    ((_, offset, note),) = tracker.due_commits()
    assert offset == 3
    ack(tracker, [held[3], held[4]])
    assert tracker.due_commits() == [(0, 5, "")]
    tracker.set_committed([Commit(0, 5, "")])
    assert tracker.due_commits() == []


def test_the_next_owner_passes_over_what_the_note_says_is_settled() -> None:
    note = write_note(0, 5, [0, 3])
    heir = make_tracker(7, note=note)
    assert offsets(heir.take(10, 0)) == [0, 3, 5, 6]


@given(st.integers(0, 10**12), st.sets(st.integers(1, 3000)), st.integers(1, 4000))
def test_a_note_never_says_that_an_open_one_is_settled(first: int, gaps: set[int], length: int) -> None:
    end = first + length
    still_open = sorted({first} | {first + gap for gap in gaps if first + gap < end})
    note = write_note(first, end, still_open)
    assert len(note) <= MAX_NOTE_CHARS
    known_end, known_open = read_note(first, note)
    said_settled = {offset for offset in range(first, known_end) if offset not in known_open}
    assert said_settled.isdisjoint(still_open)
    if len(gaps) < 500:
        assert said_settled == set(range(first, end)) - set(still_open) or note == ""


@pytest.mark.parametrize(
    ("end", "unsettled", "note"),
    [
        (16, [10, 12, 15], "eo1 6 2 3"),
        (12, [10], "eo1 2"),  # one is settled beyond the first
        (11, [10], ""),
        (12, [10, 11], ""),
        (10, [], ""),
    ],
)
def test_a_note_says_what_is_settled_beyond_the_first_that_is_not(end: int, unsettled: list[int], note: str) -> None:
    assert write_note(10, end, unsettled) == note
    assert read_note(10, note) == ((end, frozenset(unsettled)) if note else (10, frozenset()))


def test_a_note_that_would_be_too_long_says_less() -> None:
    still_open = list(range(0, 10_000, 2))
    note = write_note(0, 10_000, still_open)
    assert MAX_NOTE_CHARS - 100 < len(note) <= MAX_NOTE_CHARS
    end, known_open = read_note(0, note)
    assert set(known_open) == {offset for offset in still_open if offset < end}
    assert end in still_open


@given(st.text(max_size=40) | st.none(), st.integers(-2000, 10))
def test_a_note_of_another_program_is_ignored(note: str | None, first: int) -> None:
    end, still_open = read_note(first, note)
    assert end == first or (note or "").startswith("eo1 ")
    assert first in still_open or end == first


def test_a_note_that_is_longer_than_ours_can_be_is_ignored() -> None:
    """Python reads no number of so many digits."""
    assert read_note(7, f"eo1 {'9' * 5000}") == (7, frozenset())


@pytest.mark.parametrize(
    ("first", "note"),
    [(7, "eo2 6 2"), (-1001, "eo1 6 2"), (7, "eo1"), (7, "eo1 six"), (7, "eo1 6 -2")],
    ids=["of another version", "of a partition without an offset", "without a length", "words", "backwards"],
)
def test_a_note_that_write_note_did_not_write_is_ignored(first: int, note: str) -> None:
    assert read_note(first, note) == (first, frozenset())


def test_a_delivery_that_was_given_back_can_be_settled_no_more() -> None:
    tracker = make_tracker(1)
    deliveries = tracker.take(1, 0.0)
    assert nack(tracker, deliveries, 5.0) == [True]
    assert (ack(tracker, deliveries), nack(tracker, deliveries, 9.0)) == ([False], [False])
    (redelivery,) = tracker.take(1, 5.0)
    assert (ack(tracker, [redelivery]), tracker.due_commits()) == ([True], [Commit(0, 1, "")])


def test_f53_a_revoked_partition_is_forgotten_and_its_deliveries_are_stale() -> None:
    tracker = make_tracker(4)
    tracker.assign(1, 0, None)
    tracker.add([Message(1, 0)])
    held = tracker.take(3, 0)
    nack(tracker, [held[1]], due=0.0)
    ack(tracker, [held[0]])
    assert tracker.revoke([0]) == [(0, 1, "")], "settled offsets are committed at the last moment"
    assert ack(tracker, held) == [False] * 3
    assert nack(tracker, held, 0.0) == [False] * 3
    assert [delivery.packet.body for delivery in tracker.take(10, 0)] == [b"0"], "of the other partition"
    tracker.add([Message(0, 9)])
    assert tracker.take(10, 0) == [], "read for a partition that is no longer ours"


def test_messages_of_a_revoked_partition_are_skipped_and_those_behind_them_are_read() -> None:
    tracker = make_tracker()
    tracker.add([Message(1, 5), Message(0, 0)])
    assert offsets(tracker.take(10, 0)) == [0]


def test_a_revoked_partition_gives_its_room_in_the_prefetch_back() -> None:
    tracker = make_tracker(2, prefetch=2)
    tracker.take(2, 0)
    tracker.revoke([0])
    tracker.assign(1, 0, None)
    tracker.add(Message(1, offset) for offset in range(3))
    assert offsets(tracker.take(3, 0)) == [0, 1]


def test_when_all_partitions_are_revoked_nothing_is_delivered_settled_or_committed_any_more() -> None:
    tracker = make_tracker(3)
    tracker.assign(1, 0, None)
    first, second, _ = tracker.take(3, 0)
    ack(tracker, [first])
    tracker.revoke_all()
    assert (tracker.due_commits(), tracker.revoke([0, 1])) == ([], [])
    assert ack(tracker, [second]) == [False]
    tracker.add([Message(0, 3), Message(1, 0)])
    assert tracker.take(9, 0) == []


def test_a_nacked_message_of_a_revoked_partition_does_not_hold_up_those_of_others() -> None:
    tracker = make_tracker(1)
    tracker.assign(1, 0, None)
    tracker.add([Message(1, 7)])
    revoked, ours = tracker.take(2, 0)
    tracker.nack(revoked, due=1.0)
    tracker.nack(ours, due=2.0)
    tracker.revoke([0])
    assert offsets(tracker.take(2, 3.0)) == [7]


def test_a_log_that_was_cut_off_is_read_anew() -> None:
    """A message before the ones that were read is a new one under an old number."""
    tracker = make_tracker(5)
    held = tracker.take(5, 0)
    tracker.add([Message(0, 2)])
    assert ack(tracker, held) == [False] * 5
    assert offsets(tracker.take(5, 0)) == [2]


# -- order


def test_a_nacked_one_and_those_behind_it_wait_in_order() -> None:
    tracker = make_tracker(4, key=b"k", prefetch=1)
    (first,) = tracker.take(5, now=0)
    nack(tracker, [first], due=10)
    assert tracker.take(5, now=9) == []
    assert tracker.next_due() == 10
    for expected in range(4):
        (delivery,) = tracker.take(5, now=10)
        assert offsets([delivery]) == [expected]
        ack(tracker, [delivery])


def test_what_was_read_behind_a_nacked_message_is_due_with_it() -> None:
    tracker = make_tracker(2, key=b"k", prefetch=2)
    (first,) = tracker.take(1, now=0)
    nack(tracker, [first], due=0.5)
    assert tracker.take(2, now=0.4) == []
    assert offsets(tracker.take(1, now=0.5)) == [0]
    assert offsets(tracker.take(1, now=0.5)) == [1]


def test_a_tracker_has_nothing_due_while_none_was_nacked_or_its_prefetch_is_full() -> None:
    tracker = make_tracker(3, prefetch=2)
    assert tracker.next_due() is None
    (nacked,) = tracker.take(1, now=0)
    nack(tracker, [nacked], due=5.0)
    assert tracker.next_due() == 5.0
    assert offsets(tracker.take(2, now=0)) == [1, 2]
    assert tracker.next_due() is None


def test_nacked_together_they_come_again_in_order() -> None:
    tracker = make_tracker(3, key=b"k")
    held = tracker.take(3, now=0)
    nack(tracker, [held[2]], due=1)
    nack(tracker, [held[1], held[0]], due=2)
    assert tracker.take(3, now=1) == []
    assert offsets(tracker.take(3, now=2)) == [0, 1, 2]


def test_nacked_without_delay_it_comes_before_those_that_were_not_delivered() -> None:
    tracker = make_tracker(3, key=b"k", prefetch=1)
    nack(tracker, tracker.take(1, now=0), due=0)
    assert offsets(tracker.take(1, now=0)) == [0]


def test_without_a_key_nothing_waits_for_another() -> None:
    tracker = make_tracker(3)
    held = tracker.take(1, now=0)
    nack(tracker, held, due=10)
    assert offsets(tracker.take(5, now=0)) == [1, 2]
    assert offsets(tracker.take(5, now=10)) == [0]


def test_one_key_in_two_partitions_is_two_lines() -> None:
    """Its number of partitions was raised: the old ones do not hold up the new."""
    tracker = make_tracker(1, key=b"k")
    tracker.assign(1, 0, None)
    tracker.add([Message(1, 7, b"k")])
    held = tracker.take(1, now=0)
    nack(tracker, held, due=10)
    assert offsets(tracker.take(5, now=0)) == [7]


# -- bounds


def test_an_old_delivery_of_a_message_settles_nothing() -> None:
    tracker = make_tracker(1)
    (old,) = tracker.take(1, now=0)
    nack(tracker, [old], due=0)
    (new,) = tracker.take(1, now=0)
    assert ack(tracker, [old]) == [False]
    assert ack(tracker, [new, new]) == [True, False]


def test_no_more_is_read_while_too_many_wait_for_their_time() -> None:
    tracker = make_tracker(MAX_DELAYED, prefetch=MAX_DELAYED)
    assert tracker.room() == 0
    nack(tracker, tracker.take(MAX_DELAYED, now=0), due=10)
    assert tracker.room() == 0
    released: list[Any] = tracker.take(1, now=10)
    assert len(released) == 1
    tracker.take(MAX_DELAYED, now=10)
    assert tracker.room() > 0


# -- nacked messages


def test_f75_a_due_message_that_waits_for_room_is_not_overtaken_by_one_that_ripens_later() -> None:
    tracker = make_tracker(3, prefetch=2, key=b"k")
    first, second = tracker.take(2, 0)
    tracker.nack(first, due=1.0)
    tracker.nack(second, due=1.5)
    tracker.assign(1, 0, None)
    tracker.add(Message(1, number) for number in range(7, 9))
    (busy, other) = tracker.take(2, 0.5)
    assert tracker.take(1, 1.2) == [], "the first is due, and the prefetch is full"
    tracker.ack(busy)
    tracker.ack(other)
    assert offsets(tracker.take(2, 2.0)) == [0, 1]


def test_f75_a_due_message_is_delivered_while_one_behind_it_is_still_delayed() -> None:
    tracker = make_tracker(3, key=b"k")
    first, second, third = tracker.take(3, 0)
    tracker.nack(third, due=0.0)
    tracker.nack(second, due=60.0)
    tracker.nack(first, due=1.0)
    assert offsets(tracker.take(3, 1.0)) == [0]
    assert tracker.next_due() == 60.0
    assert tracker.take(3, 59.0) == [], "the third waits behind the second"
    assert offsets(tracker.take(3, 60.0)) == [1, 2]


def test_f75_messages_that_are_read_later_wait_behind_a_nacked_one_of_their_key() -> None:
    tracker = make_tracker(2, key=b"k")
    first, second = tracker.take(2, 0)
    tracker.nack(first, due=1.0)
    tracker.ack(second)
    tracker.add([Message(0, 2, b"k"), Message(0, 3, b"other")])
    assert offsets(tracker.take(5, 0.5)) == [3]
    assert offsets(tracker.take(1, 1.0)) == [0]
    assert offsets(tracker.take(5, 1.0)) == [2]


def test_f75_due_messages_come_before_those_that_were_never_delivered() -> None:
    tracker = make_tracker(10, prefetch=3)
    held = tracker.take(3, 0)
    nack(tracker, held, due=1.0)
    assert offsets(tracker.take(3, 1.0)) == [0, 1, 2]


@settings(deadline=None)  # on a busy machine a single run may take long
@given(st.data())
def test_f75_whatever_is_nacked_each_key_keeps_its_order(data: st.DataObject) -> None:
    """As a worker settles: one message of a key at a time, and a failed one goes back with all of its key that is
    behind it, each 20 ms later."""
    tracker = OffsetTracker("queue", prefetch := data.draw(st.integers(1, 8)))
    tracker.assign(0, 0, None)
    keys = data.draw(st.lists(st.sampled_from([b"a", b"b", b"c"]), min_size=1, max_size=30))
    tracker.add(Message(0, offset, key) for offset, key in enumerate(keys))
    lanes: dict[bytes, list[Delivery]] = {}
    acked: list[int] = []
    now = 0.0
    while len(acked) < len(keys):
        for delivery in tracker.take(prefetch, now):
            lanes.setdefault(keys[int(delivery.packet.body)], []).append(delivery)
        if not lanes:
            now = tracker.next_due() or now
            continue
        lane = lanes[key := data.draw(st.sampled_from(sorted(lanes)))]
        if data.draw(st.sampled_from(["done", "done", "failed"])) == "done":
            delivery = lane.pop(0)
            assert tracker.ack(delivery)
            acked.append(int(delivery.packet.body))
        else:
            delay = data.draw(st.sampled_from([0.0, 0.01, 1.0]))
            for place, delivery in enumerate(lane):
                assert tracker.nack(delivery, now + delay + place * 0.02)
            lane.clear()
        if not lane:
            del lanes[key]
        now += data.draw(st.sampled_from([0.0, 0.01, 0.5]))
    for key in set(keys):
        order = [offset for offset in acked if keys[offset] == key]
        assert order == sorted(order)
