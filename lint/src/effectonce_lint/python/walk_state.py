"""The state of a walk through code: the position, the guards that hold there, and the trace of operations."""

from __future__ import annotations

import ast
import builtins
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Literal, Unpack

from effectonce_lint.findings import Place

from .modules import Module
from .project import Project
from .values import EMPTY_SET, HoldUntil, OperationFields, OperationKind, Scope, Trace, TracedOperation, Value

BUILTINS = frozenset(dir(builtins))
_MAX_TEXT_LENGTH = 160


class FuelExhausted(Exception):
    """The code is too large or too tangled to be followed to its end; what was seen so far counts."""


@dataclass(slots=True)
class HeldGuard:
    """A guard that holds for everything that follows, until ``until``.

    - ``block``: the end of its `with`;
    - ``function``: the end of the function, or of the loop's round: a duplicate returned or continued before;
    - ``raise``: as ``function``, and then the same in the caller: a duplicate raised before;
    - ``walk``: the end of the walk.
    """

    op: TracedOperation
    until: HoldUntil


@dataclass(slots=True)
class OpenTransaction:
    """A transaction that was opened by a `with` or a decorator."""

    name: str
    kind: Literal["block", "connection"]
    """``block``: commits at its end. ``connection``: lives as long as its connection; commits come in between or at
    its end."""


@dataclass(slots=True, frozen=True)
class Position:
    """Where in the code the walk is. `emit` copies it into each operation."""

    frames: tuple[int, ...] = (0,)
    """The numbers of the calls that are being walked, outermost first; 0 is the consumer's own code."""
    trail: tuple[str, ...] = ()
    """The qualified names of the functions that are being walked, outermost first."""
    arms: tuple[tuple[int, int], ...] = ()
    """(branch, arm) for each branch that it is inside. The arms of one branch exclude each other."""
    tries: tuple[int, ...] = ()
    """The numbers of the `try` bodies that it is inside."""
    handlers: tuple[int, ...] = ()
    """The numbers of the `except` blocks that it is inside."""
    in_finally: bool = False
    loops: tuple[int, ...] = ()
    """The numbers of the loops that it is inside."""
    locks: int = 0
    """How many locks are held."""
    transactions: tuple[OpenTransaction, ...] = ()
    """The open transactions, outermost first."""
    retrying: bool = False
    """Inside a local retry: a loop around a try, or a function under a retry decorator."""
    deferred: bool = False
    """Inside a callback that runs after the commit."""

    def in_call(self, frame: int, name: str) -> Position:
        return replace(self, frames=(*self.frames, frame), trail=(*self.trail, name))

    def in_arm(self, branch: int, arm: int) -> Position:
        return replace(self, arms=(*self.arms, (branch, arm)))

    def in_try(self, number: int) -> Position:
        return replace(self, tries=(*self.tries, number))

    def in_handler(self, number: int) -> Position:
        return replace(self, arms=(*self.arms, (number, 0)), handlers=(*self.handlers, number))

    def in_loop(self, number: int) -> Position:
        return replace(self, loops=(*self.loops, number))

    def on_another_thread(self) -> Position:
        """The same code on another thread: nothing that is open here is open there, and no error comes here."""
        return Position(frames=self.frames, trail=self.trail, arms=self.arms)


