"""To the microsecond: what a lease, a retention and an expiry mean on a clock that stands still.

For stores that take a clock; a test module derives a class from `ExactTimes` and has a fixture ``timed``.
"""

from __future__ import annotations

from typing import Any

import pytest

from effectonce.core.run_sync import run_sync
from effectonce.record import Answer, Claim, Look, Query, Record, Remember, Renewal, Resolution, Settlement, SweepResult
from effectonce.testing.clock import START_US, ManualClock

LEASE, RETENTION = 1000, 5000


class TimedPort:
    """A store's port and its clock, asked with one operation at a time."""

    def __init__(self, port: Any, clock: ManualClock) -> None:
        self.port = port
        self.clock = clock

    def ask(self, op: Any) -> Any:
        (reply,) = run_sync(self.port.run([op]))
        return reply

    def claim(self, owner: bytes = b"a" * 16, **options: Any) -> Answer:
        answer: Answer = self.ask(Claim("s", "k", owner, LEASE, RETENTION, **options))
        return answer

    def settle(self, token: int, state: Any = "done", owner: bytes = b"a" * 16, **options: Any) -> bool:
        return bool(self.ask(Settlement("s", "k", owner, token, state, RETENTION, **options)))

    def get(self) -> Record | None:
        record: Record | None = run_sync(self.port.get("s", "k"))
        return record

    def sweep(self, limit: int = 100) -> SweepResult:
        swept: SweepResult = run_sync(self.port.sweep(limit))
        return swept


