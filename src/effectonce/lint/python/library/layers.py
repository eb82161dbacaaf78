"""What decorators add to a function."""

from __future__ import annotations

import ast
from dataclasses import dataclass
from typing import TYPE_CHECKING

from effectonce.lint.python.values import Op, Val
from effectonce.lint.words import words

from . import guards

if TYPE_CHECKING:
    from effectonce.lint.python.calls import Calls

_RETRIES = words(
    "tenacity.retry backoff.on_exception backoff.on_predicate stamina.retry retrying.retry retry.retry opnieuw.retry"
    " riprova.retry"
)
_RETRIES_BY_NAME = words("on_exception retry_with_backoff retry_on_exception")
_TRANSACTIONS = words("atomic transactional in_transaction db_transaction with_transaction")


@dataclass(slots=True)
class Layer:
    """One decorator: a guard, a transaction, a retry, a wrapper of the project's own, or nothing that matters."""

    kind: str = ""
    guard: Op | None = None
    value: Val | None = None


def of(walk: Calls, decorator: ast.expr) -> Layer:
    """What ``decorator`` adds."""
    target = walk.value(decorator.func if isinstance(decorator, ast.Call) else decorator)
    if guard := guards.decorator(walk, decorator, target):
        return Layer("guard", guard)
    name = target.attr or target.ref.rpartition(".")[2]
    if target.ref in _RETRIES or name in _RETRIES_BY_NAME:
        return Layer("retry")
    if name in _TRANSACTIONS and target.function is None:
        return Layer("tx")
    if target.function is not None:
        value = walk.value(decorator) if isinstance(decorator, ast.Call) else target
        if value.function is not None:
            return Layer("wrap", value=value)
    return Layer()
