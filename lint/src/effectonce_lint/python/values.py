"""The data of a walk: values, operations on them, and the trace of one consumer."""

from __future__ import annotations

import ast
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, Literal, TypedDict

from effectonce_lint.findings import Place

if TYPE_CHECKING:
    from .modules import ClassDefinition, Module

EMPTY_SET: Final = frozenset[str]()
UNKNOWN_LITERAL: Final = object()
"""Stands in `Value.literal` for a value that is not a literal."""

FunctionNode = ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda

OperationKind = Literal[
    "ack",
    "call",  # of something unseen
    "claim",  # an atomic first-one-wins
    "commit",
    "effect",
    "guard",  # a tool that dedups
    "mark",  # writes a dedup record
    "nack",
    "raise",
    "read",  # a look-up that may be a check
    "receive",
    "retry",
    "rollback",
    "unmark",  # deletes a dedup record
    "wait",  # for work that was handed over
    "write",  # to a database, harmless when repeated
]
"""What an operation of a consumer is."""
OperationStore = Literal[
    "",
    "cache",
    "dynamo",
    "entity",  # an object of an ORM that is in memory
    "http",
    "memory",  # of this process
    "mongo",
    "opaque",  # code that is out of sight, known by its name
    "orm",
    "outbox",
    "redis",
    "service",
    "sql",
    "tool",  # effectonce, or another library that dedups
]
"""Where an operation looks, or what it changes."""
EffectCategory = Literal[
    "append",
    "call",
    "counter",
    "enqueue",
    "http",
    "increment",
    "insert",
    "mail",
    "message",  # SMS, chat, push
    "payment",
    "publish",
]
Ending = Literal["next", "loop", "return", "raise"]
"""How a block ends: it goes on to the next statement, leaves the round of a loop, returns, or raises."""
Acks = Literal["return", "explicit", "never"]
"""How a consumer acks: by a normal return, by code of its own, or not at all, since nothing is redelivered."""
HoldUntil = Literal["block", "function", "raise", "walk"]
"""Up to where a guard holds: see `HeldGuard`."""


@dataclass(slots=True, eq=False)
class Scope:
    """The local names of a function that is being walked."""

    module: Module
    parent: Scope | None = None
    """The scope of the function around it."""
    owner: ClassDefinition | None = None
    """The class whose method or body it is."""
    names: dict[str, Value] = field(default_factory=dict)

    def find(self, name: str) -> Value | None:
        """The value of a name, here or in a function around; None if it is not local."""
        scope: Scope | None = self
        while scope is not None:
            if name in scope.names:
                return scope.names[name]
            scope = scope.parent
        return None


@dataclass(slots=True, eq=False)
class Function:
    """A function of the project."""

    node: FunctionNode
    module: Module
    scope: Scope | None = None
    """The scope in which it was defined; None at the top of a module."""
    owner: ClassDefinition | None = None
    """The class whose method it is."""
    receiver: Value | None = None
    """The object that a method is bound to."""
    bound: tuple[Value, ...] = ()
    """Arguments that are bound already: `partial(charge, gateway)`."""
    bound_names: dict[str, Value] = field(default_factory=dict)
    guard: TracedOperation | None = None
    """The guard that it was wrapped by: `idempotency.wrap(store, charge)`."""
    layer: int = 0
    """How many of its decorators, from the outermost, were applied already."""

    @property
    def name(self) -> str:
        return "<lambda>" if isinstance(self.node, ast.Lambda) else self.node.name

    @property
    def qualname(self) -> str:
        return f"{self.owner.name}.{self.name}" if self.owner is not None else self.name


@dataclass(slots=True, eq=False)
class Instance:
    """An object of a class of the project."""

    cls: ClassDefinition
    arguments: tuple[Value, ...] = ()
    """The positional arguments that it was made with."""
    keywords: dict[str, Value] = field(default_factory=dict)
    """The keyword arguments that it was made with."""
    attributes: dict[str, Value] = field(default_factory=dict)
    """Its attributes, as far as they were set or asked for."""


