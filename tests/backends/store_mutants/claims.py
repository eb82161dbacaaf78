"""Claims that are granted twice, never, or for the wrong reason."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

from msgspec.structs import replace

from effectonce.record import Answer, Batchable, Claim, Look, Remember, Reply, Settlement

from .base import Mutant, caught_by, is_live


@caught_by("a_live_claim_is_in_progress_for_others", "a_takeover_is_held_for_the_new_lease")
class DoubleGrant(Mutant):
    def apply(self, op: Any, now: int) -> Any:
        reply = self.apply_correctly(op, now)
        if isinstance(op, Claim) and reply.kind == "in_progress":
            return Answer("claimed", reply.token, reply.attempts, reply.generation)
        return reply


@caught_by(
    "one_of_many_concurrent_claims_is_granted",
    "overlapping_batches_grant_each_identity_once_and_do_not_deadlock",
    "one_of_many_concurrent_takeovers_is_granted",
    "one_of_many_concurrent_claims_takes_a_free_record",
    "claims_settlements_renewals_and_sweeps_run_together",
)
class LooksThenClaims(Mutant):
    """F14: SELECT, then INSERT."""

    async def run(self, batch: Sequence[Batchable]) -> Sequence[Reply]:
        free = []
        now = self._backend.clock.now()
        for op in batch:
            row = self.row(op)
            lapsed = is_live(row, now) and row.state == "claimed" and row.lease_until <= now
            free.append(isinstance(op, Claim) and (not is_live(row, now) or row.state == "free" or lapsed))
        time.sleep(0.002)  # noqa: ASYNC251
        replies = list(await super().run(batch))
        for n, op in enumerate(batch):
            if free[n] and replies[n].kind == "in_progress":  # type: ignore[union-attr]
                row = self.row(op)
                replies[n] = Answer("claimed", row.token, row.attempts, row.generation)
        return replies


@caught_by("a_completion_and_a_takeover_exclude_each_other")
class ChecksTheOwnerThenCompletes(Mutant):
    async def run(self, batch: Sequence[Batchable]) -> Sequence[Reply]:
        is_owner = [isinstance(op, Settlement) and self.row(op).owner == op.owner for op in batch]
        time.sleep(0.002)  # noqa: ASYNC251
        for n, op in enumerate(batch):
            if is_owner[n] and isinstance(op, Settlement):
                row = self.row(op)
                row.owner, row.token, row.state = op.owner, op.token, "claimed"
        return await super().run(batch)


@caught_by(
    "a_claim_repeated_by_its_owner_answers_the_same",
    "a_claim_repeated_from_another_connection_answers_the_same",
    "a_takeover_repeated_by_its_owner_answers_the_same",
    "a_full_batch_repeated_answers_the_same",
    "a_claim_sent_twice_at_once_is_granted_as_one",
)
class RepeatedClaimIsAStranger(Mutant):
    """F68: it finds its own key taken."""

    def apply(self, op: Any, now: int) -> Any:
        row = self.row(op)
        if isinstance(op, Claim) and is_live(row, now) and row.state == "claimed" and now < row.lease_until:
            return Answer("in_progress", row.token, retry_after=(row.lease_until - now) / 1e6)
        return self.apply_correctly(op, now)


@caught_by("a_claim_repeated_by_its_owner_is_its_own_even_lapsed")
class RepeatedClaimAfterALapseIsAStranger(Mutant):
    def apply(self, op: Any, now: int) -> Any:
        row = self.row(op)
        if isinstance(op, Claim) and is_live(row, now) and row.owner == op.owner and row.lease_until <= now:
            row.owner = b""
        return self.apply_correctly(op, now)


@caught_by("a_lapsed_lease_with_rerun_is_taken_over", "the_shortest_lease_ends", "a_renewed_lease_ends_too")
class LeaseNeverEnds(Mutant):
    def apply(self, op: Any, now: int) -> Any:
        row = self.row(op)
        if row is not None and row.state == "claimed":
            row.lease_until = max(row.lease_until, now + 1)
        return self.apply_correctly(op, now)


@caught_by("a_lease_ends_exactly_when_no_time_is_left")
class LeaseOfZeroIsNoEnd(Mutant):
    """F13: a remaining time of 0 taken for "none"."""

    def apply(self, op: Any, now: int) -> Any:
        row = self.row(op)
        if row is not None and row.lease_until == now:
            row.lease_until += 1
        return self.apply_correctly(op, now)


@caught_by("records_end_exactly_at_their_expiry")
class ExpiryIsExclusive(Mutant):
    def apply(self, op: Any, now: int) -> Any:
        row = self.row(op)
        if row is not None and row.expires_at == now:
            row.expires_at += 1
        return self.apply_correctly(op, now)


@caught_by(
    "an_expired_record_counts_as_absent",
    "an_expired_record_does_not_count_against_the_limit",
    "an_exhausted_record_expires_one_retention_later",
    "a_remember_expires",
    "a_done_claim_with_doubt_on_lapse_expires_like_any",
)
class NothingExpires(Mutant):
    """F39: expiry is left to a sweeper that may come late."""

    def apply(self, op: Any, now: int) -> Any:
        reply = self.apply_correctly(op, now)
        if (row := self.row(op)) is not None:
            row.expires_at = None
        return reply


@caught_by("an_expired_records_fingerprint_is_not_inherited")
class FingerprintOutlivesExpiry(Mutant):
    def apply(self, op: Any, now: int) -> Any:
        old = self.row(op)
        reply = self.apply_correctly(op, now)
        if isinstance(op, Claim) and old is not None and not op.fingerprints:
            self.row(op).fingerprint = old.fingerprint
        return reply


@caught_by("an_expired_record_is_no_mismatch")
class ExpiredMismatches(Mutant):
    def apply(self, op: Any, now: int) -> Any:
        row = self.row(op)
        prints = getattr(op, "fingerprints", b"")
        if prints and row is not None and row.fingerprint and row.fingerprint not in prints:
            return Answer("mismatch")
        return self.apply_correctly(op, now)


def _ignores_the_fingerprint_when(state: str) -> type[Mutant]:
    class IgnoresTheFingerprint(Mutant):
        def apply(self, op: Any, now: int) -> Any:
            row = self.row(op)
            if isinstance(op, Claim | Look | Remember) and row is not None and row.state == state:
                op = replace(op, fingerprints=b"")
            return self.apply_correctly(op, now)

    IgnoresTheFingerprint.__name__ = f"IgnoresTheFingerprintWhen{state.title().replace('_', '')}"
    return IgnoresTheFingerprint


for _state, _other_case in {
    "claimed": "another_payload_mismatches_even_under_the_same_owner",
    "done": None,
    "failed": None,
    "in_doubt": None,
    "free": "a_remember_of_another_payload_is_refused",
}.items():
    _cases = ("another_payload_mismatches_in_every_state", _other_case)
    caught_by(*filter(None, _cases))(_ignores_the_fingerprint_when(_state))


@caught_by("another_payload_mismatches_in_every_state")
class MismatchLeaksTheResult(Mutant):
    """F21."""

    def apply(self, op: Any, now: int) -> Any:
        reply = self.apply_correctly(op, now)
        if isinstance(reply, Answer) and reply.kind == "mismatch":
            return replace(reply, result=self.row(op).result)
        return reply


@caught_by("a_claim_without_fingerprint_is_not_compared", "a_record_without_fingerprint_is_not_compared")
class NoFingerprintIsAFingerprint(Mutant):
    def apply(self, op: Any, now: int) -> Any:
        row = self.row(op)
        if isinstance(op, Claim | Look) and is_live(row, now) and bool(op.fingerprints) != bool(row.fingerprint):
            return Answer("mismatch")
        return self.apply_correctly(op, now)


@caught_by("a_stored_fingerprint_may_be_any_of_those_sent")
class ComparesTheFirstFingerprintOnly(Mutant):
    def apply(self, op: Any, now: int) -> Any:
        if isinstance(op, Claim | Look):
            op = replace(op, fingerprints=op.fingerprints[:33])
        return self.apply_correctly(op, now)


@caught_by("a_claim_without_fingerprint_leaves_the_stored_one")
class NoFingerprintErasesTheStoredOne(Mutant):
    def apply(self, op: Any, now: int) -> Any:
        reply = self.apply_correctly(op, now)
        if isinstance(op, Claim) and reply.kind == "claimed" and not op.fingerprints:
            self.row(op).fingerprint = b""
        return reply


@caught_by("the_same_payload_matches")
class EveryFingerprintMismatches(Mutant):
    """An identical retry raised a payload mismatch."""

    def apply(self, op: Any, now: int) -> Any:
        if isinstance(op, Claim) and op.fingerprints and is_live(self.row(op), now):
            return Answer("mismatch")
        return self.apply_correctly(op, now)


@caught_by(
    "a_lapsed_lease_with_doubt_is_moved_to_in_doubt_by_the_next_claim",
    "a_claim_with_doubt_on_lapse_never_expires",
    "sweep_moves_lapsed_doubts",
)
class LapseAlwaysReruns(Mutant):
    """F03: a blind rerun of what may have happened."""

    def apply(self, op: Any, now: int) -> Any:
        return self.apply_correctly(replace(op, doubt_on_lapse=False) if isinstance(op, Claim) else op, now)


@caught_by("a_record_in_doubt_never_expires", "sweep_deletes_no_live_record")
class DoubtExpires(Mutant):
    def apply(self, op: Any, now: int) -> Any:
        reply = self.apply_correctly(op, now)
        row = self.row(op)
        if row is not None and row.expires_at is None:
            row.expires_at = row.changed_at + getattr(op, "retention_us", 0) + getattr(op, "lease_us", 0)
        return reply


@caught_by("a_claim_with_doubt_on_lapse_never_expires", "a_renewed_claim_with_doubt_on_lapse_still_never_expires")
class DoubtfulClaimExpires(Mutant):
    def apply(self, op: Any, now: int) -> Any:
        reply = self.apply_correctly(op, now)
        row = self.row(op)
        if row is not None and row.state == "claimed":
            row.expires_at = row.lease_until + getattr(op, "retention_us", 0)
        return reply


@caught_by("the_last_claim_decides_the_meaning_of_its_lapse")
class LapseMeansWhatTheFirstClaimSaid(Mutant):
    def apply(self, op: Any, now: int) -> Any:
        row = self.row(op)
        if isinstance(op, Claim) and is_live(row, now):
            op = replace(op, doubt_on_lapse=row.doubt_on_lapse)
        return self.apply_correctly(op, now)


@caught_by(
    "a_look_at_a_lapse_into_doubt_answers_in_doubt_without_moving_it",
    "a_look_counts_no_attempt",
    "a_look_at_a_lapsed_lease_answers_absent_and_takes_nothing",
)
class LookClaims(Mutant):
    def apply(self, op: Any, now: int) -> Any:
        if isinstance(op, Look):
            claim = Claim(op.scope, op.key, b"l" * 16, 1, 1 << 40, fingerprints=op.fingerprints)
            reply: Any = self.apply_correctly(claim, now)
            return Answer("absent") if reply.kind == "claimed" else reply
        return self.apply_correctly(op, now)


@caught_by(
    "a_free_record_is_taken_again_and_its_attempts_grow",
    "claims_up_to_the_limit_are_granted",
    "a_claim_past_the_limit_fails_the_record",
)
class ReleaseForgetsAttempts(Mutant):
    def apply(self, op: Any, now: int) -> Any:
        reply = self.apply_correctly(op, now)
        if isinstance(op, Settlement) and op.state == "free" and reply:
            self.row(op).attempts = 0
        return reply


@caught_by("an_attempt_that_took_the_process_down_counts")
class AttemptCountedAtTheEnd(Mutant):
    """F20: poison that kills the process is never counted."""

    def apply(self, op: Any, now: int) -> Any:
        row = self.row(op)
        if isinstance(op, Claim) and is_live(row, now) and row.state == "claimed" and row.lease_until <= now:
            row.attempts -= 1
        return self.apply_correctly(op, now)


@caught_by("claims_up_to_the_limit_are_granted")
class OneAttemptTooMany(Mutant):
    def apply(self, op: Any, now: int) -> Any:
        if isinstance(op, Claim) and op.max_attempts:
            op = replace(op, max_attempts=op.max_attempts + 1)
        return self.apply_correctly(op, now)


@caught_by("a_claim_past_the_limit_fails_the_record", "a_remember_never_overwrites_a_failure")
class ExhaustedIsNotStored(Mutant):
    def apply(self, op: Any, now: int) -> Any:
        row = self.row(op)
        stored = row.state if row else ""
        reply = self.apply_correctly(op, now)
        if isinstance(op, Claim) and reply.kind == "exhausted":
            row.state = stored
        return reply


@caught_by("exhausted_is_recognised_by_its_stored_error")
class ExhaustedIsAnyFailure(Mutant):
    def apply(self, op: Any, now: int) -> Any:
        reply = self.apply_correctly(op, now)
        if isinstance(reply, Answer) and reply.kind == "exhausted" and self.row(op).attempts == 1:
            return replace(reply, kind="failed")
        return reply


@caught_by("a_lapsed_lease_with_rerun_is_taken_over")
class LapseIsNotReported(Mutant):
    def apply(self, op: Any, now: int) -> Any:
        reply = self.apply_correctly(op, now)
        if isinstance(reply, Answer):
            return replace(reply, lapsed=False)
        return reply


@caught_by("a_claim_of_an_absent_record_is_granted", "an_expired_record_counts_as_absent")
class LapseIsAlwaysReported(Mutant):
    def apply(self, op: Any, now: int) -> Any:
        reply = self.apply_correctly(op, now)
        if isinstance(reply, Answer):
            return replace(reply, lapsed=reply.kind == "claimed")
        return reply


@caught_by("an_answer_carries_the_generation_of_what_is_stored")
class ReplayForgetsTheGeneration(Mutant):
    def apply(self, op: Any, now: int) -> Any:
        reply = self.apply_correctly(op, now)
        if isinstance(reply, Answer) and reply.kind in ("done", "failed"):
            return replace(reply, generation=0)
        return reply


@caught_by("a_granted_claim_is_stored_as_it_was_asked")
class InFlightGetsTheRetention(Mutant):
    """The in-flight marker gets the 24 h response TTL, so a crash wedges the key for a day."""

    def apply(self, op: Any, now: int) -> Any:
        return self.apply_correctly(replace(op, lease_us=op.retention_us) if isinstance(op, Claim) else op, now)


@caught_by("duplicates_do_not_change_a_finished_record")
class DuplicatesProlongTheRecord(Mutant):
    def apply(self, op: Any, now: int) -> Any:
        reply = self.apply_correctly(op, now)
        if isinstance(op, Claim) and reply.kind == "done":
            self.row(op).expires_at = now + op.retention_us
        return reply


@caught_by("a_waiting_claim_changes_nothing_that_is_seen", "a_live_claim_is_in_progress_for_others")
class AskingProlongsTheLease(Mutant):
    def apply(self, op: Any, now: int) -> Any:
        reply = self.apply_correctly(op, now)
        if isinstance(op, Claim) and reply.kind == "in_progress":
            self.row(op).lease_until += 1_000_000
        return reply


@caught_by("a_done_record_answers_its_result")
class ReplayWithoutResult(Mutant):
    """A falsy or lost result replayed as "no result"."""

    def apply(self, op: Any, now: int) -> Any:
        reply = self.apply_correctly(op, now)
        return replace(reply, result=None) if isinstance(reply, Answer) else reply


@caught_by("a_record_in_doubt_answers_in_doubt")
class DoubtIsRunAgain(Mutant):
    """F03: never a blind rerun."""

    def apply(self, op: Any, now: int) -> Any:
        row = self.row(op)
        if isinstance(op, Claim) and row is not None and row.state == "in_doubt":
            row.state = "free"
        return self.apply_correctly(op, now)
