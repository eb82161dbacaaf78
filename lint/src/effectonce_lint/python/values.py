"""The data of a walk: values, operations on them, and the trace of one consumer."""

from __future__ import annotations

import ast
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from effectonce_lint.findings import Place

if TYPE_CHECKING:
    from .modules import ClassDefinition, Module

NOTHING: Final = frozenset[str]()
UNKNOWN: Final = object()
"""The literal of a value that is none."""
ATTEMPT_NUMBER: Final = "attempt:the attempt's number"
"""The taint of the variable of a retry loop."""

FunctionNode = ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda


@dataclass(slots=True, eq=False)
class Scope:
    """The names of one function's run, over those of the functions around it."""

    module: Module
    parent: Scope | None = None
    owner: ClassDefinition | None = None
    names: dict[str, Value] = field(default_factory=dict)

    def find(self, name: str) -> Value | None:
        scope: Scope | None = self
        while scope is not None:
            if name in scope.names:
                return scope.names[name]
            scope = scope.parent
        return None


@dataclass(slots=True, eq=False)
class Function:
    """A function of the project, with what it closes over and what it is bound to."""

    node: FunctionNode
    module: Module
    scope: Scope | None = None
    owner: ClassDefinition | None = None
    receiver: Value | None = None
    bound: tuple[Value, ...] = ()
    bound_names: dict[str, Value] = field(default_factory=dict)
    guard: Operation | None = None
    """Set where the function was wrapped by something that dedups: `idempotency.wrap(store, charge)`."""
    layer: int = 0
    """How many of its decorators, from the outermost, were already applied."""

    @property
    def name(self) -> str:
        return "<lambda>" if isinstance(self.node, ast.Lambda) else self.node.name

    @property
    def qualname(self) -> str:
        return f"{self.owner.name}.{self.name}" if self.owner is not None else self.name


@dataclass(slots=True, eq=False)
class Instance:
    """An object of a class of the project, and what it was made with."""

    cls: ClassDefinition
    arguments: tuple[Value, ...] = ()
    keywords: dict[str, Value] = field(default_factory=dict)
    attributes: dict[str, Value] = field(default_factory=dict)


@dataclass(slots=True, eq=False)
class Value:
    """What is known about a value.

    - ``text``: how it was come by, in one notation; two values with the same text are taken for the same;
    - ``tag``: which library object it is ("redis", "pika.channel"), ``ref``: its dotted name outside the project;
    - ``base`` and ``attr``: what it is an attribute of; ``home``: of a container, the module that it is a name of;
    - ``taint``: where it comes from: "message", "payload", "field:NAME", "unstable:WHAT", "attempt:WHAT", "digest";
    - ``origin``: the reads and claims that it depends on.
    """

    text: str = "?"
    tag: str = ""
    ref: str = ""
    base: Value | None = None
    attr: str = ""
    function: Function | None = None
    cls: ClassDefinition | None = None
    instance: Instance | None = None
    module: Module | None = None
    home: Module | None = None
    literal: object = UNKNOWN
    items: tuple[Value, ...] = ()
    fields: dict[str, Value] | None = None
    taint: frozenset[str] = NOTHING
    origin: tuple[Operation, ...] = ()

    @property
    def string(self) -> str | None:
        """The text of a string literal; of an f-string with ``{}`` for what is filled in."""
        return self.literal if isinstance(self.literal, str) else None

    def is_known(self) -> bool:
        """Whether anything but its text is known."""
        return (
            bool(
                self.tag
                or self.ref
                or self.function
                or self.cls
                or self.instance
                or self.module
                or self.items
                or self.fields
            )
            or self.literal is not UNKNOWN
        )


@dataclass(slots=True, eq=False)
class Effect:
    """Something that shows outside, and shows twice if it is done twice."""

    category: str
    """payment, mail, message (SMS, chat, push), http, publish, enqueue, insert, increment, counter, append, call."""
    what: str
    """For a person, after "it": "charges a card"."""
    provider: str = ""
    """Named where its API takes an idempotency key."""
    takes_key: str = ""
    """How that key is passed: an argument's name, or a header's."""
    key: Value | None = None
    key_given: bool = False
    sure: bool = True
    names_at_hand: tuple[str, ...] = ()
    """Parameters and locals of the consumer that hold a part of the message, for a fix to use."""

    @property
    def in_database(self) -> bool:
        return self.category in ("insert", "increment")


