"""Recoveries that are wrong: that pass by what was left, run what they have not claimed, or forget what was sent."""

from __future__ import annotations

from typing import Any

from effectonce.core import unfinished
from effectonce.intents import intents
from effectonce.intents.recovery import IntentRecovery
from effectonce.sagas import saga
from effectonce.sagas.claimed import ClaimedSaga
from effectonce.sagas.recovery import SagaRecovery
from effectonce.sagas.runner import SagaRunner
from tests.proof.explorer.scenario import RETENTION

from .base import MUTANTS, Mutant, mutant

_is_resumable, _resume_one = unfinished._is_resumable, SagaRecovery._resume_one
_check_interruption = SagaRunner._check_interruption


@mutant("F07", unfinished, "_is_resumable", "saga-resume+crash/1")
def lapsed_claims_passed_by(record: Any, now: int, idle: int) -> bool:
    """Only what is free is gone on with: what a dead process held stays as it is."""
    return record.state == "free" and _is_resumable(record, now, idle)


@mutant("F07", unfinished, "_is_resumable", "intents-K-recover+lose/1")
def free_ones_passed_by(record: Any, now: int, idle: int) -> bool:
    """Only what a process held when it died is gone on with: what one has let go stays as it is."""
    return record.state == "claimed" and _is_resumable(record, now, idle)


@mutant("F03", IntentRecovery, "_recover_one", "intents-I-recover+crash/1")
async def recovered_without_a_claim(self: Any, operation: Any, record: Any, client: Any) -> str:
    """A recovery calls first, and claims only to write down what came of it: two of them both call."""
    log, id = self._intents.log(record), self._intents.id_of(record)
    request = operation.requests.decode(log.request)
    await operation.function(operation.make_intent(operation.prepare(id), log, request))
    await operation.run_intent(operation.prepare(id), client, "recover")
    return "done"


@mutant("F03", IntentRecovery, "_recover_one", "intents-K-recover+crash-after/1")
async def recovered_as_a_new_one(self: Any, operation: Any, record: Any, client: Any) -> str:
    """A recovery lets the intent begin anew, so that it goes out under another key."""
    log = self._intents.log(record)
    self._intents.store.forget(record.scope, record.key)
    await operation(operation.requests.decode(log.request), key=log.key)
    return "done"


@mutant("F48", SagaRecovery, "_resume_one", "saga-resume+crash-after+decline/2")
async def resumed_only_forward(self: Any, record: Any, client: Any) -> str:
    """A saga that was on its way back is not gone on with."""
    if self._saga.log(record).phase == "compensating":
        return "later"
    return await _resume_one(self, record, client)


@mutant("F25", ClaimedSaga, "outlived_retention", "saga-resume+crash-after+age/2")
def forgotten_steps_run_blindly(self: Any, progress: Any) -> bool:
    """A step is called again however long ago it may have happened."""
    return False


@mutant("F25", SagaRunner, "_check_interruption", "saga-resume+mute+age/2")
async def only_the_dead_forget(self: Any) -> None:
    """A step whose end was not known, and was written down as that, is called again however long ago that was."""
    if self._claimed.interrupted:
        await _check_interruption(self)


for module, hunt in ((intents, "intents-K-recover+crash+age/2"), (saga, "saga-resume+crash+age/2")):
    MUTANTS.append(
        Mutant(
            f"unfinished-{module.__name__.rpartition('.')[2]}-expire",
            "What is not finished is kept no longer than what is.",
            "F26",
            ((module, "UNFINISHED_RETENTION_US", RETENTION),),
            hunt,
            promise=True,
        )
    )
