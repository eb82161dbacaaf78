"""How many rows the relay leases at once."""

from __future__ import annotations

import pytest

from effectonce.contracts.outbox import OutboxRow
from effectonce.relay.batch_size import AdaptiveBatchSize


def rows(count: int, payload: int = 10) -> list[OutboxRow]:
    row = OutboxRow(1, "k", "m1", "orders", None, "paid", "{}", b"x" * payload, "bytes", None, "shop", None, 1)
    return [row] * count


def test_it_begins_small_and_doubles_with_every_full_batch() -> None:
    size = AdaptiveBatchSize(500, 24.0)
    sizes = [size.rows]
    for _ in range(4):
        size.record_published(rows(size.rows), 0.01)
        sizes.append(size.rows)
    assert sizes == [64, 128, 256, 500, 500]
    assert AdaptiveBatchSize(10, 24.0).rows == 10


def test_a_batch_that_is_not_full_says_nothing() -> None:
    size = AdaptiveBatchSize(500, 24.0)
    size.record_published(rows(63), 0.0)
    assert size.rows == 64


@pytest.mark.parametrize(("seconds", "expected"), [(1.0, 128), (8.0, 96), (16.0, 48), (1e6, 1)])
def test_a_batch_takes_half_of_its_lease_at_most(seconds: float, expected: int) -> None:
    """64 rows in 8 s: in the 12 s that are half of a window of 24 there is time for 96."""
    size = AdaptiveBatchSize(500, 24.0)
    size.record_published(rows(64), seconds)
    assert size.rows == expected


def test_large_messages_make_small_batches() -> None:
    size = AdaptiveBatchSize(500, 24.0)
    size.record_published(rows(64, payload=1024 * 1024), 0.01)
    assert size.rows == 8, "of 1 MiB each"


def test_a_batch_that_was_not_confirmed_in_time_is_halved() -> None:
    size = AdaptiveBatchSize(500, 24.0)
    size.record_timeout(64)
    assert size.rows == 32
    size.record_timeout(100)
    assert size.rows == 32, "it does not grow"
    for _ in range(6):
        size.record_timeout(size.rows)
    assert size.rows == 1
