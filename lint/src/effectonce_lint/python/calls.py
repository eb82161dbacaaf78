"""Follows calls: walks through the project's own functions, and asks `libraries` what any other call does."""

from __future__ import annotations

import ast
from abc import abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, field, replace

from .expressions import ExpressionWalker, candidates_of
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
from .libraries.message_parts import BODIES, MESSAGE, PAYLOAD, message_parameter
from .libraries.object_types import ATTRIBUTES, FLUENT, tag_of
from .modules import Module
from .project import OUTSIDE, Project
from .values import Function, Operation, Scope, Value
from .walk_state import HeldGuard, OpenTransaction, join_values, origins_of, taints_of

MAX_CALL_DEPTH = 14
"""How many nested calls a walk follows."""


_AWS_READ_PREFIXES = ("get", "list", "describe", "head", "generate", "can_paginate", "close", "receive")


@dataclass(slots=True)
class Call:
    """A call, its parts evaluated."""

    node: ast.Call
    target: Value
    args: tuple[Value, ...] = ()
    keywords: dict[str, Value] = field(default_factory=dict)

    @property
    def receiver(self) -> Value:
        return self.target.base if self.target.base is not None else Value()

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

    def argument(self, position: int, *names: str) -> Value | None:
        """The argument at ``position``, or by one of ``names``."""
        for name in names:
            if name in self.keywords:
                return self.keywords[name]
        return self.args[position] if 0 <= position < len(self.args) else None

    @property
    def source_text(self) -> str:
        """As a person wrote it, without the arguments."""
        return ast.unparse(self.node.func) if len(self.target.text) < 80 else self.name

    def all_arguments(self) -> tuple[Value, ...]:
        return (*self.args, *self.keywords.values())


@dataclass(slots=True)
class CallFrame:
    """A function that is being walked through: what it returned and yielded so far, and what held when it began."""

    held: int
    conditions: int
    returned: list[Value] = field(default_factory=list)
    yielded: list[Value] = field(default_factory=list)
    body: Callable[[Value], bool] | None = None
    """Of a generator: what its caller does with what it yields; whether that was it."""