class WalkState:
    """What every part of the walk shares. One instance walks one consumer, or scans one module for consumers."""

    def __init__(self, project: Project, start: Module, fuel: int) -> None:
        self.project = project
        self.start = start
        """The module that the walk began in."""
        self.registries: dict[tuple[str, str], tuple[Value, ...]] = {}
        """The handlers in a module's tables, by path and name. A cache: `reset` keeps it."""
        self._last_number = 0
        self.reset(fuel)

    def reset(self, fuel: int) -> None:
        """Begin a new walk: forget all that the last one left, also where it broke off."""
        self.fuel = fuel
        """How many expressions may still be evaluated."""
        self.trace = Trace()
        self.muted = 0
        """Above 0, operations are not added to the trace."""
        self.scope = Scope(self.start)
        """The names that code sees here."""
        self.position = Position()
        self.held: list[HeldGuard] = []
        """The guards that hold for all that follows, innermost last."""
        self.conditions: list[tuple[TracedOperation, ...]] = []
        """For each test that was passed to come here, outermost first: the operations that its outcome depends on."""
        self.epoch = 0
        """How many commits and rollbacks came before on this path. It names the implicit transaction."""
        self.in_sql_begin = False
        """Between an SQL `BEGIN` and its `COMMIT`: statements do not commit by themselves there."""
        self.serialized: set[str] = set()
        """The names of transactions that exclude others of their kind: with an advisory lock, or serializable."""
        self.unique_tries: list[int] = []
        """The numbers of open tries that catch a violated constraint. An insert in one is a claim."""
        self.producers: set[str] = set()
        """Kafka producers that are in a transaction, by their text: what they send is seen once."""
        self.cursors: dict[str, TracedOperation] = {}
        """The last statement of each cursor, by the cursor's text; under "" the last of all."""
        self.incremented_objects: dict[str, ast.AugAssign] = {}
        """What was added to an attribute of an object of an unknown kind, by the object's text. `save()` keeps it."""
        self.started_background_work = False
        """Whether anything was started and not waited for."""
        self.queued_values: dict[str, Value] = {}
        """What is in the in-process queues whose readers are being walked, by the queue's name."""
        self.walked_readers: set[tuple[ast.AST, str]] = set()
        """The functions that were walked as readers of a queue, each with the queue's name."""

    # -- numbers and places

    def number(self) -> int:
        """A number that no call, branch, try, loop or operation of this walk has yet."""
        self._last_number += 1
        return self._last_number

    def place(self, node: ast.AST) -> Place:
        return self.scope.module.place(node)

    @property
    def module(self) -> Module:
        """The module whose code is being walked."""
        return self.scope.module

    @contextmanager
    def mute_trace(self) -> Iterator[None]:
        """Evaluate without adding operations to the trace."""
        self.muted += 1
        try:
            yield
        finally:
            self.muted -= 1

    @contextmanager
    def in_scope(self, scope: Scope) -> Iterator[None]:
        """Walk code that sees the names of ``scope``."""
        before, self.scope = self.scope, scope
        try:
            yield
        finally:
            self.scope = before

    @contextmanager
    def at_position(self, position: Position) -> Iterator[None]:
        """Walk code that stands at ``position``."""
        before, self.position = self.position, position
        try:
            yield
        finally:
            self.position = before

    @contextmanager
    def in_transaction(self, kind: Literal["block", "connection"]) -> Iterator[None]:
        """Walk code inside a transaction of its own, and commit it at the end."""
        transaction = OpenTransaction(f"tx{self.number()}", kind)
        with self.at_position(replace(self.position, transactions=(*self.position.transactions, transaction))):
            yield
        self.epoch += 1

    @contextmanager
    def under_guard(self, guard: TracedOperation | None) -> Iterator[None]:
        """Walk code that ``guard`` keeps from duplicates."""
        if guard is None:
            yield
            return
        self.hold((guard,), "block")
        yield
        self.held = [held for held in self.held if held.op is not guard or held.until != "block"]

    # -- what happens

    def emit(self, kind: OperationKind, node: ast.AST, **fields: Unpack[OperationFields]) -> TracedOperation:
        """Add an operation to the trace, with the guards, transaction and branch that hold here."""
        op = TracedOperation(kind, self.place(node), node=node, module=self.module, **fields)
        position = self.position
        op.frames = position.frames
        op.trail = position.trail
        op.arms = position.arms
        op.guards = tuple(held.op for held in self.held) + tuple(
            check for checks in self.conditions for check in checks
        )
        op.tx = op.tx or self.transaction()
        op.tries = position.tries
        op.handlers = position.handlers
        op.in_finally = position.in_finally
        op.loops = position.loops
        op.locks = position.locks + (op.tx in self.serialized)
        op.retrying = position.retrying
        op.deferred = position.deferred
        op.seq = self.number()
        if not self.muted:
            self.trace.ops.append(op)
        return op

    def hold(self, ops: Sequence[TracedOperation], until: HoldUntil) -> None:
        """Guard all that follows, until ``until``: a duplicate that ``ops`` looked up or claimed does not get there."""
        self.held.extend(HeldGuard(op, until) for op in ops)

    def transaction(self) -> str:
        """The name of the transaction of a statement here; outside of any, the implicit one between two commits."""
        transactions = self.position.transactions
        for transaction in transactions:
            if transaction.kind == "block":
                return transaction.name
        connection = transactions[0].name if transactions else ""
        return f"{connection}/{self.epoch}"

    # -- values

    def text(self, *parts: str) -> str:
        """The text of a value that is made of ``parts``, cut off where it is too long to be compared."""
        return "".join(parts)[:_MAX_TEXT_LENGTH]


def taints_of(*values: Value) -> frozenset[str]:
    """The union of the values' taints."""
    taints = EMPTY_SET
    for value in values:
        if value.taint:
            taints = taints | value.taint if taints else value.taint
    return taints


def origins_of(*values: Value) -> tuple[TracedOperation, ...]:
    """The union of the values' origins, in order."""
    origins: tuple[TracedOperation, ...] = ()
    for value in values:
        for op in value.origin:
            if op not in origins:
                origins = (*origins, op)
    return origins


def join_values(values: Sequence[Value], text: str) -> Value:
    """Combine what is known of several values, any of which it may be."""
    distinct = list({id(value): value for value in values}.values())
    if len(distinct) == 1:
        return distinct[0]
    if len({value.instance.cls for value in distinct if value.instance is not None}) > 1:
        objects = tuple(value for value in distinct if value.instance is not None)
        return Value(text=text, tag="one of", items=objects, taint=taints_of(*distinct), origin=origins_of(*distinct))
    best = next((value for value in distinct if value.is_known() and value.literal is not None), distinct[0])
    return replace(
        best,
        text=best.text if all(value.text == best.text for value in distinct) else text,
        items=tuple(distinct) if all(value.function for value in distinct) else best.items,
        home=None,
        taint=taints_of(*distinct),
        origin=origins_of(*distinct),
    )
