"""Recoveries that are wrong: they skip unfinished work, run what they have not claimed, or forget what was sent."""

from __future__ import annotations

from typing import Any

from effectonce.core import unfinished
from effectonce.intents import intents
from effectonce.intents.recovery import IntentRecovery
from effectonce.sagas import saga
from effectonce.sagas.claimed_saga import ClaimedSaga
from effectonce.sagas.recovery import SagaRecovery
from effectonce.sagas.runner import SagaRunner
from tests.proof.explorer.scenario import RETENTION

from .base import MUTANTS, Mutant, mutant

_is_resumable, _resume_one = unfinished._is_resumable, SagaRecovery._resume_one
_check_interruption = SagaRunner._check_interruption


@mutant("F07", unfinished, "_is_resumable", "saga-resume+crash/1")
def lapsed_claims_skipped(record: Any, now: int, idle: int) -> bool:
    """Only free records are resumed: those that a dead process held stay as they are."""
    return record.state == "free" and _is_resumable(record, now, idle)


@mutant("F07", unfinished, "_is_resumable", "intents-K-recover+lose/1")
def free_records_skipped(record: Any, now: int, idle: int) -> bool:
    """Only records that a process held when it died are resumed: those that it released stay as they are."""
    return record.state == "claimed" and _is_resumable(record, now, idle)


@mutant("F03", IntentRecovery, "_recover_one", "intents-I-recover+crash/1")
async def recovered_without_a_claim(self: Any, record: Any, client: Any) -> str:
    """A recovery calls first, and claims only to record the outcome: two of them both call."""
    operation = self._intents.operations[record.scope]
    log, id = self._intents.log(record), self._intents.id_of(record)
    request = operation.requests.decode(log.request)
    await operation.function(operation.make_intent(operation.prepare_run(id), log, request))
    await operation.run_intent(operation.prepare_run(id), client, "recover")
    return "done"


@mutant("F03", IntentRecovery, "_recover_one", "intents-K-recover+crash-after/1")
async def recovered_as_a_new_one(self: Any, record: Any, client: Any) -> str:
    """A recovery starts the intent anew, so that it is sent under another key."""
    log = self._intents.log(record)
    self._intents.store.forget(record.scope, record.key)
    operation = self._intents.operations[record.scope]
    await operation(operation.requests.decode(log.request), key=log.key)
    return "done"


@mutant("F48", SagaRecovery, "_resume_one", "saga-resume+crash-after+decline/2")
async def resumed_only_forward(self: Any, record: Any, client: Any) -> str:
    """A saga that was compensating is not resumed."""
    if self._saga.log(record).phase == "compensating":
        return "later"
    return await _resume_one(self, record, client)


@mutant("F25", ClaimedSaga, "outlived_retention", "saga-resume+crash-after+age/2")
def forgotten_steps_run_blindly(self: Any, progress: Any) -> bool:
    """A step is called again however long ago it may have happened."""
    return False


@mutant("F25", SagaRunner, "_check_interruption", "saga-resume+mute+age/2")
async def only_the_dead_forget(self: Any) -> None:
    """A step whose outcome was recorded as unknown is called again however long ago that was."""
    if self._claimed.interrupted:
        await _check_interruption(self)


for module, search_in in ((intents, "intents-K-recover+crash+age/2"), (saga, "saga-resume+crash+age/2")):
    MUTANTS.append(
        Mutant(
            f"unfinished-{module.__name__.rpartition('.')[2]}-expire",
            "Unfinished records are kept no longer than finished ones.",
            "F26",
            ((module, "UNFINISHED_RETENTION_US", RETENTION),),
            search_in,
            promise=True,
        )
    )
