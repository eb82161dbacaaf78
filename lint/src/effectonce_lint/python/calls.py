"""What a call does: of the project's own functions by walking through them, of libraries by what is known of them."""

from __future__ import annotations

import ast
from abc import abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, field, replace

from .expressions import Expressions, one_of
from .libraries import (
    background_work,
    brokers,
    callbacks,
    decorators,
    effects,
    error_handling,
    guards,
    nosql,
    orm,
    record_services,
    redis,
    registrations,
    sql_drivers,
    standard_library,
)
from .libraries.message_parts import BODIES, MESSAGE, PAYLOAD, delivered
from .libraries.object_types import ATTRIBUTES, FLUENT, tag_of
from .modules import Module
from .project import OUTSIDE, Project
from .values import Function, Op, Scope, Val
from .walk_state import Held, Transaction, joined, origins, taints

DEEPEST = 14
"""Calls inside calls that are followed."""


_AWS_READS = ("get", "list", "describe", "head", "generate", "can_paginate", "close", "receive")

_LIBRARY = (
    background_work,
    standard_library,
    callbacks,
    guards,
    brokers,
    registrations,
    orm,
    redis,
    nosql,
    sql_drivers,
    record_services,
    effects,
)
"""Asked in this order: the first that knows a call says what it does."""


@dataclass(slots=True)
class Call:
    """A call, its parts evaluated."""

    node: ast.Call
    target: Val
    args: tuple[Val, ...] = ()
    keywords: dict[str, Val] = field(default_factory=dict)

    @property
    def receiver(self) -> Val:
        return self.target.base if self.target.base is not None else Val()

    @property
    def name(self) -> str:
        """The last part of what is called."""
        return self.target.attr or self.target.ref.rpartition(".")[2] or self.target.text.rpartition(".")[2]

    @property
    def ref(self) -> str:
        return self.target.ref

    @property
    def tag(self) -> str:
        """What it is called on."""
        return self.receiver.tag

    def argument(self, position: int, *names: str) -> Val | None:
        """The argument at ``position``, or by one of ``names``."""
        for name in names:
            if name in self.keywords:
                return self.keywords[name]
        return self.args[position] if 0 <= position < len(self.args) else None

    @property
    def shown(self) -> str:
        """As a person wrote it, without the arguments."""
        return ast.unparse(self.node.func) if len(self.target.text) < 80 else self.name

    def all(self) -> tuple[Val, ...]:
        return (*self.args, *self.keywords.values())


@dataclass(slots=True)
class Frame:
    """A function that is being walked through: what it returned and yielded so far, and what held when it began."""

    held: int
    conditions: int
    returned: list[Val] = field(default_factory=list)
    yielded: list[Val] = field(default_factory=list)
    body: Callable[[Val], bool] | None = None
    """Of a generator: what its caller does with what it yields; whether that was it."""


