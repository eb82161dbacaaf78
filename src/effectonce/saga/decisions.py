"""What an operator may say about a saga in doubt, and how that gets into its log."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any, Final, Literal

from effectonce.core.codec import encode_untyped
from effectonce.core.saga_flow import Log
from effectonce.errors import ConfigurationError, CorruptRecord, show

from .steps import Step

Word = Literal["done", "not_done", "retry", "abandon"]
"""What an operator may say."""

_WRITTEN: Final[Mapping[Any, str]] = {
    str: '"text", with its quotes',
    int: "7",
    float: "1.5",
    bool: "true",
    list: "[…]",
    dict: "{…}",
}


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
    kind = step.codec.type
    try:
        stored = encode_untyped(result)
        step.codec.decode(stored)
    except (CorruptRecord, TypeError, ValueError, NotImplementedError) as error:
        why = show(error.__cause__ or error, 200)
        told = f"this cannot be the result of step {step.name}"
        if step.codec.discards:
            raise ConfigurationError(f"{told}, which gives nothing: leave the result out") from error
        gives = getattr(kind, "__name__", None) or str(kind)
        raise ConfigurationError(f"{told}, which gives {gives}: {why}; in JSON: {_written(kind)}") from error
    return stored


def _written(kind: Any) -> str:
    """What a value of ``kind`` looks like in JSON, as on the command line."""
    names = list(getattr(kind, "__struct_fields__", ()) or getattr(kind, "model_fields", ()))
    if not names and dataclasses.is_dataclass(kind):
        names = [field.name for field in dataclasses.fields(kind)]
    if names:
        return "{" + ", ".join(f'"{name}": …' for name in names) + "}"
    return _WRITTEN.get(getattr(kind, "__origin__", kind), "a value of that type, text in double quotes")