class CallWalker(ExpressionWalker):
    """Follows calls."""

    def __init__(self, project: Project, start: Module, fuel: int) -> None:
        super().__init__(project, start, fuel)
        self.active: list[ast.AST] = []
        """Functions that are being walked through; none is entered twice."""
        self.quiet: set[ast.AST] = set()
        """Functions that turned out to do nothing of interest."""
        self.stack: list[CallFrame] = []
        self.deepest = MAX_CALL_DEPTH
        self.discarded: ast.expr | None = None
        """The call that is a statement by itself: its result is unused."""

    def call(self, node: ast.Call) -> Value:
        target = self.value(node.func)
        args = tuple(self.value(each) for each in node.args)
        keywords: dict[str, Value] = {}
        for keyword in node.keywords:
            value = self.value(keyword.value)
            if keyword.arg is not None:
                keywords[keyword.arg] = value
            else:
                keywords.update(value.fields or {"**": value})
        return self.interpret_call(Call(node, target, args, keywords))

    def interpret_call(self, call: Call) -> Value:
        """Record what a call does, and return its value."""
        targets = candidates_of(call.target)
        value = self._interpret_library_call(call) if targets[0] is call.target else None
        if value is not None:
            return value
        results = [result for target in targets if (result := self._call_project_code(call, target)) is not None]
        if results:
            return join_values(results, self.text(call.target.text, "()"))
        return self._interpret_unseen_call(call)

    def _interpret_library_call(self, call: Call) -> Value | None:
        for interpret in _INTERPRETERS:
            value = interpret(self, call)
            if value is not None:
                return value
        tag = tag_of(call.ref) if call.ref else ""
        if not tag and call.tag:
            tag = call.tag if FLUENT.fullmatch(call.name) else ATTRIBUTES.get((call.tag, call.name), "")
        if call.target.tag == "sql.sessionmaker":
            tag = "sql.session"
        if tag:
            return Value(
                text=self.text(call.target.text, "()"),
                tag=tag,
                fields=dict(call.keywords),
                items=call.args,
                taint=call.receiver.taint,
                base=call.receiver,
            )
        return None

    def _call_project_code(self, call: Call, target: Value) -> Value | None:
        if target.function is not None:
            return self.invoke(target.function, call.args, call.keywords, call.node)
        if target.cls is not None:
            return self.instance_of(target.cls, call.args, call.keywords, self.text(target.text, "()"))
        method = self.member(target, target.instance.cls, "__call__") if target.instance is not None else None
        found = [
            self.invoke(each.function, call.args, call.keywords, call.node)
            for each in (candidates_of(method) if method is not None else ())
            if each.function is not None
        ]
        return join_values(found, self.text(target.text, "()")) if found else None

    def _interpret_unseen_call(self, call: Call) -> Value:
        """Interpret a call of unseen code: it may be work, and its value depends on its arguments."""
        text = self.text(call.target.text, "(", ",".join(each.text for each in call.all_arguments()), ")")
        if call.name[:1].isupper() and not call.name.isupper():  # it makes an object
            return Value(
                text=text,
                base=call.target,
                fields=dict(call.keywords),
                taint=taints_of(*call.all_arguments()) - {PAYLOAD},
            )
        guard = guards.guard_by_name(self, call)
        if guard is not None:
            return replace(guard, text=text)
        # `event.total()` only looks at the message; `book(event)` does something with it
        known = call.tag or MESSAGE in call.receiver.taint or call.ref.partition(".")[0] in OUTSIDE
        if call.tag.startswith("aws.") and not call.name.startswith(_AWS_READ_PREFIXES):
            known = ""
        if not known and not error_handling.is_log(call):
            self.emit("call", call.node, text=call.source_text, key=Value(taint=taints_of(*call.all_arguments())))
        taint = taints_of(call.receiver, *call.all_arguments()) - {PAYLOAD}
        return Value(text=text, base=call.target, taint=taint, origin=origins_of(call.receiver))

    # -- functions of the project

    def invoke(self, function: Function, args: tuple[Value, ...], keywords: dict[str, Value], node: ast.AST) -> Value:
        """Walk through a function as it is called here."""
        args = (*function.bound, *args)
        keywords = {**function.bound_names, **keywords}
        given = (*args, *keywords.values())
        # with functions among its arguments it may do something else each time
        plain_call = not self.muted and not any(each.function or each.cls for each in given)
        entered = function.node in self.active or len(self.active) >= self.deepest
        if entered or (plain_call and function.node in self.quiet):
            return Value(text=self.text(function.qualname, "()"), taint=taints_of(*given) - {PAYLOAD})
        before = len(self.trace.ops)
        with UnderGuard(self, function.guard):
            found = self._invoke_through_decorators(function, args, keywords, node)
        if plain_call and len(self.trace.ops) == before and not found.origin and not found.is_known():
            self.quiet.add(function.node)
        return found

    def _invoke_through_decorators(
        self, function: Function, args: tuple[Value, ...], keywords: dict[str, Value], node: ast.AST
    ) -> Value:
        applied = [] if isinstance(function.node, ast.Lambda) else function.node.decorator_list
        if function.layer >= len(applied):
            return self._walk_function(function, args, keywords, node)
        inner = replace(function, layer=function.layer + 1, guard=None, bound=(), bound_names={})
        decorator = applied[function.layer]
        with self.quietly(), self.in_scope(function.scope or Scope(function.module, owner=function.owner)):
            layer = decorators.effect_of_decorator(self, decorator)
        if layer.kind == "guard" and layer.guard is not None:
            with UnderGuard(self, layer.guard):
                return self._invoke_through_decorators(inner, args, keywords, node)
        if layer.kind == "tx":
            with self.in_transaction("block"):
                return self._invoke_through_decorators(inner, args, keywords, node)
        if layer.kind == "retry":
            self.retrying += 1
            try:
                return self._invoke_through_decorators(inner, args, keywords, node)
            finally:
                self.retrying -= 1
        if layer.kind == "wrap" and layer.value is not None and layer.value.function is not None:
            with self.quietly():
                wrapped = self.invoke(layer.value.function, (Value(text=function.name, function=inner),), {}, node)
            if wrapped.function is not None and wrapped.function.node is not function.node:
                return self.invoke(wrapped.function, args, keywords, node)
        if layer.kind == "object" and layer.value is not None and layer.value.cls is not None:
            made = self.instance_of(layer.value.cls, (Value(text=function.name, function=inner),), {}, function.name)
            method = self.member(made, layer.value.cls, "__call__")
            if method is not None and method.function is not None:
                return self.invoke(method.function, args, keywords, node)
        if layer.kind == "dispatch":
            found = [self.invoke(each, args, keywords, node) for each in decorators.registered_variants(inner)]
            return join_values(
                [*found, self._invoke_through_decorators(inner, args, keywords, node)], function.qualname
            )
        return self._invoke_through_decorators(inner, args, keywords, node)

    def _walk_function(
        self, function: Function, args: tuple[Value, ...], keywords: dict[str, Value], node: ast.AST
    ) -> Value:
        frames, trail, loops = self.frames, self.trail, self.loops
        self.frames = (*frames, self.number())
        self.trail = (*trail, function.qualname)
        self.active.append(function.node)
        frame = CallFrame(len(self.held), len(self.conditions))
        self.stack.append(frame)
        with self.in_scope(Scope(function.module, function.scope, function.owner)):
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
        self.held += [HeldGuard(each.op, "raise") for each in inside if each.until == "raise"]
        text = self.text(function.qualname, "(", ",".join(each.text for each in args), ")")
        if frame.yielded:
            given = frame.yielded
            return Value(
                text=text, tag="generator", items=tuple(given), taint=taints_of(*given), origin=origins_of(*given)
            )
        if not frame.returned:
            return Value(text=text, literal=None)
        found = join_values(frame.returned, text)
        says = None if isinstance(function.node, ast.Lambda) or found.is_known() else function.node.returns
        if says is None:
            return found
        with self.quietly(), self.in_scope(Scope(function.module, owner=function.owner)):
            typed = self.value_of_annotation(says)
        return replace(typed, text=text, taint=found.taint, origin=found.origin) if typed.is_known() else found

    def parameters(self, function: Function, args: tuple[Value, ...], keywords: dict[str, Value]) -> None:
        """Bind a function's parameters in the current scope."""
        node = function.node
        names = self.scope.names
        positional = [*node.args.posonlyargs, *node.args.args]
        if function.receiver is not None and positional and not _is_static(node):
            names[positional[0].arg] = function.receiver
            positional = positional[1:]
        elif (
            function.owner is not None
            and positional
            and positional[0].arg in ("self", "cls")
            and len(args) < len(positional)
        ):
            if positional[0].arg == "cls":
                names["cls"] = Value(text=function.owner.name, cls=function.owner)
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
            names[node.args.vararg.arg] = Value(
                text=node.args.vararg.arg,
                tag="tuple" if rest else "",
                items=rest,
                taint=taints_of(*rest) or frozenset({MESSAGE}),
            )
        if node.args.kwarg:
            known = {each.arg for each in (*positional, *node.args.kwonlyargs)}
            more = {name: value for name, value in keywords.items() if name not in known}
            names[node.args.kwarg.arg] = Value(
                text=node.args.kwarg.arg, fields=more or None, taint=taints_of(*more.values()) or frozenset({MESSAGE})
            )

    def _parameter(
        self, parameter: ast.arg, given: Value | None, default: ast.expr | None, function: Function
    ) -> Value:
        if given is not None and (given.is_known() or parameter.annotation is None):
            return given
        value = Value(text=parameter.arg) if given is None else given
        with self.quietly(), self.in_scope(function.scope or Scope(function.module, owner=function.owner)):
            typed = self._resolve_dependency(default) if given is None and isinstance(default, ast.Call) else Value()
            if not typed.is_known() and parameter.annotation is not None:
                typed = self.value_of_annotation(parameter.annotation)
            if not typed.is_known() and given is None and default is not None and not isinstance(default, ast.Call):
                typed = self.value(default)
        if typed.is_known():
            return replace(typed, text=value.text, taint=value.taint or typed.taint, origin=value.origin)
        if given is None:
            return message_parameter(parameter.arg, whole=parameter.arg in BODIES)
        return value

    # -- what the scan for consumers overrides

    def register(
        self,
        family: str,
        kind: str,
        callback: Value,
        call: Call | None,
        *,
        acks: str = "return",
        tags: tuple[tuple[int, str], ...] = (),
    ) -> None:
        """``callback`` is made a consumer here."""

    def register_route(self, call: Call, view: Value) -> None:
        """``view`` is made to answer requests here."""

    def register_router(self, call: Call, path: str) -> None:
        """Note that a router is mounted under ``path``."""

    # -- in the last part of the walk

    @abstractmethod
    def block(self, body: list[ast.stmt]) -> str: ...

    @abstractmethod
    def in_transaction(self, kind: str) -> InTransaction: ...


