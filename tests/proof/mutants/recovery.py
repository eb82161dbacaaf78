"""Recoveries that are wrong: that pass by what was left, run what they have not claimed, or forget what was sent."""

from __future__ import annotations

from typing import Any

from effectonce.core import unfinished as leftovers
from effectonce.intents import intents
from effectonce.intents.intents import Intents
from effectonce.sagas import saga
from effectonce.sagas.log import Course
from effectonce.sagas.runner import Runner
from effectonce.sagas.saga import Saga
from tests.proof.explorer.scenario import RETENTION

from .base import MUTANTS, Mutant, mutant

_left, _came_to, _look_back = leftovers._left, Saga._came_to, Runner._look_back


@mutant("F07", leftovers, "_left", "saga-resume+crash/1")
def lapsed_claims_passed_by(record: Any, now: int, idle: int) -> bool:
    """Only what is free is gone on with: what a dead process held stays as it is."""
    return record.state == "free" and _left(record, now, idle)


@mutant("F07", leftovers, "_left", "intents-K-recover+lose/1")
def free_ones_passed_by(record: Any, now: int, idle: int) -> bool:
    """Only what a process held when it died is gone on with: what one has let go stays as it is."""
    return record.state == "claimed" and _left(record, now, idle)


@mutant("F03", Intents, "_gone_on", "intents-I-recover+crash/1")
async def recovered_without_a_claim(self: Any, operation: Any, record: Any, client: Any) -> str:
    """A recovery calls first, and claims only to write down what came of it: two of them both call."""
    log = self.log(record)
    request = operation._requests.decode(log.request)
    await operation._function(operation._intent(operation._run(self.id_of(record), b""), log, request))
    await operation.gone_on(self.id_of(record), client)
    return "done"


@mutant("F03", Intents, "_gone_on", "intents-K-recover+crash-after/1")
async def recovered_as_a_new_one(self: Any, operation: Any, record: Any, client: Any) -> str:
    """A recovery lets the intent begin anew, so that it goes out under another key."""
    log = self.log(record)
    self.store.forget(record.scope, record.key)
    await operation(operation._requests.decode(log.request), key=log.key)
    return "done"


@mutant("F48", Saga, "_came_to", "saga-resume+crash-after+decline/2")
async def resumed_only_forward(self: Any, id: str, claimed_at: int, client: Any) -> str:
    """A saga that was on its way back is not gone on with."""
    record = self.store.get(self.scope, id)
    if self.log(record).phase == "compensating":
        return "later"
    return await _came_to(self, id, claimed_at, client)


@mutant("F25", Course, "forgotten", "saga-resume+crash-after+age/2")
def forgotten_steps_run_blindly(self: Any, part: Any) -> bool:
    """A step is called again however long ago it may have happened."""
    return False


@mutant("F25", Runner, "_look_back", "saga-resume+mute+age/2")
async def only_the_dead_forget(self: Any) -> None:
    """A step whose end was not known, and was written down as that, is called again however long ago that was."""
    if self._course.interrupted:
        await _look_back(self)


for module, hunt in ((intents, "intents-K-recover+crash+age/2"), (saga, "saga-resume+crash+age/2")):
    MUTANTS.append(
        Mutant(
            f"unfinished-{module.__name__.rpartition('.')[2]}-expire",
            "What is not finished is kept no longer than what is.",
            "F26",
            ((module, "FOREVER", RETENTION),),
            hunt,
            promise=True,
        )
    )
