"""Settlements, renewals and remembers that do too much or too little."""

from __future__ import annotations

from typing import Any

from msgspec.structs import replace

from effectonce.record import EXHAUSTED_ERROR, Claim, Remember, Renewal, Settlement

from .base import Mutant, caught_by


@caught_by("a_settlement_repeated_answers_true_and_changes_nothing", "a_renewal_repeated_answers_true")
class RepetitionIsRefused(Mutant):
    """F68."""

    def apply(self, op: Any, now: int) -> Any:
        row = self.row(op)
        if isinstance(op, Settlement) and row is not None and row.state == op.state:
            return False
        if isinstance(op, Renewal) and row is not None and row.lease_until == now + op.lease_us:
            return False
        return self.apply_correctly(op, now)


@caught_by("an_open_record_keeps_its_error_until_an_attempt_ends_otherwise")
class OnlyFailuresKeepTheirError(Mutant):
    def apply(self, op: Any, now: int) -> Any:
        forgets = isinstance(op, Settlement) and op.state != "failed"
        return self.apply_correctly(replace(op, error=None) if forgets else op, now)


@caught_by(
    "an_open_record_keeps_its_error_until_an_attempt_ends_otherwise",
    "a_lapsed_lease_leaves_the_error_of_the_attempt_before",
)
class ClaimsForgetTheError(Mutant):
    def apply(self, op: Any, now: int) -> Any:
        reply = self.apply_correctly(op, now)
        if isinstance(op, Claim) and reply.kind == "claimed":
            self.row(op).error = None
        return reply


@caught_by("a_refund_keeps_the_error_of_the_attempt_before")
class RefundsForgetTheError(Mutant):
    def apply(self, op: Any, now: int) -> Any:
        reply = self.apply_correctly(op, now)
        if isinstance(op, Settlement) and op.refund and reply:
            self.row(op).error = None
        return reply


@caught_by("an_exhausted_record_keeps_the_last_error")
class ExhaustionForgetsTheError(Mutant):
    def apply(self, op: Any, now: int) -> Any:
        reply = self.apply_correctly(op, now)
        if isinstance(op, Claim) and reply.kind == "exhausted":
            self.row(op).error = EXHAUSTED_ERROR
        return reply


@caught_by("a_repeated_completion_does_not_replace_the_result")
class RepetitionReplacesTheResult(Mutant):
    def apply(self, op: Any, now: int) -> Any:
        reply = self.apply_correctly(op, now)
        if isinstance(op, Settlement) and reply and op.state == "done":
            self.row(op).result = op.result
        return reply


@caught_by("a_repeated_refund_is_given_once", "a_refund_sent_twice_at_once_is_given_once")
class RefundsAreGivenTwice(Mutant):
    def apply(self, op: Any, now: int) -> Any:
        row = self.row(op)
        if isinstance(op, Settlement) and row is not None and row.state == "free":
            row.state = "claimed"
        return self.apply_correctly(op, now)


@caught_by("a_refund_gives_the_attempt_back", "a_refunded_attempt_does_not_count_against_the_limit")
class NoRefund(Mutant):
    def apply(self, op: Any, now: int) -> Any:
        return self.apply_correctly(replace(op, refund=False) if isinstance(op, Settlement) else op, now)


@caught_by("a_settled_record_is_not_settled_differently", "a_claim_moved_to_in_doubt_may_not_be_released_or_failed")
class OwnerMaySettleAgain(Mutant):
    def apply(self, op: Any, now: int) -> Any:
        row = self.row(op)
        if isinstance(op, Settlement) and row is not None and row.state != op.state:
            row.state = "claimed"
        return self.apply_correctly(op, now)


@caught_by(
    "a_doubt_may_be_completed_by_its_owner",
    "a_claim_moved_to_in_doubt_may_still_be_completed_by_its_owner",
)
class DoubtIsFinal(Mutant):
    def apply(self, op: Any, now: int) -> Any:
        row = self.row(op)
        if isinstance(op, Settlement) and row is not None and row.state == "in_doubt" and op.state == "done":
            return False
        return self.apply_correctly(op, now)


