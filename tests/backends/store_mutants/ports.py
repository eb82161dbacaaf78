"""Batches out of order, and ports that break or leak."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Sequence
from typing import Any

from msgspec.structs import replace

from effectonce.backends.memory.store import MemoryStoreBackend
from effectonce.record import Batchable, Claim, Reply

from .base import Defect, Mutant, caught_by


@caught_by(
    "a_full_batch_of_claims_is_granted_and_settled",
    "each_claim_of_a_batch_is_answered_in_its_place",
    "each_look_of_a_batch_is_answered_in_its_place",
    "each_remember_of_a_batch_stands_alone",
    "each_renewal_of_a_batch_stands_alone",
    "a_batch_may_mix_kinds_where_the_store_takes_them_so",
)
class RepliesOutOfOrder(Mutant):
    async def run(self, batch: Sequence[Batchable]) -> Sequence[Reply]:
        return list(reversed(await super().run(batch)))


@caught_by("a_batch_over_many_scopes_keeps_them_apart", "each_claim_of_a_batch_is_answered_in_its_place")
class BatchTakesTheFirstsOptions(Mutant):
    async def run(self, batch: Sequence[Batchable]) -> Sequence[Reply]:
        first = batch[0] if batch else None
        if isinstance(first, Claim):
            batch = [
                replace(op, owner=first.owner, doubt_on_lapse=first.doubt_on_lapse) if isinstance(op, Claim) else op
                for op in batch
            ]
        return await super().run(batch)


@caught_by("an_operation_the_store_cannot_keep_harms_itself_only")
class ABadKeyIsTheBatchsDriverError(Mutant):
    class DriverError(Exception): ...

    async def run(self, batch: Sequence[Batchable]) -> Sequence[Reply]:
        if any("\x00" in op.key for op in batch):
            raise self.DriverError("invalid byte sequence")
        return await super().run(batch)


@caught_by("an_empty_batch_is_answered_by_nothing")
class AnEmptyBatchIsAnError(Mutant):
    async def run(self, batch: Sequence[Batchable]) -> Sequence[Reply]:
        if not batch:
            raise Defect("nothing to do")
        return await super().run(batch)


@caught_by("migrate_may_run_twice")
class MigratesOnce(Mutant):
    async def migrate(self) -> None:
        if self._backend.__dict__.setdefault("migrated", False):
            raise Defect("the table exists already")
        self._backend.__dict__["migrated"] = True


@caught_by("migrate_may_run_twice_at_once")
class MigrationsCollide(Mutant):
    async def migrate(self) -> None:
        lock = self._backend.__dict__.setdefault("migrating", threading.Lock())
        if not lock.acquire(blocking=False):
            raise Defect("another migration is running")
        time.sleep(0.05)  # noqa: ASYNC251
        lock.release()


@caught_by("a_migrated_store_passes_its_check")
class NeverPassesItsCheck(Mutant):
    async def check(self) -> None:
        raise Defect("the schema is of another version")


@caught_by("the_schema_is_text_for_people")
class NoSchema(Mutant):
    schema = None


@caught_by("many_ports_may_be_open_at_once")
class EightPortsAtMost(Mutant):
    def __init__(self, backend: MemoryStoreBackend) -> None:
        super().__init__(backend)
        backend.__dict__["ports"] = backend.__dict__.get("ports", 0) + 1
        if backend.__dict__["ports"] > 8:
            raise Defect("too many connections")


@caught_by("a_cancelled_call_does_not_spoil_the_next")
class KeepsAHalfReadConnection(Mutant):
    """The reply of the cancelled call is still on the wire, and answers the next."""

    def __init__(self, backend: MemoryStoreBackend) -> None:
        super().__init__(backend)
        self.wire: list[Sequence[Reply]] = []

    async def run(self, batch: Sequence[Batchable]) -> Sequence[Reply]:
        self.wire.append(await super().run(batch))
        for _ in range(3):
            await asyncio.sleep(0)
        return self.wire.pop(0)


@caught_by("now_is_the_time_and_does_not_run_backwards")
class TimeRunsBackwards(Mutant):
    ticks = 0

    async def now(self) -> int:
        self.ticks += 1
        return await super().now() - self.ticks * 1_000_000


@caught_by("a_port_closes_unused_and_twice")
class ClosesOnce(Mutant):
    closed = 0

    async def close(self) -> None:
        self.closed += 1
        if self.closed == 2:
            raise Defect("already closed")


@caught_by("a_closed_port_leaves_nothing_open")
class LeaksAFile(Mutant):
    kept: list[Any] = []  # noqa: RUF012

    async def run(self, batch: Sequence[Batchable]) -> Sequence[Reply]:
        self.kept.append(open("/dev/null"))  # noqa: SIM115
        return await super().run(batch)


@caught_by("a_sync_port_serves_one_thread_after_another")
class BoundToItsThread(Mutant):
    thread: int | None = None

    async def run(self, batch: Sequence[Batchable]) -> Sequence[Reply]:
        self.thread = self.thread or threading.get_ident()
        if self.thread != threading.get_ident():
            raise Defect("made in another thread")
        return await super().run(batch)


@caught_by("all_ports_share_the_records")
class EveryPortItsOwnRecords(Mutant):
    def __init__(self, backend: MemoryStoreBackend) -> None:
        super().__init__(backend)
        self._scopes = {}
