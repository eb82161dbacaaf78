"""Sagas that are wrong: undone in the wrong order, recorded too early, or with forgotten late successes."""

from __future__ import annotations

from typing import Any

from effectonce.sagas import runner
from effectonce.sagas.claimed_saga import ClaimedSaga
from effectonce.sagas.runner import SagaRunner

from .base import mutant

_run_compensations, _settle_failed = SagaRunner._run_compensations, ClaimedSaga.settle_failed
_pending_parts, _make_step_run = SagaRunner._pending_parts, SagaRunner._make_step_run
_run_forward, _call_until_final = SagaRunner._run_forward, SagaRunner._call_until_final


@mutant("F48", SagaRunner, "_pending_parts", "saga-S+decline/1")
def undone_in_the_order_of_doing(self: Any) -> Any:
    """Compensated in the order of the steps."""
    calls = list(_pending_parts(self))
    return calls[::-1] if self._log.phase == "compensating" else calls


@mutant("F48", SagaRunner, "_pending_parts", "saga-S+decline/1")
def first_step_not_undone(self: Any) -> Any:
    """The first step is left standing."""
    calls = list(_pending_parts(self))
    return calls[:-1] if self._log.phase == "compensating" else calls


@mutant("F48", SagaRunner, "_run_compensations", "saga-S+decline+crash/2")
async def failed_before_undone(self: Any) -> None:
    """The failure is recorded before the compensations: a crash in between leaves the steps standing."""
    await _settle_failed(self._claimed)
    await _run_compensations(self)


@mutant("F49", SagaRunner, "_handle_timeout", "saga-T+slow/1")
async def late_success_forgotten(self: Any, part: Any, call: Any) -> None:
    """A step that timed out counts as failed, and its late success is not undone."""
    self._claimed.end_step(part.progress, "failed", "no end in time")
    self._turn_around(part.entry, TimeoutError("no end in time"))
    await self._claimed.commit()


@mutant("F49", SagaRunner, "_doubt_unknown", "saga-T+slow/2")
async def unknown_is_not_done(self: Any, entry: Any) -> None:
    """A step without an outcome counts as one that did not happen."""
    self._claimed.end_step(entry.do, "failed", "unknown")


@mutant("F03", runner, "is_ambiguous", "saga-S+mute/1")
def unknown_is_failure(error: BaseException, again: bool = False) -> bool:
    """A step with an unknown outcome counts as failed."""
    return False


@mutant("F03", SagaRunner, "_make_step_run", "saga-S+crash-after/1")
def key_of_a_step_changes(self: Any, part: Any) -> Any:
    """Every process gives a step another key, so that it is repeated after a crash."""
    run = _make_step_run(self, part)
    run.key = f"{run.key}/{self._claimed.run.token}"
    return run


@mutant("F48", SagaRunner, "_run_forward", "saga-S+decline/1")
async def failure_is_success(self: Any) -> bool:
    """A step that fails ends the saga as done."""
    await _run_forward(self)
    return True


@mutant("F48", SagaRunner, "_call_until_final", "saga-S+decline+crash/2")
async def undo_recorded_before_done(self: Any, part: Any) -> Any:
    """A compensation is recorded as done before it is called."""
    if part.undoes:
        part.progress.state = "done"
        await self._claimed.commit()
    return await _call_until_final(self, part)
