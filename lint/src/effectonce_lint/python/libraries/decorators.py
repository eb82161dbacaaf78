"""Decorators that add a guard, a transaction, a retry or a wrapper to a function."""

from __future__ import annotations

import ast
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal

from effectonce_lint.python.values import Function, TracedOperation, Value
from effectonce_lint.word_lists import word_set

from . import guards

if TYPE_CHECKING:
    from effectonce_lint.python.calls import CallWalker

_RETRIES = word_set(
    "tenacity.retry backoff.on_exception backoff.on_predicate stamina.retry retrying.retry retry.retry opnieuw.retry"
    " riprova.retry"
)
_RETRIES_BY_NAME = word_set("on_exception retry_with_backoff retry_on_exception")
_TRANSACTIONS = word_set("atomic transactional in_transaction db_transaction with_transaction")


@dataclass(slots=True)
class DecoratorEffect:
    """What a decorator does to its function.

    ``kind``: guard (``guard`` says which), retry, tx (runs it in a transaction), dispatch (by the type of the first
    argument), wrap (``value`` is the wrapper function), object (``value`` is an object that is called instead), or ""
    where it does not matter.
    """

    kind: Literal["", "guard", "retry", "tx", "dispatch", "wrap", "object"] = ""
    guard: TracedOperation | None = None
    value: Value | None = None


def effect_of_decorator(walk: CallWalker, decorator: ast.expr) -> DecoratorEffect:
    """Say what ``decorator`` does to its function."""
    target = walk.value(decorator.func if isinstance(decorator, ast.Call) else decorator)
    if guard := guards.guard_of_decorator(walk, decorator, target):
        return DecoratorEffect("guard", guard)
    name = target.attr or target.ref.rpartition(".")[2]
    if target.ref in _RETRIES or name in _RETRIES_BY_NAME:
        return DecoratorEffect("retry")
    if name in _TRANSACTIONS and target.function is None:
        return DecoratorEffect("tx")
    if target.ref in ("functools.singledispatch", "functools.singledispatchmethod"):
        return DecoratorEffect("dispatch")
    if target.function is not None or target.cls is not None:
        value = walk.value(decorator) if isinstance(decorator, ast.Call) else target
        if value.instance is not None:  # `@once_per("event_id")`, a class whose objects decorate
            value = walk.member(value, value.instance.cls, "__call__") or value
        if value.function is not None:
            return DecoratorEffect("wrap", value=value)
        if value.cls is not None and "__call__" in value.cls.methods:
            return DecoratorEffect("object", value=value)
    return DecoratorEffect()


def registered_variants(function: Function) -> list[Function]:
    """The functions that `@apply.register` adds to a `singledispatch` function."""
    body = function.owner.node.body if function.owner is not None else function.module.tree.body
    return [
        replace(function, node=node, layer=len(node.decorator_list))
        for node in body
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        and any(_is_registration(decorator, function.name) for decorator in node.decorator_list)
    ]


def _is_registration(decorator: ast.expr, name: str) -> bool:
    """Whether ``decorator`` is `@name.register`."""
    target = decorator.func if isinstance(decorator, ast.Call) else decorator
    return isinstance(target, ast.Attribute) and target.attr == "register" and ast.unparse(target.value) == name
