"""Follows calls: walks through the project's own functions, and asks `libraries` what any other call does."""

from __future__ import annotations

import ast
from abc import abstractmethod
from collections.abc import Callable, Iterator
from contextlib import contextmanager
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
from .libraries.message_parts import BODY_PARAMETERS, message_parameter
from .libraries.object_types import ATTRIBUTES, FLUENT_METHOD, tag_of
from .project import OUTSIDE_PACKAGES
from .taints import MESSAGE, PAYLOAD
from .values import Ending, Function, Scope, Value
from .walk_state import join_values, origins_of, taints_of

MAX_CALL_DEPTH = 14
"""How many nested calls a walk follows."""
_MAX_SOURCE_TEXT_LENGTH = 80
_AWS_READ_PREFIXES = ("get", "list", "describe", "head", "generate", "can_paginate", "close", "receive")
"""How the names of AWS operations begin that change nothing."""


@dataclass(slots=True)
class Call:
    """A call whose parts were evaluated."""

    node: ast.Call
    target: Value
    """What is called."""
    args: tuple[Value, ...] = ()
    keywords: dict[str, Value] = field(default_factory=dict)

    @property
    def receiver(self) -> Value:
        """The object whose method is called: ``channel`` of `channel.basic_ack()`."""
        return self.target.base if self.target.base is not None else Value()

    @property
    def name(self) -> str:
        """The last part of the called name: ``basic_ack`` of `channel.basic_ack()`."""
        return self.target.attr or self.target.ref.rpartition(".")[2] or self.target.text.rpartition(".")[2]

    @property
    def ref(self) -> str:
        """The dotted name of the called function, if it is outside the project."""
        return self.target.ref

    @property
    def tag(self) -> str:
        """The tag of the library object whose method is called."""
        return self.receiver.tag

    def argument(self, position: int, *names: str) -> Value | None:
        """The argument at ``position``, or by one of ``names``."""
        for name in names:
            if name in self.keywords:
                return self.keywords[name]
        return self.args[position] if 0 <= position < len(self.args) else None

    @property
    def source_text(self) -> str:
        """What is called, as the source has it; of a long one, the name only."""
        return ast.unparse(self.node.func) if len(self.target.text) < _MAX_SOURCE_TEXT_LENGTH else self.name

    def all_arguments(self) -> tuple[Value, ...]:
        return (*self.args, *self.keywords.values())


@dataclass(slots=True)
class CallFrame:
    """A function that is being walked: what it returned and yielded so far."""

    held_before: int
    """How many guards held when it began."""
    conditions_before: int
    """How many tests had been passed when it began."""
    returned: list[Value] = field(default_factory=list)
    yielded: list[Value] = field(default_factory=list)
    on_yield: Callable[[Value], bool] | None = None
    """Of a generator: walks through the caller's code with a value that is yielded. True once the caller needs no
    more of them."""