class ExactTimes:
    @pytest.mark.parametrize(("elapsed", "kind"), [(LEASE - 1, "in_progress"), (LEASE, "claimed")])
    def test_a_lease_ends_at_its_last_microsecond(self, timed: TimedPort, elapsed: int, kind: str) -> None:
        assert timed.claim().lapsed is False
        timed.clock.advance_micros(elapsed)
        answer = timed.claim(b"b" * 16)
        assert answer.kind == kind
        assert answer.lapsed is (kind == "claimed")

    @pytest.mark.parametrize(("elapsed", "kind"), [(LEASE - 1, "in_progress"), (LEASE, "in_doubt")])
    def test_a_claim_lapses_into_doubt_at_the_same_one(self, timed: TimedPort, elapsed: int, kind: str) -> None:
        timed.claim(doubt_on_lapse=True)
        timed.clock.advance_micros(elapsed)
        assert timed.ask(Look("s", "k")).kind == kind
        assert timed.claim(b"b" * 16, doubt_on_lapse=True).kind == kind

    @pytest.mark.parametrize(("elapsed", "lapsed"), [(LEASE - 1, 0), (LEASE, 1)])
    def test_a_sweep_moves_it_to_doubt_at_the_same_one(self, timed: TimedPort, elapsed: int, lapsed: int) -> None:
        timed.claim(doubt_on_lapse=True)
        timed.clock.advance_micros(elapsed)
        assert timed.sweep() == SweepResult(0, lapsed, False)
        record = timed.get()
        assert record is not None
        assert (record.state, record.expires_at) == ("in_doubt" if lapsed else "claimed", None)

    @pytest.mark.parametrize("state", ["done", "failed", "free"])
    @pytest.mark.parametrize("elapsed", [RETENTION - 1, RETENTION])
    def test_a_settled_record_is_absent_when_its_retention_is_over(
        self, timed: TimedPort, state: str, elapsed: int
    ) -> None:
        token = timed.claim().token
        timed.clock.advance_micros(LEASE // 2)
        error = {"error": b"E"} if state == "failed" else {}
        assert timed.settle(token, state, **error)
        timed.clock.advance_micros(elapsed)
        is_there = elapsed < RETENTION
        assert (timed.get() is not None) is is_there
        assert (timed.ask(Look("s", "k")).kind == "absent") is (not is_there or state == "free")
        assert len(run_sync(timed.port.list(Query())).records) == is_there
        assert sum(run_sync(timed.port.stats()).counts.values()) == is_there
        assert timed.sweep() == SweepResult(0 if is_there else 1, 0, False)

    @pytest.mark.parametrize("elapsed", [LEASE + RETENTION - 1, LEASE + RETENTION])
    def test_a_claim_is_absent_one_retention_after_its_lease(self, timed: TimedPort, elapsed: int) -> None:
        first = timed.claim()
        timed.clock.advance_micros(elapsed)
        answer = timed.claim(b"b" * 16)
        is_there = elapsed < LEASE + RETENTION
        assert (answer.attempts, answer.lapsed) == ((2, True) if is_there else (1, False))
        assert answer.token > first.token

    def test_a_renewal_counts_from_now(self, timed: TimedPort) -> None:
        answer = timed.claim()
        timed.clock.advance_micros(LEASE - 1)
        assert timed.ask(Renewal("s", "k", b"a" * 16, answer.token, LEASE, RETENTION)) is True
        record = timed.get()
        assert record is not None
        assert record.lease_until == START_US + 2 * LEASE - 1
        assert record.expires_at == START_US + 2 * LEASE - 1 + RETENTION
        timed.clock.advance_micros(LEASE)
        assert timed.ask(Renewal("s", "k", b"a" * 16, answer.token, LEASE, RETENTION)) is True, "no other owner has it"

    def test_a_remembered_key_is_as_old_as_it_is(self, timed: TimedPort) -> None:
        assert timed.ask(Remember("s", "k", RETENTION)) is True
        record = timed.get()
        assert record is not None
        assert (record.created_at, record.changed_at, record.expires_at) == (START_US, START_US, START_US + RETENTION)
        assert (record.state, record.attempts, record.generation) == ("done", 0, 0)

    def test_a_record_says_when_it_was_created_and_changed(self, timed: TimedPort) -> None:
        token = timed.claim().token
        timed.clock.advance_micros(10)
        assert timed.settle(token, result=b"1")
        record = timed.get()
        assert record is not None
        assert (record.created_at, record.changed_at, record.expires_at) == (
            START_US,
            START_US + 10,
            START_US + 10 + RETENTION,
        )
        assert (record.lease_until, record.attempts, record.token) == (None, 1, token)

    def test_tokens_grow_by_time_and_by_one_at_least(self, timed: TimedPort) -> None:
        first = timed.claim()
        assert first.token == START_US
        assert timed.settle(first.token, "free")
        assert timed.claim(b"b" * 16).token == START_US + 1, "in the same microsecond"
        timed.clock.advance_micros(LEASE)
        assert timed.claim(b"c" * 16).token == START_US + LEASE

    def test_the_last_attempt_is_the_one_that_is_allowed(self, timed: TimedPort) -> None:
        for number in (1, 2):
            answer = timed.claim(max_attempts=2)
            assert (answer.kind, answer.attempts) == ("claimed", number)
            assert timed.settle(answer.token, "free")
        timed.clock.advance_micros(7)
        assert timed.claim(max_attempts=2).kind == "exhausted"
        record = timed.get()
        assert record is not None
        assert (record.state, record.changed_at, record.expires_at) == (
            "failed",
            START_US + 7,
            START_US + 7 + RETENTION,
        )

    def test_a_refund_is_one_attempt(self, timed: TimedPort) -> None:
        for number in (1, 1, 1):
            answer = timed.claim()
            assert answer.attempts == number
            assert timed.settle(answer.token, "free", refund=True)

    def test_a_decision_starts_a_generation_or_keeps_it(self, timed: TimedPort) -> None:
        for generation, state in enumerate(("free", "free", "done")):
            answer = timed.claim(doubt_on_lapse=True)
            assert (answer.attempts, answer.generation) == (1, generation)
            assert timed.settle(answer.token, "in_doubt")
            timed.clock.advance_micros(10)
            record = timed.get()
            assert record is not None
            decision = Resolution(state=state, retention_us=RETENTION, result=b"1" if state == "done" else None)
            assert run_sync(timed.port.resolve("s", "k", decision)) is True
            assert run_sync(timed.port.resolve("s", "k", decision)) is False, "nothing is in doubt any more"
            record = timed.get()
            assert record is not None
            assert record.changed_at == timed.clock.now()
            assert record.expires_at == timed.clock.now() + RETENTION
            assert record.token > answer.token, "its owner settles nothing any more"

    def test_a_sweep_takes_so_many_and_says_whether_there_are_more(self, timed: TimedPort) -> None:
        for number in range(3):
            timed.ask(Remember(f"s{number % 2}", f"k{number}", RETENTION))
            timed.ask(Claim("doubtful", f"k{number}", b"a" * 16, LEASE, RETENTION, doubt_on_lapse=True))
        timed.clock.advance_micros(RETENTION)
        done = SweepResult(0, 0, True)
        rounds = 0
        while done.more:
            done = timed.sweep(2)
            rounds += 1
            assert max(done.deleted, done.lapsed) <= 2
        assert rounds == 2
        stats = run_sync(timed.port.stats())
        assert stats.counts == {"claimed": 0, "done": 0, "failed": 0, "in_doubt": 3, "free": 0}
        assert stats.oldest_in_doubt is not None
