"""Settlements and operators that are not fenced by owner and token."""

from __future__ import annotations

import time
from typing import Any

from msgspec.structs import replace

from effectonce.record import Claim, Renewal, Resolution, Settlement

from .base import Mutant, caught_by, is_live


@caught_by("a_stale_settlement_leaves_the_successors_alone", "forget_fences_the_owner_out")
class Unfenced(Mutant):
    """F08: a settlement that only looks at the key."""

    def apply(self, op: Any, now: int) -> Any:
        row = self.row(op)
        if isinstance(op, Settlement) and is_live(row, now):
            row.state, op = "claimed", replace(op, owner=row.owner, token=row.token)
        return self.apply_correctly(op, now)


@caught_by("a_stale_settlement_leaves_the_successors_alone", "a_zombies_settlements_and_renewal_are_refused")
class UnfencedRelease(Mutant):
    """F09: a release that only looks at the key."""

    def apply(self, op: Any, now: int) -> Any:
        row = self.row(op)
        if isinstance(op, Settlement) and op.state == "free" and is_live(row, now):
            row.state, row.result, row.error = "free", None, None
            return True
        return self.apply_correctly(op, now)


@caught_by("the_same_token_under_another_owner_is_refused", "owners_are_compared_as_bytes")
class OwnerNotCompared(Mutant):
    def apply(self, op: Any, now: int) -> Any:
        row = self.row(op)
        if isinstance(op, Settlement | Renewal) and is_live(row, now):
            op = replace(op, owner=row.owner)
        return self.apply_correctly(op, now)


@caught_by(
    "the_same_owner_under_another_token_is_refused",
    "an_owner_that_claimed_again_is_fenced_from_its_first_claim",
    "each_settlement_of_a_batch_stands_alone",
)
class TokenNotCompared(Mutant):
    def apply(self, op: Any, now: int) -> Any:
        row = self.row(op)
        if isinstance(op, Settlement | Renewal) and is_live(row, now):
            op = replace(op, token=row.token)
        return self.apply_correctly(op, now)


@caught_by("a_zombies_settlements_and_renewal_are_refused")
class RenewalNotFenced(Mutant):
    """F08: the zombie's heartbeat keeps the successor's lease, and the zombie believes that it is its own."""

    def apply(self, op: Any, now: int) -> Any:
        row = self.row(op)
        if isinstance(op, Renewal) and is_live(row, now):
            op = replace(op, owner=row.owner, token=row.token)
        return self.apply_correctly(op, now)


@caught_by(
    "a_token_comes_from_the_stores_time",
    "an_expired_record_counts_as_absent",
    "a_key_is_claimed_anew_after_it_was_swept",
    "a_lapsed_claim_expires_one_retention_after_its_lease",
)
class TokenRestarts(Mutant):
    """F69: counted per record, so it starts again at 1."""

    def apply(self, op: Any, now: int) -> Any:
        reply = self.apply_correctly(op, now)
        if isinstance(op, Claim) and reply.kind == "claimed":
            self.row(op).token = reply.attempts
            return replace(reply, token=reply.attempts)
        return reply


@caught_by("tokens_grow_with_every_claim", "a_free_record_is_taken_again_and_its_attempts_grow")
class TokenIsOnlyTheTime(Mutant):
    """Two claims within one tick of the clock get one token."""

    def apply(self, op: Any, now: int) -> Any:
        reply = self.apply_correctly(op, now)
        if isinstance(op, Claim) and reply.kind == "claimed":
            self.row(op).token = self.row(op).changed_at
            return replace(reply, token=self.row(op).token)
        return reply


@caught_by("forget_fences_the_owner_out", "forget_makes_the_next_claim_run")
class ForgetKeepsOwnerAndToken(Mutant):
    async def forget(self, scope: str, key: str, retention: int) -> bool:
        row = self._backend.scopes.get(scope, {}).get(key)
        before = (row.owner, row.token) if row else None
        answer = await super().forget(scope, key, retention)
        if row and before:
            row.owner, row.token = before
        return answer


@caught_by("forget_makes_the_next_claim_run", "forget_of_an_exhausted_record_lets_it_run_again")
class ForgetKeepsAttempts(Mutant):
    async def forget(self, scope: str, key: str, retention: int) -> bool:
        row = self._backend.scopes.get(scope, {}).get(key)
        attempts = row.attempts if row else 0
        answer = await super().forget(scope, key, retention)
        if row:
            row.attempts = attempts
        return answer


@caught_by("forget_of_nothing_is_false", "a_forgotten_record_expires")
class ForgetOfAnythingNeverExpires(Mutant):
    async def forget(self, scope: str, key: str, retention: int) -> bool:
        await super().forget(scope, key, 1 << 60)
        return True


@caught_by(
    "resolve_done_stores_the_result",
    "resolve_failed_stores_the_error",
    "resolve_free_starts_a_new_generation",
    "resolve_takes_a_claim_that_lapsed_into_doubt",
)
class ResolveDoesNotFence(Mutant):
    async def resolve(self, scope: str, key: str, resolution: Resolution) -> bool:
        row = self._backend.scopes.get(scope, {}).get(key)
        before = (row.owner, row.token) if row else None
        answer = await super().resolve(scope, key, resolution)
        if row and before:
            row.owner, row.token = before
            if answer:
                row.state = "in_doubt" if resolution.state != "done" else "done"
        return answer


@caught_by("resolve_of_what_is_not_in_doubt_is_refused", "a_second_resolution_is_refused")
class ResolveOfAnything(Mutant):
    async def resolve(self, scope: str, key: str, resolution: Resolution) -> bool:
        row = self._backend.scopes.get(scope, {}).get(key)
        if row is not None and row.state != "in_doubt":
            row.state = "in_doubt"
        return await super().resolve(scope, key, resolution)


@caught_by("resolve_takes_a_claim_that_lapsed_into_doubt")
class ResolveWaitsForTheSweeper(Mutant):
    async def resolve(self, scope: str, key: str, resolution: Resolution) -> bool:
        row = self._backend.scopes.get(scope, {}).get(key)
        return row is not None and row.state == "in_doubt" and await super().resolve(scope, key, resolution)


@caught_by("resolve_keeps_the_operators_retention")
class ResolvedNeverExpires(Mutant):
    async def resolve(self, scope: str, key: str, resolution: Resolution) -> bool:
        return await super().resolve(scope, key, replace(resolution, retention_us=1 << 60))


@caught_by("one_of_many_concurrent_resolutions_is_applied")
class ResolveLooksThenWrites(Mutant):
    async def resolve(self, scope: str, key: str, resolution: Resolution) -> bool:
        row = self._backend.scopes.get(scope, {}).get(key)
        is_in_doubt = row is not None and row.state == "in_doubt"
        time.sleep(0.002)  # noqa: ASYNC251
        if is_in_doubt and row is not None:
            row.state = "in_doubt"
        return is_in_doubt and await super().resolve(scope, key, resolution)