class Calls(Expressions):
    """Follows calls."""

    def __init__(self, project: Project, start: Module, fuel: int) -> None:
        super().__init__(project, start, fuel)
        self.active: list[ast.AST] = []
        """Functions that are being walked through; none is entered twice."""
        self.quiet: set[ast.AST] = set()
        """Functions that turned out to do nothing of interest."""
        self.stack: list[Frame] = []
        self.deepest = DEEPEST
        self.discarded: ast.expr | None = None
        """The call that is a statement of its own: nobody looks at what it gives."""

    def call(self, node: ast.Call) -> Val:
        target = self.value(node.func)
        args = tuple(self.value(each) for each in node.args)
        keywords: dict[str, Val] = {}
        for keyword in node.keywords:
            value = self.value(keyword.value)
            if keyword.arg is not None:
                keywords[keyword.arg] = value
            else:
                keywords.update(value.fields or {"**": value})
        return self.called(Call(node, target, args, keywords))

    def called(self, call: Call) -> Val:
        """What a call gives, after all that it does has been noted."""
        targets = one_of(call.target)
        value = self._known(call) if targets[0] is call.target else None
        if value is not None:
            return value
        results = [result for target in targets if (result := self._ours(call, target)) is not None]
        if results:
            return joined(results, self.text(call.target.text, "()"))
        return self._unseen(call)

    def _known(self, call: Call) -> Val | None:
        for knows in _LIBRARY:
            value: Val | None = knows.called(self, call)
            if value is not None:
                return value
        tag = tag_of(call.ref) if call.ref else ""
        if not tag and call.tag:
            tag = call.tag if FLUENT.fullmatch(call.name) else ATTRIBUTES.get((call.tag, call.name), "")
        if call.target.tag == "sql.sessionmaker":
            tag = "sql.session"
        if tag:
            return Val(
                text=self.text(call.target.text, "()"),
                tag=tag,
                fields=dict(call.keywords),
                items=call.args,
                taint=call.receiver.taint,
                base=call.receiver,
            )
        return None

    def _ours(self, call: Call, target: Val) -> Val | None:
        if target.function is not None:
            return self.invoke(target.function, call.args, call.keywords, call.node)
        if target.cls is not None:
            return self.instance_of(target.cls, call.args, call.keywords, self.text(target.text, "()"))
        method = self.member(target, target.instance.cls, "__call__") if target.instance is not None else None
        found = [
            self.invoke(each.function, call.args, call.keywords, call.node)
            for each in (one_of(method) if method is not None else ())
            if each.function is not None
        ]
        return joined(found, self.text(target.text, "()")) if found else None

    def _unseen(self, call: Call) -> Val:
        """Something out of sight: it may be work, and what it gives depends on what it was given."""
        text = self.text(call.target.text, "(", ",".join(each.text for each in call.all()), ")")
        if call.name[:1].isupper() and not call.name.isupper():  # it makes an object
            return Val(text=text, base=call.target, fields=dict(call.keywords), taint=taints(*call.all()) - {PAYLOAD})
        guard = guards.by_name(self, call)
        if guard is not None:
            return replace(guard, text=text)
        # `event.total()` only looks at the message; `book(event)` does something with it
        known = call.tag or MESSAGE in call.receiver.taint or call.ref.partition(".")[0] in OUTSIDE
        if call.tag.startswith("aws.") and not call.name.startswith(_AWS_READS):
            known = ""
        if not known and not error_handling.is_log(call):
            self.emit("call", call.node, text=call.shown, key=Val(taint=taints(*call.all())))
        taint = taints(call.receiver, *call.all()) - {PAYLOAD}
        return Val(text=text, base=call.target, taint=taint, origin=origins(call.receiver))

    # -- functions of the project

    def invoke(self, function: Function, args: tuple[Val, ...], keywords: dict[str, Val], node: ast.AST) -> Val:
        """Walk through a function as it is called here."""
        args = (*function.bound, *args)
        keywords = {**function.bound_names, **keywords}
        given = (*args, *keywords.values())
        # with functions among its arguments it may do something else each time
        plain_call = not self.muted and not any(each.function or each.cls for each in given)
        entered = function.node in self.active or len(self.active) >= self.deepest
        if entered or (plain_call and function.node in self.quiet):
            return Val(text=self.text(function.qualname, "()"), taint=taints(*given) - {PAYLOAD})
        before = len(self.trace.ops)
        with Guarded(self, function.guard):
            found = self._through_layers(function, args, keywords, node)
        if plain_call and len(self.trace.ops) == before and not found.origin and not found.known():
            self.quiet.add(function.node)
        return found

    def _through_layers(
        self, function: Function, args: tuple[Val, ...], keywords: dict[str, Val], node: ast.AST
    ) -> Val:
        applied = [] if isinstance(function.node, ast.Lambda) else function.node.decorator_list
        if function.layer >= len(applied):
            return self._run(function, args, keywords, node)
        inner = replace(function, layer=function.layer + 1, guard=None, bound=(), bound_names={})
        decorator = applied[function.layer]
        with self.quietly(), self.within(function.scope or Scope(function.module, owner=function.owner)):
            layer = decorators.of(self, decorator)
        if layer.kind == "guard" and layer.guard is not None:
            with Guarded(self, layer.guard):
                return self._through_layers(inner, args, keywords, node)
        if layer.kind == "tx":
            with self.in_transaction("block"):
                return self._through_layers(inner, args, keywords, node)
        if layer.kind == "retry":
            self.retrying += 1
            try:
                return self._through_layers(inner, args, keywords, node)
            finally:
                self.retrying -= 1
        if layer.kind == "wrap" and layer.value is not None and layer.value.function is not None:
            with self.quietly():
                wrapped = self.invoke(layer.value.function, (Val(text=function.name, function=inner),), {}, node)
            if wrapped.function is not None and wrapped.function.node is not function.node:
                return self.invoke(wrapped.function, args, keywords, node)
        if layer.kind == "object" and layer.value is not None and layer.value.cls is not None:
            made = self.instance_of(layer.value.cls, (Val(text=function.name, function=inner),), {}, function.name)
            method = self.member(made, layer.value.cls, "__call__")
            if method is not None and method.function is not None:
                return self.invoke(method.function, args, keywords, node)
        if layer.kind == "dispatch":
            found = [self.invoke(each, args, keywords, node) for each in decorators.dispatched(inner)]
            return joined([*found, self._through_layers(inner, args, keywords, node)], function.qualname)
        return self._through_layers(inner, args, keywords, node)

    def _run(self, function: Function, args: tuple[Val, ...], keywords: dict[str, Val], node: ast.AST) -> Val:
        frames, trail, loops = self.frames, self.trail, self.loops
        self.frames = (*frames, self.number())
        self.trail = (*trail, function.qualname)
        self.active.append(function.node)
        frame = Frame(len(self.held), len(self.conditions))
        self.stack.append(frame)
        with self.within(Scope(function.module, function.scope, function.owner)):
            self.parameters(function, args, keywords)
            if isinstance(function.node, ast.Lambda):
                frame.returned.append(self.value(function.node.body))
            else:
                self.block(function.node.body)
        self.stack.pop()
        self.active.pop()
        self.frames, self.trail, self.loops = frames, trail, loops
        inside = self.held[frame.held :]
        del self.held[frame.held :]
        # what is held because a duplicate raised holds for the caller too
        self.held += [Held(each.op, "raise") for each in inside if each.until == "raise"]
        text = self.text(function.qualname, "(", ",".join(each.text for each in args), ")")
        if frame.yielded:
            given = frame.yielded
            return Val(text=text, tag="generator", items=tuple(given), taint=taints(*given), origin=origins(*given))
        if not frame.returned:
            return Val(text=text, literal=None)
        found = joined(frame.returned, text)
        says = None if isinstance(function.node, ast.Lambda) or found.known() else function.node.returns
        if says is None:
            return found
        with self.quietly(), self.within(Scope(function.module, owner=function.owner)):
            typed = self.annotated(says)
        return replace(typed, text=text, taint=found.taint, origin=found.origin) if typed.known() else found

    def parameters(self, function: Function, args: tuple[Val, ...], keywords: dict[str, Val]) -> None:
        """Bind a function's parameters in the current scope."""
        node = function.node
        names = self.scope.names
        positional = [*node.args.posonlyargs, *node.args.args]
        if function.receiver is not None and positional and not _static(node):
            names[positional[0].arg] = function.receiver
            positional = positional[1:]
        elif (
            function.owner is not None
            and positional
            and positional[0].arg in ("self", "cls")
            and len(args) < len(positional)
        ):
            if positional[0].arg == "cls":
                names["cls"] = Val(text=function.owner.name, cls=function.owner)
            else:
                names["self"] = self.instance_of(function.owner, (), {}, "self")
            positional = positional[1:]
        defaults = dict(zip(reversed([each.arg for each in positional]), reversed(node.args.defaults), strict=False))
        defaults.update(
            {each.arg: value for each, value in zip(node.args.kwonlyargs, node.args.kw_defaults, strict=True) if value}
        )
        for position, parameter in enumerate((*positional, *node.args.kwonlyargs)):
            given = (
                args[position] if position < len(args) and position < len(positional) else keywords.get(parameter.arg)
            )
            names[parameter.arg] = self._parameter(parameter, given, defaults.get(parameter.arg), function)
        if node.args.vararg:
            rest = args[len(positional) :]
            names[node.args.vararg.arg] = Val(
                text=node.args.vararg.arg,
                tag="tuple" if rest else "",
                items=rest,
                taint=taints(*rest) or frozenset({MESSAGE}),
            )
        if node.args.kwarg:
            known = {each.arg for each in (*positional, *node.args.kwonlyargs)}
            more = {name: value for name, value in keywords.items() if name not in known}
            names[node.args.kwarg.arg] = Val(
                text=node.args.kwarg.arg, fields=more or None, taint=taints(*more.values()) or frozenset({MESSAGE})
            )

    def _parameter(self, parameter: ast.arg, given: Val | None, default: ast.expr | None, function: Function) -> Val:
        if given is not None and (given.known() or parameter.annotation is None):
            return given
        value = Val(text=parameter.arg) if given is None else given
        with self.quietly(), self.within(function.scope or Scope(function.module, owner=function.owner)):
            typed = self._depends(default) if given is None and isinstance(default, ast.Call) else Val()
            if not typed.known() and parameter.annotation is not None:
                typed = self.annotated(parameter.annotation)
            if not typed.known() and given is None and default is not None and not isinstance(default, ast.Call):
                typed = self.value(default)
        if typed.known():
            return replace(typed, text=value.text, taint=value.taint or typed.taint, origin=value.origin)
        if given is None:
            return delivered(parameter.arg, whole=parameter.arg in BODIES)
        return value

    # -- what the scan for consumers overrides

    def register(
        self,
        family: str,
        kind: str,
        callback: Val,
        call: Call | None,
        *,
        acks: str = "return",
        tags: tuple[tuple[int, str], ...] = (),
    ) -> None:
        """``callback`` is made a consumer here."""

    def register_route(self, call: Call, view: Val) -> None:
        """``view`` is made to answer requests here."""

    def register_router(self, call: Call, path: str) -> None:
        """A router is hung up under ``path`` here."""

    # -- in the last part of the walk

    @abstractmethod
    def block(self, body: list[ast.stmt]) -> str: ...

    @abstractmethod
    def in_transaction(self, kind: str) -> InTransaction: ...


@dataclass(slots=True)
class Guarded:
    """Everything inside runs under a guard."""

    walk: Calls
    op: Op | None

    def __enter__(self) -> None:
        if self.op is not None:
            self.walk.hold((self.op,), "block")

    def __exit__(self, *_: object) -> None:
        if self.op is not None:
            self.walk.held = [each for each in self.walk.held if each.op is not self.op or each.until != "block"]


@dataclass(slots=True)
class InTransaction:
    """Everything inside belongs to one transaction, which is committed at the end."""

    walk: Calls
    kind: str

    def __enter__(self) -> None:
        self.walk.transactions.append(Transaction(f"tx{self.walk.number()}", self.kind))

    def __exit__(self, *_: object) -> None:
        self.walk.transactions.pop()
        self.walk.epoch += 1


def _static(node: ast.AST) -> bool:
    return any(isinstance(each, ast.Name) and each.id == "staticmethod" for each in getattr(node, "decorator_list", ()))
