"""An operator's decision on a saga in doubt, and how it changes the saga's log."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from effectonce.core.operator_results import encode_entered_result
from effectonce.errors import ConfigurationError

from .log import LoggedStep, SagaLog
from .steps import Step

SagaDecision = Literal["done", "not_done", "retry", "abandon"]
"""The decisions that `Saga.resolve` takes."""


def apply_decision(log: SagaLog, steps: Mapping[str, Step[Any]], decision: SagaDecision, result: Any) -> None:
    """Apply an operator's decision to ``log``, which fits the steps. Raises `ConfigurationError`, and changes nothing,
    where the decision makes no sense for the part in doubt."""
    entry, progress = log.find_part_in_doubt()
    if log.compensation_in_doubt:
        _check_compensation(entry, decision, result)
    elif decision == "done":
        entry.result = _encode_result(steps[entry.name], result)
    elif decision == "retry" and log.phase == "compensating":
        raise ConfigurationError(f"the saga is being compensated: did {entry.name} happen? Say 'done' or 'not_done'")
    # Nothing is refused from here on.
    if decision == "done":
        progress.state = "done"
    elif decision == "not_done":
        progress.state = "failed"
        if log.phase == "running":
            log.turn_around(entry.name, None)
            log.failure_text = f"an operator found that it did not happen ({log.doubt_reason})"
    elif decision == "retry":
        progress.start_over()
    log.doubt_reason = log.step_in_doubt = ""


def _check_compensation(entry: LoggedStep, decision: SagaDecision, result: Any) -> None:
    """Raise `ConfigurationError` where ``decision`` makes no sense for a compensation in doubt: it has to happen, and
    has no result."""
    if decision == "not_done":
        raise ConfigurationError(f"the compensation of {entry.name} must be done: say 'done' or 'retry'")
    if result is not None:
        raise ConfigurationError(f"the compensation of {entry.name} returns nothing: leave the result out")


def _encode_result(step: Step[Any], result: Any) -> bytes:
    """Encode ``result`` for the log. Raises `ConfigurationError`, which describes the step's type, where it does not
    fit."""
    if step.codec.discards and result is not None:
        raise ConfigurationError(f"step {step.name} returns nothing: leave the result out")
    return encode_entered_result(step.codec, result, f"step {step.name}")[1]
