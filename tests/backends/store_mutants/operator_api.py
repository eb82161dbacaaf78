"""Get, list, stats and sweep that show or take what they should not."""

from __future__ import annotations

import threading
import time
from typing import Any

from msgspec.structs import replace

from effectonce.record import Claim, Operation, Page, Query, Record, Stats, SweepResult

from .base import Defect, Mutant, caught_by


@caught_by("sweep_deletes_no_live_record")
class SweepDeletesLapsed(Mutant):
    """F26."""

    async def sweep(self, limit: int) -> SweepResult:
        for rows in self._backend.scopes.values():
            for key in [key for key, row in rows.items() if row.lease_until <= self._backend.clock.now()]:
                if rows[key].state == "claimed" and not rows[key].doubt_on_lapse:
                    del rows[key]
        return await super().sweep(limit)


@caught_by("sweep_deletes_no_live_record")
class SweepDeletesClaims(Mutant):
    """F26."""

    async def sweep(self, limit: int) -> SweepResult:
        for rows in self._backend.scopes.values():
            for key in [key for key, row in rows.items() if row.state == "claimed"]:
                del rows[key]
        return await super().sweep(limit)


@caught_by("sweep_deletes_what_has_expired", "sweep_is_bounded_by_its_limit")
class SweepHidesButKeeps(Mutant):
    async def sweep(self, limit: int) -> SweepResult:
        swept = await super().sweep(limit)
        return SweepResult(0, swept.lapsed, swept.more)


@caught_by("sweep_is_bounded_by_its_limit")
class SweepIsUnbounded(Mutant):
    async def sweep(self, limit: int) -> SweepResult:
        return await super().sweep(1 << 40)


@caught_by("sweep_moves_lapsed_doubts")
class SweepOnlyDeletes(Mutant):
    """F07: a record that no recovery path reaches."""

    async def sweep(self, limit: int) -> SweepResult:
        before = [(row, row.state) for rows in self._backend.scopes.values() for row in rows.values()]
        swept = await super().sweep(limit)
        for row, state in before:
            row.state = state
        return SweepResult(swept.deleted, 0, swept.more)


@caught_by("concurrent_sweeps_share_the_work")
class OneSweeperAtATime(Mutant):
    async def sweep(self, limit: int) -> SweepResult:
        lock = self._backend.__dict__.setdefault("sweeping", threading.Lock())
        if not lock.acquire(blocking=False):
            raise Defect("could not serialize access due to concurrent delete")
        time.sleep(0.02)  # noqa: ASYNC251
        swept = await super().sweep(limit)
        lock.release()
        return swept


@caught_by("sweep_records_its_time")
class SweepIsSilent(Mutant):
    """F37."""

    async def sweep(self, limit: int) -> SweepResult:
        swept = await super().sweep(limit)
        self._backend.swept_at = None
        return swept


@caught_by("list_pages_reach_all_and_none_twice")
class PagesOverlap(Mutant):
    async def list(self, query: Query) -> Page:
        page = await super().list(query)
        if page.cursor is None and query.cursor is not None and page.records:
            return Page([*page.records, page.records[0]], None)
        return page


@caught_by("list_pages_reach_all_and_none_twice")
class PagesEndEarly(Mutant):
    async def list(self, query: Query) -> Page:
        return Page((await super().list(query)).records, None)


@caught_by("a_list_may_begin_after_any_place")
class ListBeginsAtTheBeginning(Mutant):
    async def list(self, query: Query) -> Page:
        return await super().list(replace(query, after=None))


@caught_by("list_may_be_newest_first")
class TheNewestComeInTheOrderOfKeys(Mutant):
    async def list(self, query: Query) -> Page:
        return await super().list(replace(query, newest_first=False))


@caught_by("list_may_be_newest_first")
class TheNewestAreOfOnePageOnly(Mutant):
    async def list(self, query: Query) -> Page:
        page = await super().list(query)
        return Page(page.records) if query.newest_first else page


@caught_by("list_finds_what_a_key_contains")
class KeysAreSearchedFromTheirBeginning(Mutant):
    async def list(self, query: Query) -> Page:
        page = await super().list(query)
        return Page([record for record in page.records if record.key.startswith(query.key_contains)], page.cursor)


@caught_by("list_finds_what_a_key_contains")
class KeysAreSearchedWithoutTheState(Mutant):
    async def list(self, query: Query) -> Page:
        return await super().list(replace(query, state=None) if query.key_contains else query)


@caught_by("list_filters_by_scope", "list_filters_by_state")
class ListIgnoresItsFilters(Mutant):
    async def list(self, query: Query) -> Page:
        return await super().list(Query(limit=query.limit, cursor=query.cursor))


@caught_by("list_shows_records_as_get_does")
class ListHidesTheResult(Mutant):
    async def list(self, query: Query) -> Page:
        page = await super().list(query)
        return Page([replace(record, result=None) for record in page.records], page.cursor)


@caught_by("list_leaves_out_what_has_expired", "an_expired_record_counts_as_absent", "forget_of_nothing_is_false")
class ReadersSeeTheExpired(Mutant):
    def _revive(self) -> None:
        for scope, rows in self._backend.scopes.items():
            for key in rows:
                self.row(Operation(scope, key)).expires_at = None

    async def list(self, query: Query) -> Page:
        self._revive()
        return await super().list(query)

    async def get(self, scope: str, key: str) -> Record | None:
        self._revive()
        return await super().get(scope, key)

    async def forget(self, scope: str, key: str, retention: int) -> bool:
        self._revive()
        return await super().forget(scope, key, retention)


@caught_by("get_shows_a_lapse_as_it_is_stored", "a_look_at_a_lapse_into_doubt_answers_in_doubt_without_moving_it")
class GetInterpretsALapse(Mutant):
    async def get(self, scope: str, key: str) -> Record | None:
        record = await super().get(scope, key)
        if record and record.state == "claimed" and (record.lease_until or 0) <= self._backend.clock.now():
            return replace(record, state="in_doubt" if record.doubt_on_lapse else "free")
        return record


@caught_by("created_at_stays_and_changed_at_moves")
class CreatedMoves(Mutant):
    def apply(self, op: Any, now: int) -> Any:
        reply = self.apply_correctly(op, now)
        if (row := self.row(op)) is not None:
            row.created_at = now
        return reply


@caught_by("get_of_an_unknown_key_is_none")
class GetInventsARecord(Mutant):
    async def get(self, scope: str, key: str) -> Record | None:
        await self.run([Claim(scope, key, bytes(16), 1, 1)])
        return await super().get(scope, key)


@caught_by("stats_count_every_state")
class StatsCountNothing(Mutant):
    async def stats(self) -> Stats:
        return replace(await super().stats(), counts={})


@caught_by("stats_count_every_state")
class StatsHaveACountForTheOldestDoubt(Mutant):
    async def stats(self) -> Stats:
        return replace(await super().stats(), oldest_in_doubt=1)


@caught_by("stats_do_not_count_what_has_expired")
class StatsCountEverythingEver(Mutant):
    async def stats(self) -> Stats:
        ever = self._backend.__dict__.setdefault("ever", {})
        ever.update({id(row): row.state for rows in self._backend.scopes.values() for row in rows.values()})
        return replace(
            await super().stats(), counts={state: list(ever.values()).count(state) for state in ever.values()}
        )

    async def sweep(self, limit: int) -> SweepResult:
        await self.stats()
        return await super().sweep(limit)