class CallWalker(ExpressionWalker):
    """Follows calls."""

    max_call_depth = MAX_CALL_DEPTH

    def reset(self, fuel: int) -> None:
        super().reset(fuel)
        self.active_functions: list[ast.AST] = []
        """Functions that are being walked. None is entered again, so recursion ends."""
        self.inert_functions: set[ast.AST] = set()
        """Functions that added no operation when they were walked, and return nothing that is known."""
        self.call_stack: list[CallFrame] = []
        """One frame for each function that is being walked, outermost first. Empty in a module's own code."""
        self.discarded_call: ast.expr | None = None
        """The call that is a statement by itself: its result is unused."""

    def call(self, node: ast.Call) -> Value:
        target = self.value(node.func)
        args = tuple(self.value(argument) for argument in node.args)
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
            tag = call.tag if FLUENT_METHOD.fullmatch(call.name) else ATTRIBUTES.get((call.tag, call.name), "")
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
        results = [
            self.invoke(candidate.function, call.args, call.keywords, call.node)
            for candidate in (candidates_of(method) if method is not None else ())
            if candidate.function is not None
        ]
        return join_values(results, self.text(target.text, "()")) if results else None

    def _interpret_unseen_call(self, call: Call) -> Value:
        """Interpret a call of unseen code: it may be work, and its value depends on its arguments."""
        arguments = call.all_arguments()
        text = self.text(call.target.text, "(", ",".join(argument.text for argument in arguments), ")")
        if call.name[:1].isupper() and not call.name.isupper():  # it makes an object
            return Value(
                text=text, base=call.target, fields=dict(call.keywords), taint=taints_of(*arguments) - {PAYLOAD}
            )
        guard = guards.guard_by_name(self, call)
        if guard is not None:
            return replace(guard, text=text)
        # `event.total()` only looks at the message; `book(event)` does something with it
        harmless = call.tag or MESSAGE in call.receiver.taint or call.ref.partition(".")[0] in OUTSIDE_PACKAGES
        if call.tag.startswith("aws.") and not call.name.startswith(_AWS_READ_PREFIXES):
            harmless = ""
        if not harmless and not error_handling.is_log(call):
            self.emit("call", call.node, text=call.source_text, key=Value(taint=taints_of(*arguments)))
        taint = taints_of(call.receiver, *arguments) - {PAYLOAD}
        return Value(text=text, base=call.target, taint=taint, origin=origins_of(call.receiver))

    # -- functions of the project

    def invoke(self, function: Function, args: tuple[Value, ...], keywords: dict[str, Value], node: ast.AST) -> Value:
        """Walk through a function as it is called here."""
        args = (*function.bound, *args)
        keywords = {**function.bound_names, **keywords}
        arguments = (*args, *keywords.values())
        # with functions among its arguments it may do something else each time
        plain_call = not self.muted and not any(argument.function or argument.cls for argument in arguments)
        if not self.can_enter(function) or (plain_call and function.node in self.inert_functions):
            return Value(text=self.text(function.qualname, "()"), taint=taints_of(*arguments) - {PAYLOAD})
        start = len(self.trace.ops)
        with self.under_guard(function.guard):
            result = self._invoke_through_decorators(function, args, keywords, node)
        if plain_call and len(self.trace.ops) == start and not result.origin and not result.is_known():
            self.inert_functions.add(function.node)
        return result

    def can_enter(self, function: Function) -> bool:
        """Whether a function can be walked here: it calls itself otherwise, or too many are being walked."""
        return function.node not in self.active_functions and len(self.active_functions) < self.max_call_depth

    def _invoke_through_decorators(
        self, function: Function, args: tuple[Value, ...], keywords: dict[str, Value], node: ast.AST
    ) -> Value:
        decorator_list = [] if isinstance(function.node, ast.Lambda) else function.node.decorator_list
        if function.layer >= len(decorator_list):
            return self._walk_function(function, args, keywords)
        undecorated = replace(function, layer=function.layer + 1, guard=None, bound=(), bound_names={})
        decorator = decorator_list[function.layer]
        with self.mute_trace(), self.in_scope(function.scope or Scope(function.module, owner=function.owner)):
            layer = decorators.effect_of_decorator(self, decorator)
        if layer.kind == "guard" and layer.guard is not None:
            with self.under_guard(layer.guard):
                return self._invoke_through_decorators(undecorated, args, keywords, node)
        if layer.kind == "tx":
            with self.in_transaction("block"):
                return self._invoke_through_decorators(undecorated, args, keywords, node)
        if layer.kind == "retry":
            with self.at_position(replace(self.position, retrying=True)):
                return self._invoke_through_decorators(undecorated, args, keywords, node)
        decorated = (Value(text=function.name, function=undecorated),)
        if layer.kind == "wrap" and layer.value is not None and layer.value.function is not None:
            with self.mute_trace():
                wrapper = self.invoke(layer.value.function, decorated, {}, node)
            if wrapper.function is not None and wrapper.function.node is not function.node:
                return self.invoke(wrapper.function, args, keywords, node)
        if layer.kind == "object" and layer.value is not None and layer.value.cls is not None:
            wrapper = self.instance_of(layer.value.cls, decorated, {}, function.name)
            method = self.member(wrapper, layer.value.cls, "__call__")
            if method is not None and method.function is not None:
                return self.invoke(method.function, args, keywords, node)
        results = []
        if layer.kind == "dispatch":
            variants = decorators.registered_variants(undecorated)
            results = [self.invoke(variant, args, keywords, node) for variant in variants]
        results.append(self._invoke_through_decorators(undecorated, args, keywords, node))
        return join_values(results, function.qualname)

    def _walk_function(self, function: Function, args: tuple[Value, ...], keywords: dict[str, Value]) -> Value:
        frame = CallFrame(len(self.held), len(self.conditions))
        with self.at_position(self.position.in_call(self.number(), function.qualname)), self.in_frame(function, frame):
            self.parameters(function, args, keywords)
            if isinstance(function.node, ast.Lambda):
                frame.returned.append(self.value(function.node.body))
            else:
                self.walk_block(function.node.body)
        held_inside = self.held[frame.held_before :]
        del self.held[frame.held_before :]
        # what is held because a duplicate raised holds for the caller too
        self.held += [held for held in held_inside if held.until == "raise"]
        text = self.text(function.qualname, "(", ",".join(argument.text for argument in args), ")")
        if frame.yielded:
            items = tuple(frame.yielded)
            return Value(text=text, tag="generator", items=items, taint=taints_of(*items), origin=origins_of(*items))
        if not frame.returned:
            return Value(text=text, literal=None)
        return self._apply_return_annotation(function, join_values(frame.returned, text), text)

    def _apply_return_annotation(self, function: Function, result: Value, text: str) -> Value:
        """What a function returns; by its annotation, where nothing else is known of it."""
        annotation = None if isinstance(function.node, ast.Lambda) or result.is_known() else function.node.returns
        if annotation is None:
            return result
        with self.mute_trace(), self.in_scope(Scope(function.module, owner=function.owner)):
            typed = self.value_of_annotation(annotation)
        return replace(typed, text=text, taint=result.taint, origin=result.origin) if typed.is_known() else result

    @contextmanager
    def in_frame(self, function: Function, frame: CallFrame) -> Iterator[None]:
        """Walk the code of ``function``, whose results go into ``frame``."""
        self.active_functions.append(function.node)
        self.call_stack.append(frame)
        with self.in_scope(Scope(function.module, function.scope, function.owner)):
            yield
        self.call_stack.pop()
        self.active_functions.pop()

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
        named = [*positional, *node.args.kwonlyargs]
        defaults = dict(
            zip(reversed([parameter.arg for parameter in positional]), reversed(node.args.defaults), strict=False)
        )
        for parameter, default in zip(node.args.kwonlyargs, node.args.kw_defaults, strict=True):
            if default is not None:
                defaults[parameter.arg] = default
        for position, parameter in enumerate(named):
            is_positional = position < min(len(args), len(positional))
            argument = args[position] if is_positional else keywords.get(parameter.arg)
            names[parameter.arg] = self._parameter(parameter, argument, defaults.get(parameter.arg), function)
        if node.args.vararg:
            items = args[len(positional) :]
            names[node.args.vararg.arg] = Value(
                text=node.args.vararg.arg,
                tag="tuple" if items else "",
                items=items,
                taint=taints_of(*items) or frozenset({MESSAGE}),
            )
        if node.args.kwarg:
            named_args = {parameter.arg for parameter in named}
            fields = {name: value for name, value in keywords.items() if name not in named_args}
            names[node.args.kwarg.arg] = Value(
                text=node.args.kwarg.arg,
                fields=fields or None,
                taint=taints_of(*fields.values()) or frozenset({MESSAGE}),
            )

    def _parameter(
        self, parameter: ast.arg, argument: Value | None, default: ast.expr | None, function: Function
    ) -> Value:
        """The value of a parameter: the argument, with the type that the annotation names where it has none itself.

        Where no argument is passed, the walk begins with this function, or its caller is out of sight. Then a parameter
        is a part of the message, unless it is a dependency or has a known default.
        """
        if argument is not None and (argument.is_known() or parameter.annotation is None):
            return argument
        value = Value(text=parameter.arg) if argument is None else argument
        default = default if argument is None else None
        with self.mute_trace(), self.in_scope(function.scope or Scope(function.module, owner=function.owner)):
            typed = self.resolve_dependency(default) if isinstance(default, ast.Call) else Value()
            if not typed.is_known() and parameter.annotation is not None:
                typed = self.value_of_annotation(parameter.annotation)
            if not typed.is_known() and default is not None and not isinstance(default, ast.Call):
                typed = self.value(default)
        if typed.is_known():
            return replace(typed, text=value.text, taint=value.taint or typed.taint, origin=value.origin)
        if argument is None:
            return message_parameter(parameter.arg, is_whole_body=parameter.arg in BODY_PARAMETERS)
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
        """Called where code makes ``callback`` a consumer."""

    def register_route(self, call: Call, view: Value) -> None:
        """Called where code makes ``view`` answer requests."""

    def register_router(self, call: Call, path: str) -> None:
        """Called where code mounts a router under ``path``."""

    # -- in the last part of the walk

    @abstractmethod
    def walk_block(self, body: list[ast.stmt]) -> Ending: ...


def _is_static(node: ast.AST) -> bool:
    decorators_of_node = getattr(node, "decorator_list", ())
    return any(isinstance(decorator, ast.Name) and decorator.id == "staticmethod" for decorator in decorators_of_node)


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
"""Each knows some libraries, and returns None for a call of any other. The first that knows a call interprets it."""
