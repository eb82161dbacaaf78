"""What decorators add to a function."""

from __future__ import annotations

import ast
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from effectonce_lint.python.values import Function, Op, Val
from effectonce_lint.word_lists import words

from . import guards

if TYPE_CHECKING:
    from effectonce_lint.python.calls import Calls

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
    if target.ref in ("functools.singledispatch", "functools.singledispatchmethod"):
        return Layer("dispatch")
    if target.function is not None or target.cls is not None:
        value = walk.value(decorator) if isinstance(decorator, ast.Call) else target
        if value.instance is not None:  # `@once_per("event_id")`, a class whose objects decorate
            value = walk.member(value, value.instance.cls, "__call__") or value
        if value.function is not None:
            return Layer("wrap", value=value)
        if value.cls is not None and "__call__" in value.cls.methods:
            return Layer("object", value=value)
    return Layer()


def dispatched(function: Function) -> list[Function]:
    """What `@apply.register` adds to a function that dispatches on the type of its argument."""
    body = function.owner.node.body if function.owner is not None else function.module.tree.body
    return [
        replace(function, node=node, layer=len(node.decorator_list))
        for node in body
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        and any(_registers(each, function.name) for each in node.decorator_list)
    ]


def _registers(decorator: ast.expr, name: str) -> bool:
    target = decorator.func if isinstance(decorator, ast.Call) else decorator
    return isinstance(target, ast.Attribute) and target.attr == "register" and ast.unparse(target.value) == name
