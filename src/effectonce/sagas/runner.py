"""From the claim of a saga to its settlement, in either colour: forward step by step, or back."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from typing import Any, Final, Literal, NoReturn, Protocol

from effectonce.core.codec import Unstorable
from effectonce.core.guarded_call.begin import begin
from effectonce.core.guarded_call.run import Run, running
from effectonce.core.interrupts import is_own_exit
from effectonce.core.store_runtime import StoreClient
from effectonce.core.store_runtime import log as logger
from effectonce.errors import (
    EffectOnceError,
    InDoubt,
    LeaseLost,
    OutcomeUnknown,
    PermanentFailure,
    Retryable,
    SagaChanged,
    show,
)
from effectonce.providers import Provider, classify, is_ambiguous
from effectonce.record import Answer
from effectonce.values.durations import readable

from .inputs import Inputs
from .log import Course, Entry, Log, Migration, Part, fit, results_of, told, unpacked
from .steps import Attempt, Done, Step, StepRun, Work

#: What a step may raise without anybody knowing whether it happened, and somebody has to find out.
DOUBTFUL = (InDoubt, LeaseLost)
_ANY: Final = Provider(name="it")
PATIENCE: Final = 86_400_000_000
"""How long a step is gone on with while nobody knows whether it happened; then somebody has to find out."""

Draft = tuple[Log, Any]
"""The log of a saga that is new, and its input as it reads back from there."""


class Definition(Protocol):
    """What a runner needs of the `Saga` that it runs."""

    name: str
    version: str
    steps: dict[str, Step[Any]]
    migrations: dict[str, Migration]
    key_prefix: str  # what the keys of its steps begin with, so that two sagas never share one
    inputs: Inputs

    @property
    def undoable(self) -> dict[str, bool]: ...


async def through(
    saga: Definition,
    run: Run,
    client: StoreClient,
    only: Literal["", "write", "compensate"] = "",
    claimed_at: int | None = None,
    draft: Draft | None = None,
) -> Done | None:
    """Run a saga from wherever it is to its end, and give what its steps gave.

    ``only="write"``: it is written down and left for others; ``only="compensate"``: what is done is undone.
    ``claimed_at``: see `Course`. ``draft``: as it is if it is new.
    """
    runner: Runner | None = None
    try:
        try:
            await begin(run, client)
        except InDoubt as error:
            raise InDoubt(
                f"saga {show(saga.name)} {show(run.key)!r} is in doubt; look at it (effectonce sagas show), find out, "
                "then decide: effectonce sagas resolve"
            ) from error
        if run.replayed:
            return Done(saga.steps, set(saga.steps), unpacked(run.value)) if not only else None
        running.set(run)
        course = Course(run, client, saga.name, claimed_at, draft and draft[0])
        if only == "write":
            await course.give_back()
            return None
        try:
            if draft is not None and course.log is draft[0]:
                runner = Runner(saga, course, draft[1])
            else:
                fit(course.log, saga.version, saga.undoable, saga.migrations)
                runner = Runner(saga, course, saga.inputs.read(course.log.input))
        except SagaChanged:
            with suppress(EffectOnceError):
                await course.give_back()
            raise
        return await runner.go_on(only == "compensate")
    finally:
        run.active = False
        run.end()
        if runner is not None and runner.orphan is not None:
            runner.orphan.keep_leased(run)


class Runner:
    """One claimed saga on its way."""

    def __init__(self, saga: Definition, course: Course, input: Any) -> None:
        self._saga = saga
        self._course = course
        self._log = course.log
        self._input = input
        self._cause: BaseException | None = None
        self.orphan: Attempt | None = None  # what still runs when we have to stop

    async def go_on(self, compensate: bool) -> Done:
        log = self._log
        if log.doubt:  # an operator's word did not get to the log: it still has to be said
            await self._course.doubt(log.part_in_doubt()[0], log.doubt)
        await self._look_back()
        if compensate and log.phase == "running":
            log.fail("", None)
            await self._course.commit()
        if log.phase == "running" and await self._forward():
            results = results_of(log)
            await self._course.done(results)
            return Done(self._saga.steps, set(self._saga.steps), results)
        await self._back()
        error = await self._course.failed()
        raise error from self._cause

    # -- forward

    async def _forward(self) -> bool:
        """Whether every step is done; where not, it has been written down that it goes back."""
        course, log = self._course, self._log
        for entry in log.entries:
            if entry.do.state == "done":
                continue
            step = self._saga.steps[entry.name]
            attempt = await self._tried(entry, entry.do, step.do)
            if not attempt.finished:
                await self._timed_out(entry, step, attempt)
                return False
            if attempt.error is not None:
                course.end(entry.do, "failed", told(attempt.error))
                self._fail(entry, attempt.error)
                if any(self._to_undo()):
                    await course.commit()
                return False
            self._succeeded(entry, step, attempt.value)
            if entry is not log.entries[-1]:
                await course.commit()
        return True

    def _succeeded(self, entry: Entry, step: Step[Any], value: Any) -> None:
        self._course.end(entry.do, "done")
        try:
            entry.result = step.codec.encode(value)
        except Unstorable as error:
            logger.warning("saga %s: the result of step %s is not stored: %s", self._saga.name, entry.name, error)
            self._course.run.emit("result_not_stored", f"{entry.name}: {error}")

    def _fail(self, entry: Entry, error: BaseException) -> None:
        self._cause = error
        self._log.fail(entry.name, error)

    async def _timed_out(self, entry: Entry, step: Step[Any], attempt: Attempt) -> None:
        """F49: it may still succeed, and is compensated then. Until it is known what came of it nothing else is."""
        course = self._course
        limit = readable(round((step.do.timeout or 0) * 1e6))
        attempt.run.refused = True  # what it asks of `current().lease_lost`
        course.end(entry.do, "timed_out", f"no end within {limit}")
        self._fail(entry, TimeoutError(f"no end within {limit}"))
        await course.commit()
        try:
            await attempt.wait(step.do.grace)
            if not attempt.finished:
                await attempt.stop()
        except BaseException:  # we are to end, and it goes on: the log says that nobody knows what comes of it
            await course.leave("cancelled")
            raise
        if attempt.finished and attempt.error is None:
            self._succeeded(entry, step, attempt.value)
            entry.do.error = f"late: no end within {limit}"
        elif isinstance(attempt.error, Exception) and _says_it_all(attempt.error, entry.do, step.do):
            course.end(entry.do, "failed", f"late: {told(attempt.error)}")
        else:
            await self._nobody_knows(entry)
        await course.commit()

    # -- back

    async def _back(self) -> None:
        """Undo what is done, in reverse order, each once (F48)."""
        course, log = self._course, self._log
        for entry in log.entries:
            if entry.do.state in ("running", "timed_out"):
                await self._nobody_knows(entry)
        todo = list(self._to_undo())
        for entry, work in todo:
            attempt = await self._tried(entry, entry.undo, work)
            if attempt.error is not None:
                course.end(entry.undo, "failed", told(attempt.error))
                often = "once" if entry.undo.attempts == 1 else f"{entry.undo.attempts} times"
                await course.doubt(entry, f"it has failed {often}: {entry.undo.error}")
            course.end(entry.undo, "done")
            if entry is not todo[-1][0]:
                await course.commit()

    def _to_undo(self) -> Iterator[tuple[Entry, Work]]:
        for entry in reversed(self._log.entries):
            work = self._saga.steps[entry.name].undo
            if work is not None and entry.do.state == "done" and entry.undo.state != "done":
                yield entry, work

    async def _nobody_knows(self, entry: Entry) -> NoReturn:
        how = "it timed out" if entry.do.state == "timed_out" else "it was begun"
        await self._course.doubt(entry, f"{how}, and nobody knows whether it happened")

    # -- one step or compensation

    async def _tried(self, entry: Entry, part: Part, work: Work) -> Attempt:
        """Call it until it succeeds or may not be tried again; the last attempt, not finished where it timed out."""
        course, saga_run = self._course, self._course.run
        if not part.attempts or part is entry.do:  # a compensation is gone on with until it is done
            part.began = course.now()
        args = (self._input, self._done()) if work.takes_done else (self._input,)
        while True:
            if saga_run.lease_lost:
                raise LeaseLost(
                    f"saga {show(self._saga.name)} {show(self._log.id)!r}: the lease ended before {entry.name}; "
                    "another goes on with it"
                )
            part.attempts += 1
            attempt = Attempt(self._step_run(entry, part), course.client)
            try:
                await attempt.make(work, args)
            except BaseException as error:  # cancelled, or the process ends: whether it happened is not known
                _interrupted(part, error)
                if await attempt.stop():
                    await course.leave(type(error).__name__)
                else:  # it still runs, and nobody may run beside it
                    self.orphan = attempt
                raise
            raised = attempt.error
            if raised is None:
                return attempt
            if not isinstance(raised, Exception):
                _interrupted(part, raised)
                await course.leave(type(raised).__name__)
                raise raised
            if isinstance(raised, DOUBTFUL):
                course.end(part, "running", told(raised))
                await course.doubt(entry, part.error)
            unknown = is_ambiguous(raised, part.unknown_since > 0 or part.crashes > 0)
            if unknown:
                part.unknown_since = part.unknown_since or part.began
            guessed, part.guessed = part.guessed, part.guessed or (unknown and not isinstance(raised, EffectOnceError))
            delay = work.retry.after(raised, part.attempts)
            if delay is not None and not self._too_long(entry, part, unknown):
                if part.guessed and not guessed:  # whoever goes on if this process ends now has to know
                    part.state = "running"
                    await course.commit()
                await self._pause(delay, part)
            elif unknown:
                await self._later(entry, part, raised)
            elif part is entry.do and not _says_it_all(raised, part, work):
                course.end(part, "running", told(raised))
                await course.doubt(entry, f"{part.error}; and an attempt before that may have happened")
            else:
                return attempt

    def _too_long(self, entry: Entry, part: Part, unknown: bool) -> bool:
        """F50: whether somebody has to look at it, however often it may be tried: for a day nobody has known what came
        of it, or it is a compensation that has failed all the time."""
        if not unknown and part is entry.do:
            return False
        since = part.unknown_since if unknown else part.began
        return self._course.now() - since >= PATIENCE

    async def _later(self, entry: Entry, part: Part, raised: Exception) -> NoReturn:
        """Nobody knows whether it happened. Under its key it may be asked again, but not forever (F50)."""
        course = self._course
        course.end(part, "running", told(raised))
        if self._too_long(entry, part, True):
            await course.doubt(entry, f"for {readable(PATIENCE)} nobody has known whether it happened: {part.error}")
        await course.leave(part.error)
        if isinstance(raised, Retryable):
            raise raised
        raise OutcomeUnknown(
            f"saga {show(self._saga.name)} {show(self._log.id)!r}: whether {entry.name} happened is unknown: "
            f"{part.error}; resume will go on with it"
        ) from raised

    async def _pause(self, seconds: float, part: Part) -> None:
        try:
            await self._course.client.signal().wait(seconds)
        except BaseException as error:
            if part.unknown_since:
                part.state = "running"
            await self._course.leave(type(error).__name__)
            raise

    def _step_run(self, entry: Entry, part: Part) -> StepRun:
        """The step's own key, the same in every attempt; a compensation's token is above that of its step."""
        run, undoing = self._course.run, part is not entry.do
        key = f"{self._saga.key_prefix}{self._log.id}/{entry.key}{'/compensate' if undoing else ''}"
        token = run.token + undoing
        answer = Answer("claimed", token, part.attempts, part.rounds, lapsed=part.crashes > 0)
        return StepRun(
            runtime=run.runtime,
            policy=run.policy,
            key=key,
            stored_key=key,
            owner=run.owner,
            fingerprints=b"",
            parent=run,
            sent_at=run.sent_at,
            token=token,
            answer=answer,
        )

    def _done(self) -> Done:
        finished = {entry.name for entry in self._log.entries if entry.do.state == "done"}
        return Done(self._saga.steps, finished, results_of(self._log))

    async def _look_back(self) -> None:
        """Of what comes next: has it been begun before, and is it safe to call it again?

        F20: the process before this one may have ended in it without a word. That is written down before it runs again,
        so that it does not end one process after another."""
        found, interrupted = self._next(), self._course.interrupted
        if found is None:
            return
        entry, part, work = found
        if interrupted and part is entry.undo:  # of a step it is in the log by now
            part.state = "running"
            part.crashes += 1
        if part.crashes >= work.retry.max_crashes:
            ended = f"{part.crashes} processes ended in it without a word"
            if part.error:
                ended = f"{part.crashes} attempts ended in it without a word; the last that was heard is {part.error}"
            await self._course.doubt(entry, ended)
        if part.state == "running" and self._course.forgotten(part):
            kept = readable(self._course.run.policy.retention)
            await self._course.doubt(
                entry, f"nobody knows what came of it, and that is longer ago than what it did is remembered ({kept})"
            )
        if interrupted:
            await self._course.commit()

    def _next(self) -> tuple[Entry, Part, Work] | None:
        """What is to be called next; None: nothing, or an operator has to decide first."""
        entries = self._log.entries
        if self._log.phase == "running":
            for entry in entries:
                if entry.do.state != "done":
                    return entry, entry.do, self._saga.steps[entry.name].do
            return None
        if any(entry.do.state in ("running", "timed_out") for entry in entries):
            return None
        return next(((entry, entry.undo, work) for entry, work in self._to_undo()), None)


def _interrupted(part: Part, error: BaseException) -> None:
    """It ended without a word. F20: where it did so of its own accord it may do so again, and that is counted."""
    part.state, part.unknown_since, part.guessed = "running", part.unknown_since or part.began, True
    if is_own_exit(error):
        part.crashes += 1
        part.error = told(error)


def _says_it_all(error: Exception, part: Part, work: Work) -> bool:
    """Whether ``error`` says that a step has not happened, in none of its attempts.

    Not where one before ended in an error of the network, or was interrupted: that it is a "duplicate" now may be just
    what its success causes. Then it takes an answer of the service (a 402, or what is raised from one), or an error
    that the step's ``retry`` calls final.
    """
    if is_ambiguous(error, part.unknown_since > 0):
        return False
    if not part.guessed or work.retry.refuses(error) or isinstance(error, PermanentFailure):
        return True
    return any(each is not None and classify(_ANY, each, True).kind == "failure" for each in (error, error.__cause__))
