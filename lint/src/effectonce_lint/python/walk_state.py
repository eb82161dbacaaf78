"""The state of a walk through code: where it is, what holds there, and the trace that it leaves."""

from __future__ import annotations

import ast
import builtins
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from effectonce_lint.findings import Place

from .modules import Module
from .project import Project
from .values import NOTHING, Operation, Scope, Trace, Value

BUILTINS = frozenset(dir(builtins))
_MAX_TEXT_LENGTH = 160


class FuelExhausted(Exception):
    """The code is too large or too tangled to be followed to its end; what was seen so far counts."""


@dataclass(slots=True)
class HeldGuard:
    """A guard that holds from here on: until the loop's round, the function or the walk ends."""

    op: Operation
    until: str


@dataclass(slots=True)
class OpenTransaction:
    name: str
    kind: str
    """block: ends in a commit of its own; connection: a connection's life, committed in between or at its end."""


class WalkState:
    """What every part of the walk shares. One instance walks one consumer, or scans one module for consumers."""

    def __init__(self, project: Project, start: Module, fuel: int) -> None:
        self.project = project
        self.start = start
        self.fuel = fuel
        self.trace = Trace()
        self.muted = 0
        self.scope = Scope(start)
        self.frames: tuple[int, ...] = (0,)
        self.trail: tuple[str, ...] = ()
        self.arms: tuple[tuple[int, int], ...] = ()
        self.held: list[HeldGuard] = []
        self.conditions: list[tuple[Operation, ...]] = []
        self.transactions: list[OpenTransaction] = []
        self.epoch = 0
        self.begun = False
        """Between an SQL `BEGIN` and its `COMMIT`: statements do not commit by themselves there."""
        self.serial: set[str] = set()
        """Transactions that no other of their kind runs beside: with an advisory lock, or serializable."""
        self.tries: tuple[int, ...] = ()
        self.handlers: tuple[int, ...] = ()
        self.final = False
        self.loops: tuple[int, ...] = ()
        self.locks = 0
        self.retrying = 0
        self.deferred = 0
        self.unique_tries: list[int] = []
        """Open tries that catch a violated constraint: an insert in one is a claim."""
        self.producers: set[str] = set()
        """Kafka producers that are in a transaction: what they send is seen once."""
        self.cursors: dict[str, Operation] = {}
        """What each cursor ran last, by its text; "" is the last of all."""
        self.grown: dict[str, ast.AugAssign] = {}
        """Objects of an unknown kind of which an attribute was added to, by their text: a save would keep that."""
        self.registries: dict[tuple[str, str], tuple[Value, ...]] = {}
        """The handlers in a module's tables, by path and name."""
        self.beside = False
        """Whether anything was started and not waited for."""
        self.handed: dict[str, Value] = {}
        """What is in the queues inside the process that are being emptied, by their names."""
        self.emptied: set[tuple[ast.AST, str]] = set()
        """The functions that took from one already."""
        self._counter = 0

    # -- numbers and places

    def number(self) -> int:
        self._counter += 1
        return self._counter

    def place(self, node: ast.AST) -> Place:
        return self.scope.module.place(node)

    @property
    def module(self) -> Module:
        return self.scope.module

    @contextmanager
    def quietly(self) -> Iterator[None]:
        """Evaluate without adding operations to the trace."""
        self.muted += 1
        try:
            yield
        finally:
            self.muted -= 1

    @contextmanager
    def in_scope(self, scope: Scope) -> Iterator[None]:
        before, self.scope = self.scope, scope
        try:
            yield
        finally:
            self.scope = before

    # -- what happens

    def emit(self, kind: str, node: ast.AST, **fields: Any) -> Operation:
        """Add an operation to the trace, with the guards, transaction and branch that hold here."""
        op = Operation(kind, self.place(node), node=node, module=self.module, **fields)
        op.frames = self.frames
        op.trail = self.trail
        op.arms = self.arms
        op.guards = tuple(held.op for held in self.held) + tuple(each for ops in self.conditions for each in ops)
        op.tx = op.tx or self.transaction()
        op.tries = self.tries
        op.handlers = self.handlers
        op.final = self.final
        op.loops = self.loops
        op.locks = self.locks + (op.tx in self.serial)
        op.retrying = self.retrying > 0
        op.deferred = self.deferred > 0
        op.seq = self.number()
        if not self.muted:
            self.trace.ops.append(op)
        return op

    def hold(self, ops: Sequence[Operation], until: str) -> None:
        """From here on, until that ends, nothing happens for a duplicate of what ``ops`` looked up or claimed."""
        self.held.extend(HeldGuard(op, until) for op in ops)

    def transaction(self) -> str:
        """The name of the transaction that a statement belongs to here; "" where none is to be seen."""
        for transaction in self.transactions:
            if transaction.kind == "block":
                return transaction.name
        for transaction in self.transactions:
            return f"{transaction.name}/{self.epoch}"
        return f"/{self.epoch}"

    # -- values

    def text(self, *parts: str) -> str:
        return "".join(parts)[:_MAX_TEXT_LENGTH]


def taints_of(*values: Value) -> frozenset[str]:
    """The union of the values' taints."""
    out = NOTHING
    for value in values:
        if value.taint:
            out = out | value.taint if out else value.taint
    return out


def origins_of(*values: Value) -> tuple[Operation, ...]:
    out: tuple[Operation, ...] = ()
    for value in values:
        for op in value.origin:
            if op not in out:
                out = (*out, op)
    return out


def join_values(values: Sequence[Value], text: str) -> Value:
    """Combine what is known of several values, any of which it may be."""
    distinct = list({id(each): each for each in values}.values())
    if len(distinct) == 1:
        return distinct[0]
    if len({each.instance.cls if each.instance is not None else None for each in distinct} - {None}) > 1:
        objects = tuple(each for each in distinct if each.instance is not None)
        return Value(text=text, tag="one of", items=objects, taint=taints_of(*distinct), origin=origins_of(*distinct))
    best = next((each for each in distinct if each.is_known() and each.literal is not None), distinct[0])
    return Value(
        text=best.text if all(each.text == best.text for each in distinct) else text,
        tag=best.tag,
        ref=best.ref,
        base=best.base,
        attr=best.attr,
        function=best.function,
        cls=best.cls,
        instance=best.instance,
        module=best.module,
        literal=best.literal,
        items=tuple(distinct) if all(each.function for each in distinct) else best.items,
        fields=best.fields,
        taint=taints_of(*distinct),
        origin=origins_of(*distinct),
    )
