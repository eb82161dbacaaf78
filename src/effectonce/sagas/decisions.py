"""What an operator may say about a saga in doubt, and how that gets into its log."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from effectonce.core.operator_result import said
from effectonce.errors import ConfigurationError

from .log import Log
from .steps import Step

Word = Literal["done", "not_done", "retry", "abandon"]
"""What an operator may say."""


def decide(log: Log, steps: Mapping[str, Step[Any]], word: Word, result: Any) -> None:
    """Put an operator's word into the log, which fits the steps; `ConfigurationError`, and no change, where it makes
    no sense there."""
    entry, part = log.part_in_doubt()
    if log.undoing:
        if word == "not_done":
            raise ConfigurationError(f"the compensation of {entry.name} is to be done: say 'done', or 'retry'")
        if result is not None:
            raise ConfigurationError(f"the compensation of {entry.name} gives nothing: leave the result out")
    elif word == "not_done":
        part.state = "failed"
        if log.phase == "running":
            log.fail(entry.name, None)
            log.why = f"an operator found that it did not happen ({log.doubt})"
    elif word == "retry" and log.phase == "compensating":
        raise ConfigurationError(f"the saga is being compensated: did {entry.name} happen? Say 'done' or 'not_done'")
    elif word == "done":
        entry.result = _result_of(steps[entry.name], result)
    if word == "done":
        part.state = "done"
    elif word == "retry":
        part.begin_anew()
    log.doubt = log.doubtful = ""


def _result_of(step: Step[Any], result: Any) -> bytes:
    """``result`` as it is stored; `ConfigurationError`, which says what the step gives, where it cannot be that."""
    if step.codec.discards and result is not None:
        raise ConfigurationError(f"step {step.name} gives nothing: leave the result out")
    return said(step.codec, result, f"step {step.name}")[1]