@dataclass(slots=True, eq=False)
class Value:
    """What is known about a value.

    - ``text``: the expression that it came from, normalized; values with the same text are taken for the same;
    - ``tag``: what kind of object it is: "redis", "pika.channel" and others of `libraries.object_types`; "list" and
      "generator" of Python itself; "guard" (entered by a `with`) and "guarded" (a decorator) of `libraries.guards`;
    - ``ref``: its dotted name outside the project;
    - ``base`` and ``attr``: the value that it is an attribute of, and the attribute's name;
    - ``home``: of a container that is a global, its module;
    - ``items``: of a sequence, its items; of tag "one of", the values that it may be; of a call, its arguments;
    - ``fields``: of a dict, its values by key; of a call, its keyword arguments;
    - ``taint``: where it comes from: see `taints`;
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
    literal: object = UNKNOWN_LITERAL
    items: tuple[Value, ...] = ()
    fields: dict[str, Value] | None = None
    taint: frozenset[str] = EMPTY_SET
    origin: tuple[TracedOperation, ...] = ()

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
            or self.literal is not UNKNOWN_LITERAL
        )


@dataclass(slots=True, eq=False)
class Effect:
    """A change that is visible outside the consumer, and happens twice if the message is handled twice."""

    category: EffectCategory
    what: str
    """The words for it in a message, after "it": "charges a card"."""
    provider: str = ""
    """The name of a provider whose API takes an idempotency key."""
    takes_key: str = ""
    """The argument or header that takes this key."""
    key: Value | None = None
    """The key that is passed."""
    key_given: bool = False
    """Whether a key is passed, also where its value is out of sight."""
    sure: bool = True
    """False: only its name says that it is an effect."""
    names_at_hand: tuple[str, ...] = ()
    """Parameters and locals of the consumer that hold a part of the message, for a fix to use."""

    @property
    def in_database(self) -> bool:
        return self.category in ("insert", "increment")


@dataclass(slots=True, eq=False)
class TracedOperation:
    """One thing that a consumer does, with its place in the code and the guards that hold there. `WalkState.emit` makes
    it of `OperationFields`, and fills in where in the walk it is."""

    kind: OperationKind
    at: Place
    text: str = ""
    effect: Effect | None = None
    store: OperationStore = ""
    """Where a read, claim, mark or write is kept."""
    family: str = ""
    """Of a receive: the library that delivers, as `DetectedConsumer.family`."""
    location: str = ""
    """The table, key or set. A check and the record that it looks for have the same."""
    key: Value | None = None
    """What is looked up, recorded or sent under."""
    columns: tuple[str, ...] = ()
    """The columns that a statement names."""
    atomic: bool = False
    """A mark that fails, or says so, if the record exists: a claim once the code looks at the answer."""
    ignored_conflict: bool = False
    """An insert that does nothing, and says nothing, if the row exists."""
    expires: bool | None = None
    """Whether the record expires. None: that is not known, or this store has no expiry."""
    seconds: float | None = None
    """After how long it expires."""
    locked: bool = False
    """A read that locks what it reads: `SELECT … FOR UPDATE`."""
    dedup: bool = False
    """Its name says that it is there to dedup: a table `processed_messages`, a key `seen:…`."""
    node: ast.AST | None = None
    module: Module | None = None
    # where in the walk: see `Position`
    seq: int = 0
    """Its number in the order of the walk."""
    frames: tuple[int, ...] = ()
    trail: tuple[str, ...] = ()
    arms: tuple[tuple[int, int], ...] = ()
    guards: tuple[TracedOperation, ...] = ()
    """The reads and claims that decide whether it happens."""
    tx: str = ""
    """The name of its transaction."""
    tries: tuple[int, ...] = ()
    handlers: tuple[int, ...] = ()
    in_finally: bool = False
    loops: tuple[int, ...] = ()
    locks: int = 0
    """How many locks keep others like it from running beside it."""
    deferred: bool = False
    """Runs after the transaction has committed (`on_commit`)."""
    handed_over_at: Place | None = None
    """Where it was started and not waited for: what comes after that in the code may come before it in time."""
    retrying: bool = False


class OperationTarget(TypedDict, total=False):
    """What an operation is about: fields of `TracedOperation`."""

    text: str
    store: OperationStore
    location: str
    key: Value | None
    columns: tuple[str, ...]
    dedup: bool
    tx: str


class OperationFields(OperationTarget, total=False):
    """What the code that recognises an operation knows of it: its target, and how it behaves there."""

    effect: Effect | None
    family: str
    atomic: bool
    ignored_conflict: bool
    expires: bool | None
    seconds: float | None
    locked: bool


@dataclass(slots=True, eq=False)
class ExceptBlock:
    """An ``except`` block that was walked."""

    number: int
    try_number: int
    at: Place
    broad: bool
    """It catches whatever goes wrong, anywhere or in one library."""
    names: tuple[str, ...]
    """The errors that it catches."""
    ending: Ending
    """How it ends."""
    raises: bool
    """It raises, retries or nacks."""
    returns_failure: bool
    """It returns an answer that says that it went wrong: a status of 4xx or 5xx."""
    returns_false: bool
    """It returns False."""
    depth: int
    """How many calls deep it stands: 2 is the consumer's own code."""
    trivial: bool
    """Nothing in it but logging, pass, continue or an ack."""