@dataclass(slots=True, eq=False)
class Operation:
    """One thing that a consumer does, where, and under what.

    Kinds: ``effect``; ``write`` (to a database, harmless when repeated); ``read`` (a look-up that may be a check);
    ``claim`` (an atomic first-one-wins); ``mark`` (writes a dedup record); ``unmark``; ``ack``; ``nack``; ``retry``;
    ``commit``; ``receive``; ``raise``; ``call`` (of something unseen); ``guard`` (a tool that dedups);
    ``wait`` (for work that was handed over).
    """

    kind: str
    at: Place
    text: str = ""
    effect: Effect | None = None
    store: str = ""
    """Where a read, claim or mark is kept: redis, sql, orm, entity, memory, dynamo, mongo, cache, opaque, tool."""
    location: str = ""
    """The table, key or set; what pairs a check with its record."""
    key: Value | None = None
    columns: tuple[str, ...] = ()
    atomic: bool = False
    """A mark that fails or says so if it is there; a claim once its answer is looked at."""
    ignored_conflict: bool = False
    """An insert that does nothing, silently, if the row is there."""
    expires: bool | None = None
    """Whether the record goes away by itself; None where that is not known or not the store's way."""
    seconds: float | None = None
    locked: bool = False
    dedup: bool = False
    """By its name it is there to dedup (a table `processed_messages`, a key `seen:…`)."""
    node: ast.AST | None = None
    module: Module | None = None
    # where in the walk
    seq: int = 0
    frames: tuple[int, ...] = ()
    trail: tuple[str, ...] = ()
    arms: tuple[tuple[int, int], ...] = ()
    guards: tuple[Operation, ...] = ()
    tx: str = ""
    tries: tuple[int, ...] = ()
    handlers: tuple[int, ...] = ()
    final: bool = False
    loops: tuple[int, ...] = ()
    locks: int = 0
    deferred: bool = False
    """Runs after the transaction has committed (`on_commit`)."""
    handed: Place | None = None
    """Where it was started and not waited for: what comes after that in the code may come before it in time."""
    retrying: bool = False
    """Inside a local retry: a loop around a try, or a function under a retry decorator."""


@dataclass(slots=True, eq=False)
class ExceptBlock:
    """An ``except`` that was walked through."""

    number: int
    body: int
    """The number of its try."""
    at: Place
    broad: bool
    names: tuple[str, ...]
    how: str
    """How it ends: next, loop, return, raise."""
    raises: bool
    returns_failure: bool
    says_false: bool
    depth: int
    """How many calls deep it stands: 2 is the consumer's own code."""
    trivial: bool
    """Nothing in it but logging, pass, continue or an ack."""


@dataclass(slots=True)
class Trace:
    """Everything one consumer does, in the order of the code."""

    ops: list[Operation] = field(default_factory=list)
    handlers: list[ExceptBlock] = field(default_factory=list)
    exits: dict[tuple[int, int], tuple[str, int]] = field(default_factory=dict)
    """Arms of a branch that leave: how (return, raise, loop), and which frame they leave."""
    settings: dict[str, tuple[Value, Place]] = field(default_factory=dict)
    """What is set on an application's configuration."""

    def precedes(self, first: Operation, then: Operation) -> bool:
        """Whether a run may pass ``first`` and then come to ``then``."""
        if first.seq >= then.seq:
            return False
        later = dict(then.arms)
        for number, arm in first.arms:
            if later.get(number, arm) != arm:
                return False
            if number not in later and (left := self.exits.get((number, arm))):
                how, frame = left
                if how == "raise" or frame in then.frames:
                    return False
        return True

    def of(self, *kinds: str) -> list[Operation]:
        return [op for op in self.ops if op.kind in kinds]


@dataclass(slots=True, eq=False)
class Consumer:
    """Something that a message is delivered to, at least once."""

    kind: str
    """For a person: "Celery task", "pika callback"."""
    name: str
    at: Place
    module: Module
    function: Function | None
    """None: the code of the module itself."""
    acks: str = "return"
    """return: a normal return acks; explicit: the code acks; never: nothing is redelivered."""
    family: str = ""
    tags: tuple[tuple[int, str], ...] = ()
    """What its parameters are, by position: (1, "pika.method")."""
    given: tuple[Value, ...] = ()
    """Its first arguments, where more is known of them: arq's ``ctx``, with what start-up puts there."""
    receive: Place | None = None
    """Of a loop: where it receives. What it does before that is not the message's."""
    settings: dict[str, Value] = field(default_factory=dict)
    registration: ast.Call | None = None
    registered_in: Module | None = None
    guard: Operation | None = None
    only: frozenset[str] = NOTHING
    """The only rules that apply, for code that is not a consumer but can do the same harm. Empty: all rules."""
