"""Runs a saga, from its claim to its settlement: forward step by step, or backward by compensations.

Written once for sync and async sagas: everything that waits goes through the `StoreClient`. The end of each step is
committed to the log before the next one begins, and the end of the last one with the settlement. A step that was begun
and whose end is not in the log is called again under the same key.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Literal, NoReturn

from effectonce.core.codec import Unstorable
from effectonce.core.error_text import describe_error
from effectonce.core.failure_log import log_failed_attempt, retried_in
from effectonce.core.guarded_call.begin import begin
from effectonce.core.guarded_call.run import StoreRun, current_run
from effectonce.core.interrupts import is_own_exit
from effectonce.core.retry import is_final
from effectonce.core.store_clients import StoreClient
from effectonce.errors import (
    EffectOnceError,
    InDoubt,
    LeaseLost,
    OutcomeUnknown,
    PermanentFailure,
    ResultNotStored,
    Retryable,
    SagaChanged,
    show,
)
from effectonce.providers import Provider, classify, is_ambiguous
from effectonce.record import Answer
from effectonce.values.durations import span_text

from .claimed_saga import ClaimedSaga
from .log import LoggedStep, StepProgress, unpack_results
from .parts import SagaPart
from .spans import record_end, saga_span, step_span
from .steps import Done, StepCall, StepRun

if TYPE_CHECKING:
    from .saga import Saga

logger = logging.getLogger("effectonce")

#: Errors of a step after which only an operator can find out whether it happened.
_DOUBT_ERRORS: Final = (InDoubt, LeaseLost)
_IN_DOUBT: Final = "is in doubt: find out whether it happened, then decide with effectonce sagas resolve"
_ANY_PROVIDER: Final = Provider(name="it")
UNKNOWN_OUTCOME_LIMIT_US: Final = 86_400_000_000
"""A step whose outcome is unknown is tried again for a day; after that an operator must decide."""


async def run_saga(
    saga: Saga[Any], run: StoreRun, client: StoreClient, compensate: bool = False, claimed_at: int | None = None
) -> Done:
    """Claim a saga, run it from where its log stands to its end, and return the results of its steps. With
    ``compensate``, undo what is done. ``claimed_at``: see `ClaimedSaga`."""
    runner: SagaRunner | None = None
    try:
        try:
            await begin(run, client)
        except InDoubt as error:
            raise InDoubt(
                f"saga {show(saga.name)} {show(run.key)!r} is in doubt: look at it (effectonce sagas show), find out "
                "what its step did, then decide (effectonce sagas resolve)"
            ) from error
        if run.replayed:
            return Done(saga.steps, set(saga.steps), unpack_results(run.value))
        current_run.set(run)
        claimed = ClaimedSaga(run, client, saga.name, claimed_at)
        with saga_span(claimed):
            try:
                saga.fit(claimed.log)
                runner = SagaRunner(saga, claimed, saga.inputs.decode(claimed.log.input))
            except SagaChanged:
                with suppress(EffectOnceError):
                    await claimed.give_back()
                raise
            return await runner.run(compensate)
    finally:
        run.end()
        if runner is not None and runner.orphan is not None:
            runner.orphan.keep_leased(run)


async def record_saga(saga: Saga[Any], run: StoreRun, client: StoreClient) -> None:
    """Record a saga and leave it to `Saga.resume`. Changes nothing if it is recorded already."""
    try:
        await begin(run, client)
        if not run.replayed:
            await ClaimedSaga(run, client, saga.name).give_back()
    except (InDoubt, PermanentFailure, ResultNotStored):
        pass
    except Retryable as error:
        if error.code != "in-progress":
            raise
    finally:
        run.end()


class SagaRunner:
    """Runs the steps and compensations of one claimed saga."""

    def __init__(self, saga: Saga[Any], claimed: ClaimedSaga, input: Any) -> None:
        self._saga = saga
        self._claimed = claimed
        self._log = claimed.log
        self._input = input
        self._cause: BaseException | None = None
        self.orphan: StepCall | None = None  # a call that still runs although this runner had to stop

    async def run(self, compensate: bool) -> Done:
        log = self._log
        if log.doubt_reason:  # an operator's decision did not reach the log: it has to be made again
            await self._claimed.doubt(log.find_part_in_doubt()[0], log.doubt_reason)
        await self._check_interruption()
        if compensate and log.phase == "running":
            log.turn_around("", None)
            await self._claimed.commit()
        if log.phase == "running" and await self._run_forward():
            results = log.collect_results()
            await self._claimed.complete(results)
            return Done(self._saga.steps, set(self._saga.steps), results)
        await self._run_compensations()
        error = await self._claimed.settle_failed()
        raise error from self._cause

    def _pending_parts(self) -> Iterator[SagaPart]:
        """Yield the steps that are left, or the compensations, in the order in which they run."""
        if self._log.phase == "running":
            for entry in self._log.entries:
                if entry.do.state != "done":
                    yield SagaPart(entry, self._saga.steps[entry.name].do, undoes=False)
            return
        for entry in reversed(self._log.entries):
            function = self._saga.steps[entry.name].undo
            if function is not None and entry.do.state == "done" and entry.undo.state != "done":
                yield SagaPart(entry, function, undoes=True)

    # -- forward

    async def _run_forward(self) -> bool:
        """Run the steps that are left. Returns False if one failed; the log says then that the saga turns around."""
        claimed, log = self._claimed, self._log
        for part in self._pending_parts():
            call = await self._call_until_final(part)
            if not call.finished:
                await self._handle_timeout(part, call)
                return False
            if call.error is not None:
                claimed.end_step(part.progress, "failed", describe_error(call.error))
                self._turn_around(part.entry, call.error)
                if any(self._pending_parts()):
                    await claimed.commit()
                return False
            self._record_success(part.entry, call.value)
            if part.entry is not log.entries[-1]:  # the last one is committed with the settlement
                await claimed.commit()
        return True

    def _record_success(self, entry: LoggedStep, value: Any) -> None:
        self._claimed.end_step(entry.do, "done")
        try:
            entry.result = self._saga.steps[entry.name].codec.encode(value)
        except Unstorable as error:
            logger.warning("saga %s: the result of step %s is not stored: %s", self._saga.name, entry.name, error)
            self._claimed.run.emit("result_not_stored", f"{entry.name}: {error}")

    def _turn_around(self, entry: LoggedStep, error: BaseException) -> None:
        self._cause = error
        self._log.turn_around(entry.name, error)

    async def _handle_timeout(self, part: SagaPart, call: StepCall) -> None:
        """Turn around, and wait for the late end of the step (F49: it may still succeed, and is compensated then).
        Until its outcome is known, nothing else is compensated."""
        claimed, entry, progress = self._claimed, part.entry, part.progress
        limit = span_text(round((part.function.timeout_s or 0) * 1e6))
        call.run.renewal_refused = True  # its `current().lease_lost` tells it to stop
        error = TimeoutError(f"no end within {limit}")
        self._log_failed(part, error, "the saga turns around as soon as it has ended", last=True)
        claimed.end_step(progress, "timed_out", str(error))
        self._turn_around(entry, error)
        await claimed.commit()
        try:
            await call.wait(part.function.grace_s)
            if not call.finished:
                await call.stop()
        except BaseException:  # this runner has to stop, and the step still runs: its outcome is unknown
            call.when_failed(partial(self._log_late, part))
            await claimed.release_after_error("cancelled")
            raise
        if call.finished and call.error is None:
            self._record_success(entry, call.value)
            progress.error = f"late: no end within {limit}"
        elif isinstance(call.error, Exception) and _proves_not_done(call.error, part):
            self._log_failed(part, call.error, "ended late: the saga undoes the steps before it", last=True)
            claimed.end_step(progress, "failed", f"late: {describe_error(call.error)}")
        else:
            if not call.finished:
                call.when_failed(partial(self._log_late, part))
            elif call.error is not None:
                self._log_late(part, call.error)
            await self._doubt_unknown(entry)
        await claimed.commit()

    # -- backward

    async def _run_compensations(self) -> None:
        """Undo what is done, in reverse order, each once (F48: compensations that repeat or run out of order)."""
        claimed = self._claimed
        if (unknown := self._unknown_step()) is not None:
            await self._doubt_unknown(unknown)
        compensations = list(self._pending_parts())
        for part in compensations:
            progress = part.progress
            call = await self._call_until_final(part)
            if call.error is not None:
                claimed.end_step(progress, "failed", describe_error(call.error))
                often = "once" if progress.attempts == 1 else f"{progress.attempts} times"
                await claimed.doubt(part.entry, f"it has failed {often}: {progress.error}")
            claimed.end_step(progress, "done")
            if part is not compensations[-1]:  # the last one is committed with the settlement
                await claimed.commit()

    def _unknown_step(self) -> LoggedStep | None:
        """Return a step with an unknown outcome: nothing is compensated before it is known."""
        return next((entry for entry in self._log.entries if entry.do.state in ("running", "timed_out")), None)

    async def _doubt_unknown(self, entry: LoggedStep) -> NoReturn:
        how = "it timed out" if entry.do.state == "timed_out" else "it was started"
        await self._claimed.doubt(entry, f"{how}, and whether it happened is not known")

    # -- one step or compensation

    async def _call_until_final(self, part: SagaPart) -> StepCall:
        """Call ``part`` until it succeeds or may not be tried again. Returns the last call, unfinished if it timed out.

        Raises where the saga cannot continue here: the outcome is unknown, or an operator must decide.
        """
        claimed, saga_run, progress = self._claimed, self._claimed.run, part.progress
        if not progress.attempts or not part.undoes:  # a resumed compensation keeps the time when it first began
            progress.began = claimed.now()
        args = (self._input, self._done_so_far()) if part.function.takes_done else (self._input,)
        while True:
            if saga_run.lease_lost:
                raise LeaseLost(f"{claimed}: the lease ended before {part.name}; another process resumes it")
            progress.attempts += 1
            call = StepCall(self._make_step_run(part), claimed.client)
            try:
                with step_span(claimed, part) as span:
                    await call.start(part.function, args)
                    record_end(span, call)
            except BaseException as error:  # cancelled, or the process ends: the outcome of the step is unknown
                _mark_interrupted(progress, error)
                if await call.stop():
                    await claimed.release_after_error(type(error).__name__)
                else:  # it still runs, and no other process may run beside it
                    self.orphan = call
                    call.when_failed(partial(self._log_orphan, part))
                raise
            if call.error is None or await self._pause_or_fail(part, call.error) == "failed":
                return call

    async def _pause_or_fail(self, part: SagaPart, error: BaseException) -> Literal["retry", "failed"]:
        """Decide after ``error``: pause, if ``part`` is to be tried again. Raises if the saga cannot continue here,
        since the outcome is unknown."""
        claimed, progress = self._claimed, part.progress
        if not isinstance(error, Exception):
            _mark_interrupted(progress, error)
            await claimed.release_after_error(type(error).__name__)
            raise error
        if isinstance(error, _DOUBT_ERRORS):
            self._log_failed(part, error, _IN_DOUBT, last=True)
            claimed.end_unknown(progress, error)
            await claimed.doubt(part.entry, progress.error)
        unknown = not is_final(error) and is_ambiguous(error, progress.unknown_since > 0 or progress.crashes > 0)
        was_inferred = progress.outcome_inferred
        if unknown:
            progress.mark_unknown(inferred=not isinstance(error, EffectOnceError))
        delay = part.function.retry.delay_after(error, progress.attempts)
        if delay is not None and not self._exceeds_limit(part, unknown):
            if progress.outcome_inferred and not was_inferred:  # if this process dies now, the next runner must know it
                await claimed.commit()
            self._log_failed(part, error, retried_in(delay))
            await self._pause(delay)
            return "retry"
        if unknown:
            await self._leave_unknown(part, error)
        if not part.undoes and not _proves_not_done(error, part):
            self._log_failed(part, error, _IN_DOUBT, last=True)
            claimed.end_unknown(progress, error)
            await claimed.doubt(part.entry, f"{progress.error}; and an attempt before that may have happened")
        then = _IN_DOUBT if part.undoes else "the saga undoes the steps before it"
        self._log_failed(part, error, then, last=True)
        return "failed"

    def _log_failed(self, part: SagaPart, error: BaseException, then: str, last: bool = False) -> None:
        """See `log_failed_attempt`."""
        run, kind = self._claimed.run, "compensation of step" if part.undoes else "step"
        log_failed_attempt(
            {"saga": self._saga.name, kind: part.name},
            error,
            then,
            last=last,
            refused=not part.undoes and is_final(error),
            scope=run.scope,
            key=self._log.id,
            attempt=part.progress.attempts,
            private=run.runtime.privacy is not None,
        )

    def _log_late(self, part: SagaPart, error: BaseException) -> None:
        """Log how a step ended whose outcome had been given up as unknown."""
        self._log_failed(part, error, f"ended late, and {_IN_DOUBT}", last=True)

    def _log_orphan(self, part: SagaPart, error: BaseException) -> None:
        """Log how a call ended that had outlasted its runner."""
        self._log_failed(part, error, "ended late: the next resume tries it again")

    def _exceeds_limit(self, part: SagaPart, unknown: bool) -> bool:
        """Whether an operator must decide now, whatever ``retry`` allows (F50: a compensation that fails forever): if
        the outcome has been unknown for a day, or a compensation has failed for a day."""
        if not unknown and not part.undoes:
            return False
        since = part.progress.unknown_since if unknown else part.progress.began
        return self._claimed.now() - since >= UNKNOWN_OUTCOME_LIMIT_US

    async def _leave_unknown(self, part: SagaPart, error: Exception) -> NoReturn:
        """Release the saga with the outcome of ``part`` unknown: `resume` tries it again under the same key, until
        the limit, which puts it in doubt."""
        claimed, progress = self._claimed, part.progress
        claimed.end_unknown(progress, error)
        exceeded = self._exceeds_limit(part, unknown=True)
        then = _IN_DOUBT if exceeded else "its outcome is unknown: the next resume tries it again"
        self._log_failed(part, error, then, last=exceeded)
        if exceeded:
            limit = span_text(UNKNOWN_OUTCOME_LIMIT_US)
            await claimed.doubt(part.entry, f"for {limit} it was not known whether it happened: {progress.error}")
        await claimed.release_after_error(progress.error)
        if isinstance(error, Retryable):
            raise error
        raise OutcomeUnknown(
            f"{claimed}: whether {part.name} happened is unknown: {progress.error}; resume will continue it"
        ) from error

    async def _pause(self, seconds: float) -> None:
        try:
            await self._claimed.client.new_wake_up().wait(seconds)
        except BaseException as error:
            await self._claimed.release_after_error(type(error).__name__)
            raise

    def _make_step_run(self, part: SagaPart) -> StepRun:
        """Make the run that `current()` returns inside the call. Its key is the same in every attempt. The token of a
        compensation is greater than that of its step, so that it fences the step."""
        run, progress = self._claimed.run, part.progress
        key = f"{self._saga.key_prefix}{self._log.id}/{part.entry.key}{'/compensate' if part.undoes else ''}"
        token = run.token + 1 if part.undoes else run.token
        return StepRun(
            runtime=run.runtime,
            policy=run.policy,
            key=key,
            stored_key=key,
            owner=run.owner,
            parent=run,
            lease_requested_at=run.lease_requested_at,
            token=token,
            answer=Answer("claimed", token, progress.attempts, progress.rounds, lapsed=progress.crashes > 0),
        )

    def _done_so_far(self) -> Done:
        finished = {entry.name for entry in self._log.entries if entry.do.state == "done"}
        return Done(self._saga.steps, finished, self._log.collect_results())

    async def _check_interruption(self) -> None:
        """Check whether the next call was started before, and whether it is safe to repeat.

        A previous process may have died in it (F20: a call that kills its process). That is committed before it runs
        again, so that it does not take down one process after another."""
        part, interrupted = next(self._pending_parts(), None), self._claimed.interrupted
        if part is None or (self._log.phase == "compensating" and self._unknown_step() is not None):
            return  # nothing is left, or an operator decides first
        progress = part.progress
        if interrupted and part.undoes:  # a step is marked by `ClaimedSaga`
            progress.mark_died()
        if progress.crashes >= part.function.retry.max_crashes:
            reason = f"{progress.crashes} processes died in it"
            if progress.error:
                reason = (
                    f"{progress.crashes} attempts ended in it without an outcome; the last error was {progress.error}"
                )
            await self._claimed.doubt(part.entry, reason)
        if progress.state == "running" and self._claimed.outlived_retention(progress):
            retention = span_text(self._claimed.run.policy.retention_us)
            await self._claimed.doubt(
                part.entry,
                f"its outcome is not known, and it began longer ago than its effect is remembered ({retention})",
            )
        if interrupted:
            await self._claimed.commit()


def _mark_interrupted(progress: StepProgress, error: BaseException) -> None:
    """Record that a call ended without an outcome. If it ended itself it may do so again (F20), and that is counted."""
    progress.mark_unknown(inferred=True)
    if is_own_exit(error):
        progress.crashes += 1
        progress.error = describe_error(error)


def _proves_not_done(error: Exception, part: SagaPart) -> bool:
    """Whether ``error`` proves that ``part`` has not happened in any of its attempts.

    After an attempt that ended in a network error, or was interrupted, most errors prove nothing: "duplicate" may be
    just what its success causes. Then it takes an answer of the service (a 402, or an error raised from one), or an
    error that the step's ``retry`` calls final.
    """
    if is_final(error):
        return True
    if is_ambiguous(error, part.progress.unknown_since > 0):
        return False
    if not part.progress.outcome_inferred or part.function.retry.refuses(error):
        return True
    causes = (error, error.__cause__)
    return any(cause is not None and classify(_ANY_PROVIDER, cause, True).kind == "failure" for cause in causes)
