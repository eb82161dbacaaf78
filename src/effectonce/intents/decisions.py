"""An operator's decision on an intent in doubt, and how it is written to the intent's record."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, Literal

from effectonce.core.guarded_call.begin import begin
from effectonce.core.operator_results import encode_entered_result
from effectonce.core.run_sync import run_sync
from effectonce.errors import ConfigurationError, StoreUnavailable, show
from effectonce.record import Record

from .claimed_intent import ClaimedIntent
from .operation import IntentOperation

if TYPE_CHECKING:
    from .intents import Intents

IntentDecision = Literal["done", "retry", "abandon"]
"""The decisions that `Intents.resolve` takes."""

DEFAULT_RETENTION: Final = "30d"
"""How long finished intents are kept, unless their operation says otherwise."""


def apply_decision(intents: Intents, record: Record, id: str, outcome: IntentDecision, result: Any) -> None:
    """Settle the intent ``id`` as an operator has decided. Raises `ConfigurationError`, and changes nothing, where the
    decision or its result does not fit."""
    operation = intents.operations.get(record.scope)
    if operation is None:
        _decide_orphan(intents, record, id, outcome, result)
        return
    policy = operation.policy
    stored: bytes | None = None
    if outcome == "done" and result is not ...:
        result, stored = encode_entered_result(policy.codec, result, operation.scope.partition("/")[2])
    if outcome == "abandon" or not intents.log(record).transactional:
        retention = policy.unfinished_retention_us if outcome == "retry" else policy.retention_us
        intents.store.resolve(operation.scope, id, outcome, result=result, retention=retention / 1e6, quiet=True)
        return
    if outcome == "done" and stored is None:
        raise ConfigurationError(
            f"intent {id} is completed together with its caller's rows, which need its result: give it with 'done'"
        )
    intents.store.resolve(operation.scope, id, "retry", retention=policy.unfinished_retention_us / 1e6, quiet=True)
    run_sync(_write_decision(operation, id, stored if outcome == "done" else None))


async def _write_decision(operation: IntentOperation[Any, Any], id: str, outcome: bytes | None) -> None:
    """Write the decision to the log of a transactional intent: its result, or (None) that it starts over. Until then
    its log says "in doubt", so that a process that claims it first puts it back."""
    run = operation.prepare_run(id)
    client = run.runtime.sync_client()
    try:
        await begin(run, client)
        claimed = ClaimedIntent(run, client, operation.rules, operation.reconciler is not None, run.lease_requested_at)
        recorded = await (claimed.record_retry() if outcome is None else claimed.record_outcome(outcome))
        if not recorded:
            raise StoreUnavailable(f"intent {id}: your decision could not be recorded; make it again")
    finally:
        run.end()


def _decide_orphan(intents: Intents, record: Record, id: str, outcome: IntentDecision, result: Any) -> None:
    """Decide an intent whose operation is not known: it cannot be sent, and the type of its result is not known."""
    if outcome != "abandon" and record.state == "in_doubt":  # else the store reports that it is not in doubt
        transactional = intents.log(record).transactional
        if outcome == "retry" or transactional:
            choices = "'abandon'" if transactional else "'done' or 'abandon'"
            raise ConfigurationError(
                f"intent {id}: this program has no operation {show(record.scope)}, so it cannot resume the intent: "
                f"give the operation its old name back, or say {choices}; nothing was changed"
            )
    intents.store.resolve(record.scope, id, outcome, result=result, retention=DEFAULT_RETENTION, quiet=True)
