"""The records that a recovery reads, a bounded number at a time."""

from __future__ import annotations

from typing import Any

import pytest

import effectonce as eo
from effectonce.backends.memory.store import MemoryStoreBackend
from effectonce.core.run_sync import run_sync
from effectonce.core.unfinished import UnfinishedRecords
from effectonce.record import Claim, Page
from effectonce.testing import ManualClock


class CountedSource:
    """A store with claimed records; it counts how many were read."""

    def __init__(self, claimed: int) -> None:
        self.clock = ManualClock()
        backend = MemoryStoreBackend(clock=self.clock)
        self._store = eo.Store(backend, sweep_every=None)
        for number in range(claimed):
            run_sync(backend.sync_port().run([Claim("s", f"k{number:03}", b"o" * 16, 60_000_000, 10**12, note=b"n")]))
        self.read = 0

    def now(self) -> int:
        return self._store.now()

    def list(self, **query: Any) -> Page:
        page = self._store.list(**query)
        self.read += len(page.records)
        return page


def keys(unfinished: UnfinishedRecords, limit: int | None) -> list[str]:
    return [record.key for page in unfinished.pages(limit) for record in page]


def test_what_a_process_still_runs_is_left_alone_until_its_lease_has_ended() -> None:
    source = CountedSource(3)
    assert keys(UnfinishedRecords(source, "s"), None) == []
    source.clock.advance(60)
    assert keys(UnfinishedRecords(source, "s"), None) == ["k000", "k001", "k002"]


def test_a_bounded_recovery_does_not_read_the_whole_table_in_search_of_what_it_may_resume() -> None:
    source = CountedSource(500)
    assert keys(UnfinishedRecords(source, "s"), 2) == []
    assert 2 <= source.read <= 100


def test_a_bounded_recovery_goes_on_where_the_last_one_ended_and_begins_again_after_the_last_record() -> None:
    source = CountedSource(5)
    source.clock.advance(60)
    unfinished = UnfinishedRecords(source, "s")
    rounds = [keys(unfinished, 2) for _ in range(4)]
    assert rounds == [["k000", "k001"], ["k002", "k003"], ["k004"], ["k000", "k001"]]


@pytest.mark.parametrize("limit", [0, -1])
def test_a_limit_of_no_records_is_refused(limit: int) -> None:
    with pytest.raises(eo.InvalidOption, match="give 1 or more"):
        keys(UnfinishedRecords(CountedSource(1), "s"), limit)