@dataclass(slots=True)
class Trace:
    """Everything that one consumer does, in the order of the code."""

    ops: list[TracedOperation] = field(default_factory=list)
    handlers: list[ExceptBlock] = field(default_factory=list)
    exits: dict[tuple[int, int], tuple[Ending, int]] = field(default_factory=dict)
    """(branch, arm) of each arm that leaves: how (return, raise, loop), and the number of the frame that it leaves."""
    settings: dict[str, tuple[Value, Place]] = field(default_factory=dict)
    """What the code sets on an application's configuration, by the setting's name."""
    broken_off: str = ""
    """Why the walk ended before the code did; "" if it did not."""

    def precedes(self, first: TracedOperation, then: TracedOperation) -> bool:
        """Whether one run may pass ``first`` and then come to ``then``."""
        if first.seq >= then.seq:
            return False
        arms_of_then = dict(then.arms)
        for branch, arm in first.arms:
            if arms_of_then.get(branch, arm) != arm:
                return False  # in another arm of the same branch
            if branch not in arms_of_then and (branch, arm) in self.exits:
                ending, frame = self.exits[branch, arm]
                if ending == "raise" or frame in then.frames:
                    return False  # the arm leaves before it comes to `then`
        return True


@dataclass(slots=True, eq=False)
class DetectedConsumer:
    """A function or loop that messages are delivered to, at least once."""

    kind: str
    """The words for it in a message: "Celery task", "pika callback"."""
    name: str
    at: Place
    module: Module
    function: Function | None
    """None: the code of the module itself."""
    acks: Acks = "return"
    family: str = ""
    """The library or protocol that delivers: "celery", "kafka", "webhook"."""
    tags: tuple[tuple[int, str], ...] = ()
    """The tags of its parameters, by position: (1, "pika.method")."""
    first_arguments: tuple[Value, ...] = ()
    """Its first arguments, where more is known of them: arq's ``ctx``, with what start-up puts there."""
    receive: Place | None = None
    """Of a loop: where it receives. What it does before that is not done for a message."""
    settings: dict[str, Value] = field(default_factory=dict)
    """The settings that it was registered with."""
    registration: ast.Call | None = None
    """The call that registers it."""
    registered_in: Module | None = None
    """The module of this call."""
    guard: TracedOperation | None = None
    """The guard that it runs under as a whole."""
    only_rules: frozenset[str] = EMPTY_SET
    """The only rules that apply, for code that is not a consumer but can do the same harm. Empty: all rules."""

    @property
    def subject(self) -> str:
        """How messages name it: "the Celery task `charge`"."""
        if self.receive is not None:
            return f"the {self.kind} in {'the module' if self.function is None else f'`{self.name}`'}"
        return f"the {self.kind} `{self.name}`"
