"""`ClaimedSaga`: a saga that this process has claimed. It commits the saga's log, and settles it."""

from __future__ import annotations

from collections.abc import Coroutine, Mapping
from typing import Any, Literal, NoReturn

from effectonce.core.claim_notes import read_note, seal_note, write_note
from effectonce.core.codec import encode_error
from effectonce.core.error_text import describe_error
from effectonce.core.guarded_call.finish import make_completion, settle_unfinished
from effectonce.core.guarded_call.run import StoreRun
from effectonce.core.store_clients import StoreClient
from effectonce.errors import InDoubt, LeaseLost, SagaFailed, show
from effectonce.record import Settlement

from .log import LoggedStep, StepProgress, decode_log, encode_log, pack_results


class ClaimedSaga:
    """A claimed saga and its log. The log is this process's copy: what the runner changes in it counts when it is
    committed or settled, which the store refuses once another process has claimed the saga.

    ``claimed_at``: when the saga was first claimed, on the store's clock, if that is known.
    """

    def __init__(self, run: StoreRun, client: StoreClient, name: str, claimed_at: int | None = None) -> None:
        self.run = run
        self.client = client
        self.name = name
        self.log = decode_log(read_note(run))
        self._clock_offset = run.token - int(run.runtime.monotonic() * 1e6)
        if self.log.written_by_process_clock:
            self.log.correct_written_at(self.now() if claimed_at is None else claimed_at)
        #: Whether the previous process died in it. If yet another process claimed it since, and gave it back, the store
        #: no longer shows the lapsed lease, but the number of attempts does.
        self.interrupted = not self.log.doubt_reason and (run.lapsed or run.attempt != self.log.settled_attempt + 1)
        if self.interrupted:
            self.log.mark_interrupted()

    def now(self) -> int:
        """Estimate the store's time, without asking the store."""
        return self._clock_offset + int(self.run.runtime.monotonic() * 1e6)

    def outlived_retention(self, progress: StepProgress) -> bool:
        """Whether a step with an unknown outcome may have happened so long ago that its guard has forgotten it."""
        since = min(progress.unknown_since or self.log.written_at, self.log.written_at)
        return self.now() - since >= self.run.policy.retention_us

    def end_step(self, progress: StepProgress, state: Literal["done", "failed", "timed_out"], error: str = "") -> None:
        progress.state, progress.error, progress.ended = state, error, self.now()

    def end_unknown(self, progress: StepProgress, error: Exception) -> None:
        """Record ``error``, which ended an attempt without saying whether the step happened."""
        progress.mark_unknown()
        progress.error, progress.ended = describe_error(error), self.now()

    def commit(self) -> Coroutine[Any, Any, None]:
        """Write the log. Raises `LeaseLost` if another process took over: the caller must stop."""
        return write_note(self.run, self.client, self._encode())

    async def complete(self, results: Mapping[str, bytes]) -> None:
        """Settle the saga as done."""
        op = make_completion(self.run, pack_results(results))
        assert isinstance(op, Settlement)
        await self._settle(op, "completed")

    async def settle_failed(self) -> SagaFailed:
        """Settle the saga as failed. Returns the error to raise, which every duplicate gets, too."""
        run, log = self.run, self.log
        undone = [entry.name for entry in log.entries if entry.undo.state == "done"]
        compensated = f"compensated: {', '.join(reversed(undone))}" if undone else "there was nothing to undo"
        error = SagaFailed(
            f"{self} failed{f' at step {log.failed_at}' if log.failed_at else ''}: {log.failure_text}; {compensated}",
            log.failure,
            log.failed_at,
        )
        op = run.settlement("failed", max(run.policy.retention_us, run.min_retention))
        op.error = run.seal(encode_error(error))
        await self._settle(op, "failed", log.failure_text)
        return error

    async def release(self) -> None:
        """Write the log and leave the saga to the next runner."""
        await self._settle(self.run.settlement("free", self.run.policy.unfinished_retention_us), "released")

    async def give_back(self) -> None:
        """Leave the saga unchanged, as if it had not been claimed: if it was interrupted, the next runner sees it."""
        op = self.run.settlement("free", self.run.policy.unfinished_retention_us)
        op.refund = True
        await self._settle(op, "released")

    async def doubt(self, entry: LoggedStep, why: str) -> NoReturn:
        """Put the saga in doubt: an operator has to find out about ``entry``, or to finish it by hand."""
        self.log.step_in_doubt, self.log.doubt_reason = entry.name, why
        await self._settle(self.run.settlement("in_doubt", self.run.policy.unfinished_retention_us), "in_doubt", why)
        raise InDoubt(self.log.describe_doubt(self.name))

    async def release_after_error(self, why: str) -> None:
        """Release the saga because of an error that the caller raises. Never raises an `Exception` of its own."""
        await settle_unfinished(self.run, self.client, "free", why, seal_note(self.run, self._encode(settled=True)))

    def _encode(self, settled: bool = False) -> bytes:
        self.log.written_at = self.now()
        if settled:
            self.log.settled_attempt = self.run.attempt
        return encode_log(self.log)

    async def _settle(self, op: Settlement, event: str, detail: str = "") -> None:
        run = self.run
        run.end_handler()
        if not op.refund:
            op.note = seal_note(run, self._encode(settled=True))
        applied = run.protected and await self.client.settle(op)  # not protected: a forked child, see `write_note`
        run.runtime.waiters.wake((run.scope, run.stored_key))
        run.emit(event if applied else "fenced", detail)
        if not applied:
            raise LeaseLost(
                f"{self}: the lease ended and another process resumed it, or an "
                "operator settled it; what this attempt did last was not recorded"
            )

    def __str__(self) -> str:
        return f"saga {show(self.name)} {show(self.log.id)!r}"
