"""Notes that are lost, overwritten or not fenced."""

from __future__ import annotations

from typing import Any

from msgspec.structs import replace

from effectonce.record import Answer, Claim, Note, Page, Query, Settlement

from .base import Mutant, caught_by


@caught_by("a_claims_note_is_stored_and_answered", "a_note_is_any_bytes")
class EmptyNotesAreNone(Mutant):
    def apply(self, op: Any, now: int) -> Any:
        reply = self.apply_correctly(replace(op, note=op.note or b"?") if isinstance(op, Claim) else op, now)
        return replace(reply, note=reply.note or None) if isinstance(reply, Answer) else reply


@caught_by("a_claim_repeated_answers_the_note_as_well")
class TheRepetitionForgetsTheNote(Mutant):
    """F68."""

    def apply(self, op: Any, now: int) -> Any:
        row = self.row(op)
        reply = self.apply_correctly(op, now)
        return replace(reply, note=op.note) if isinstance(op, Claim) and row is not None else reply


@caught_by("the_first_note_stays_whichever_claim_is_next")
class TheLastNoteWins(Mutant):
    def apply(self, op: Any, now: int) -> Any:
        row = self.row(op)
        if isinstance(op, Claim) and row is not None:
            row.note = None
        return self.apply_correctly(op, now)


@caught_by("a_note_brought_later_is_stored_where_there_was_none")
class OnlyTheFirstClaimMayBringOne(Mutant):
    def apply(self, op: Any, now: int) -> Any:
        return self.apply_correctly(
            replace(op, note=None) if isinstance(op, Claim) and self.row(op) is not None else op, now
        )


@caught_by("a_note_replaces_the_one_before_and_outlives_its_writer")
class NotesAreNotReplaced(Mutant):
    def apply(self, op: Any, now: int) -> Any:
        return True if isinstance(op, Note) else self.apply_correctly(op, now)


@caught_by("a_note_repeated_answers_true")
class ANoteRepeatedIsRefused(Mutant):
    """F68."""

    def apply(self, op: Any, now: int) -> Any:
        row = self.row(op)
        return False if isinstance(op, Note) and row.note == op.note else self.apply_correctly(op, now)


@caught_by("a_note_of_a_zombie_is_refused")
class NotesAreNotFenced(Mutant):
    """F08."""

    def apply(self, op: Any, now: int) -> Any:
        row = self.row(op)
        if isinstance(op, Note) and row is not None and row.state == "claimed":
            row.note = op.note
            return True
        return self.apply_correctly(op, now)


@caught_by("a_note_on_what_is_not_claimed_is_refused")
class NotesAfterTheEnd(Mutant):
    def apply(self, op: Any, now: int) -> Any:
        row = self.row(op)
        if isinstance(op, Note) and row is not None and (row.owner, row.token) == (op.owner, op.token):
            row.note = op.note
            return True
        return self.apply_correctly(op, now)


@caught_by("a_settlement_keeps_the_note_unless_it_brings_one")
class SettlementsDropTheNote(Mutant):
    def apply(self, op: Any, now: int) -> Any:
        reply = self.apply_correctly(op, now)
        if isinstance(op, Settlement) and reply:
            self.row(op).note = op.note
        return reply


@caught_by("a_retry_keeps_the_note_and_a_forget_drops_it")
class ForgettingKeepsTheNote(Mutant):
    async def forget(self, scope: str, key: str, retention: int) -> bool:
        note = self._scopes[scope][key].note
        forgotten = await super().forget(scope, key, retention)
        self._scopes[scope][key].note = note
        return forgotten


@caught_by("an_expired_note_is_gone")
class NotesOutliveTheirRecords(Mutant):
    def apply(self, op: Any, now: int) -> Any:
        row = self.row(op)
        return self.apply_correctly(
            replace(op, note=row.note) if isinstance(op, Claim) and row is not None else op, now
        )


@caught_by("unfinished_records_are_listed")
class OnlyClaimsAreUnfinished(Mutant):
    async def list(self, query: Query) -> Page:
        return await super().list(replace(query, state="claimed") if query.unfinished else query)


@caught_by("unfinished_records_may_be_listed_newest_first")
class TheNewestAreListedFinishedOrNot(Mutant):
    async def list(self, query: Query) -> Page:
        return await super().list(replace(query, unfinished=query.unfinished and not query.newest_first))


@caught_by("notes_of_a_batch_go_to_their_records")
class TheFirstNoteOfABatchIsForAll(Mutant):
    async def run(self, batch: Any) -> Any:
        notes = [op.note for op in batch if isinstance(op, Claim) and op.note is not None]
        return await super().run(
            [replace(op, note=notes[0]) if isinstance(op, Claim) and notes else op for op in batch]
        )


@caught_by("notes_and_settlements_of_one_batch_do_each_their_own")
class ANoteAmongSettlementsIsTakenForOne(Mutant):
    async def run(self, batch: Any) -> Any:
        def settled(op: Note) -> Settlement:
            return Settlement(op.scope, op.key, op.owner, op.token, "done", 10**12, note=op.note)

        among = any(isinstance(op, Settlement) for op in batch)
        return await super().run([settled(op) if among and isinstance(op, Note) else op for op in batch])


@caught_by("notes_and_settlements_of_one_batch_do_each_their_own")
class ANoteRenewsTheLease(Mutant):
    def apply(self, op: Any, now: int) -> Any:
        reply = self.apply_correctly(op, now)
        if isinstance(op, Note) and reply:
            self.row(op).lease_until += 60_000_000
        return reply


@caught_by("a_note_leaves_its_record_to_recovery_and_to_the_sweeper")
class ANoteAmongOthersEndsTheDoubt(Mutant):
    """F07."""

    async def run(self, batch: Any) -> Any:
        replies = await super().run(batch)
        for op in batch:
            if isinstance(op, Note) and len(batch) > 1:
                self.row(op).doubt_on_lapse = False
        return replies
