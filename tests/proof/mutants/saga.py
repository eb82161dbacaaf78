"""Sagas that are wrong: undone in the wrong order, too early recorded, late successes forgotten."""

from __future__ import annotations

from typing import Any

from effectonce.sagas import runner
from effectonce.sagas.log import Course
from effectonce.sagas.runner import Runner

from .base import mutant

_back, _to_undo, _step_run, _failed = Runner._back, Runner._to_undo, Runner._step_run, Course.failed
_forward, _tried = Runner._forward, Runner._tried


@mutant("F48", Runner, "_to_undo", "saga-S+decline/1")
def undone_in_the_order_of_doing(self: Any) -> Any:
    """Compensated in the order of the steps."""
    return reversed(list(_to_undo(self)))


@mutant("F48", Runner, "_to_undo", "saga-S+decline/1")
def first_step_not_undone(self: Any) -> Any:
    """The first step is left standing."""
    return list(_to_undo(self))[:-1]


@mutant("F48", Runner, "_back", "saga-S+decline+crash/2")
async def failed_before_undone(self: Any) -> None:
    """That it failed is recorded before it is compensated: a crash in between leaves it all standing."""
    await _failed(self._course)
    await _back(self)


@mutant("F49", Runner, "_timed_out", "saga-T+slow/1")
async def late_success_forgotten(self: Any, entry: Any, step: Any, attempt: Any) -> None:
    """A step that timed out is taken for one that failed, and its late success is not undone."""
    self._course.end(entry.do, "failed", "no end in time")
    self._fail(entry, TimeoutError("no end in time"))
    await self._course.commit()


@mutant("F49", Runner, "_nobody_knows", "saga-T+slow/2")
async def unknown_is_not_done(self: Any, entry: Any) -> None:
    """A step that never came to an end is taken for one that did not happen."""
    self._course.end(entry.do, "failed", "unknown")


@mutant("F03", runner, "is_ambiguous", "saga-S+mute/1")
def unknown_is_failure(error: BaseException, again: bool = False) -> bool:
    """A step that does not know whether it happened is taken for one that failed."""
    return False


@mutant("F03", Runner, "_step_run", "saga-S+crash-after/1")
def key_of_a_step_changes(self: Any, entry: Any, part: Any) -> Any:
    """Every process gives a step another key, so that what was done before a crash is done again."""
    run = _step_run(self, entry, part)
    run.key = f"{run.key}/{self._course.run.token}"
    return run


@mutant("F48", Runner, "_forward", "saga-S+decline/1")
async def failure_is_success(self: Any) -> bool:
    """A step that fails ends the saga as if it were done."""
    await _forward(self)
    return True


@mutant("F48", Runner, "_tried", "saga-S+decline+crash/2")
async def undo_recorded_before_done(self: Any, entry: Any, part: Any, work: Any) -> Any:
    """A compensation is written down as done before it is called."""
    if part is entry.undo:
        part.state = "done"
        await self._course.commit()
    return await _tried(self, entry, part, work)