@dataclass(slots=True)
class UnderGuard:
    """Everything inside runs under a guard."""

    walk: CallWalker
    op: Operation | None

    def __enter__(self) -> None:
        if self.op is not None:
            self.walk.hold((self.op,), "block")

    def __exit__(self, *_: object) -> None:
        if self.op is not None:
            self.walk.held = [each for each in self.walk.held if each.op is not self.op or each.until != "block"]


@dataclass(slots=True)
class InTransaction:
    """Everything inside belongs to one transaction, which is committed at the end."""

    walk: CallWalker
    kind: str

    def __enter__(self) -> None:
        self.walk.transactions.append(OpenTransaction(f"tx{self.walk.number()}", self.kind))

    def __exit__(self, *_: object) -> None:
        self.walk.transactions.pop()
        self.walk.epoch += 1


def _is_static(node: ast.AST) -> bool:
    return any(isinstance(each, ast.Name) and each.id == "staticmethod" for each in getattr(node, "decorator_list", ()))


_INTERPRETERS: tuple[Callable[[CallWalker, Call], Value | None], ...] = (
    background_work.interpret_call,
    standard_library.interpret_call,
    callbacks.interpret_call,
    guards.interpret_call,
    brokers.interpret_call,
    registrations.interpret_call,
    orm.interpret_call,
    redis.interpret_call,
    nosql.interpret_call,
    sql_drivers.interpret_call,
    record_services.interpret_call,
    effects.interpret_call,
)
"""Each knows some libraries, and answers None for a call of any other. The first that knows a call interprets it."""
