"""Notes on a claim, as intents and sagas write them."""

from __future__ import annotations

from typing import Any

import pytest

import effectonce as eo
from effectonce.backends.memory.store import MemoryStoreBackend
from effectonce.core.claim_notes import read_listed_note, read_note, write_note
from effectonce.core.codec import Codec
from effectonce.core.guarded_call.begin import begin, prepare_run
from effectonce.core.guarded_call.run import Policy, StoreRun
from effectonce.core.run_sync import run_sync
from effectonce.testing import ManualClock

POLICY = Policy(scope="charge", codec=Codec(Any, 1000), retention_us=10**9)


def claimed(store: eo.Store) -> StoreRun:
    run = prepare_run(store.runtime, POLICY, "o-1", b"")
    run_sync(begin(run, store.runtime.sync_client()))
    return run


@pytest.mark.parametrize("private", [None, "a secret of thirty-two characters"])
def test_a_note_is_read_by_the_next_claim_and_in_a_list(private: str | None) -> None:
    clock = ManualClock()
    with eo.Store(MemoryStoreBackend(clock=clock), private=private, sweep_every=None) as store:
        run = claimed(store)
        assert read_note(run) is None
        run_sync(write_note(run, store.runtime.sync_client(), b"sent"))
        (record,) = store.list().records
        assert (record.note == b"sent") is (private is None)
        assert read_listed_note(record, store.runtime.privacy) == b"sent"
        clock.advance("1m")
        assert read_note(claimed(store)) == b"sent"


@pytest.mark.parametrize("why", ["taken over", "forked"])
def test_f15_a_note_of_one_that_lost_its_claim_is_refused_and_it_must_stop(why: str) -> None:
    clock, events = ManualClock(), list[eo.Event]()
    with eo.Store(MemoryStoreBackend(clock=clock), hooks=[events.append], sweep_every=None) as store:
        run = claimed(store)
        if why == "forked":
            run.protected = False
        else:
            clock.advance("1m")
            claimed(store)
        with pytest.raises(eo.LeaseLost, match="this attempt has stopped"):
            run_sync(write_note(run, store.runtime.sync_client(), b"sent"))
        assert [event.kind for event in events][-1] == "fenced"
        (record,) = store.list().records
        assert record.note is None