@caught_by("a_doubt_may_not_be_completed_by_another")
class AnyoneMayCompleteADoubt(Mutant):
    def apply(self, op: Any, now: int) -> Any:
        row = self.row(op)
        if isinstance(op, Settlement) and row is not None and row.state == "in_doubt":
            op = replace(op, owner=row.owner, token=row.token)
        return self.apply_correctly(op, now)


@caught_by(
    "a_settlement_after_the_lease_ended_is_applied_until_a_takeover",
    "a_renewal_after_the_lease_ended_is_applied_until_a_takeover",
)
class LapseInvalidates(Mutant):
    def apply(self, op: Any, now: int) -> Any:
        row = self.row(op)
        if isinstance(op, Settlement | Renewal) and row is not None and row.lease_until <= now:
            return False
        return self.apply_correctly(op, now)


@caught_by("a_settlement_of_an_absent_record_is_refused")
class SettlementUpserts(Mutant):
    def apply(self, op: Any, now: int) -> Any:
        if isinstance(op, Settlement) and self.row(op) is None:
            return self.apply_correctly(Remember(op.scope, op.key, op.retention_us, b"", op.result), now)
        return self.apply_correctly(op, now)


@caught_by("done_failed_and_free_expire_one_retention_from_now")
class RetentionCountsFromTheLease(Mutant):
    def apply(self, op: Any, now: int) -> Any:
        reply = self.apply_correctly(op, now)
        row = self.row(op)
        if isinstance(op, Settlement) and reply and row.expires_at is not None:
            row.expires_at = row.lease_until + op.retention_us
        return reply


@caught_by("each_settlement_is_stored")
class SettlementForgetsItsOwner(Mutant):
    def apply(self, op: Any, now: int) -> Any:
        reply = self.apply_correctly(op, now)
        if isinstance(op, Settlement) and reply:
            self.row(op).owner = b""
        return reply


@caught_by("each_settlement_is_stored", "a_failed_record_answers_its_error")
class FailureIsStoredAsDone(Mutant):
    """F19: that is a loss."""

    def apply(self, op: Any, now: int) -> Any:
        if isinstance(op, Settlement) and op.state == "failed":
            op = replace(op, state="done")
        return self.apply_correctly(op, now)


@caught_by("a_renewal_extends_the_lease_from_now")
class RenewalAddsToTheLease(Mutant):
    def apply(self, op: Any, now: int) -> Any:
        row = self.row(op)
        before = row.lease_until if row else 0
        reply = self.apply_correctly(op, now)
        if isinstance(op, Renewal) and reply:
            row.lease_until = before + op.lease_us
        return reply


@caught_by("a_renewed_lease_outlives_the_first", "a_renewal_extends_the_lease_from_now")
class RenewalDoesNothing(Mutant):
    def apply(self, op: Any, now: int) -> Any:
        row = self.row(op)
        if isinstance(op, Renewal) and row is not None:
            return row.state == "claimed" and (row.owner, row.token) == (op.owner, op.token)
        return self.apply_correctly(op, now)


@caught_by("a_settled_record_is_not_renewed")
class SettledIsRenewed(Mutant):
    def apply(self, op: Any, now: int) -> Any:
        row = self.row(op)
        if isinstance(op, Renewal) and row is not None and (row.owner, row.token) == (op.owner, op.token):
            row.state = "claimed"
        return self.apply_correctly(op, now)


@caught_by(
    "a_remember_leaves_a_done_record_as_it_is",
    "a_remember_never_overwrites_a_live_claim",
    "a_remember_never_overwrites_a_doubt",
    "a_remember_never_overwrites_a_failure",
)
class RememberOverwrites(Mutant):
    def apply(self, op: Any, now: int) -> Any:
        if isinstance(op, Remember) and (row := self.row(op)) is not None:
            row.state = "free"
        return self.apply_correctly(op, now)


@caught_by(
    "a_remember_takes_a_free_record",
    "a_remember_takes_a_lapsed_claim_and_fences_its_owner",
    "a_remember_makes_an_absent_record_done",
)
class RememberKeepsOwnerAndToken(Mutant):
    def apply(self, op: Any, now: int) -> Any:
        old = self.row(op)
        reply = self.apply_correctly(op, now)
        if isinstance(op, Remember) and reply:
            row = self.row(op)
            row.owner, row.token = (old.owner, old.token) if old else (b"x" * 16, 1)
        return reply
