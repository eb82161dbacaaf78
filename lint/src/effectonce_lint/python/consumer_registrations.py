"""Adds the consumers that code registers: by a decorator, a call, a route."""

from __future__ import annotations

import ast
from dataclasses import replace
from typing import Any

from effectonce_lint.findings import Place

from .calls import Call
from .handler_tables import functions_of
from .libraries import guards
from .libraries.frameworks import BY_REF, DECLARED, SIGNATURE_CHECK, WEBHOOK_NAME, consumer_of_decorator, is_route
from .libraries.object_types import to_snake_case
from .modules import Module
from .project import Project
from .statements import StatementWalker
from .values import EMPTY_SET, DetectedConsumer, Function, TracedOperation, Value

ENDPOINT_RULES = frozenset({"EO401"})
"""The rules for an endpoint that is not a webhook. One that checks for duplicates gets the rules about guards, too."""


class RegistrationWalker(StatementWalker):
    """Walks code for its registrations."""

    def __init__(self, project: Project, module: Module, fuel: int) -> None:
        super().__init__(project, module, fuel)
        self.scanned = module
        self.consumers: list[DetectedConsumer] = []

    def add(self, kind: str, function: Function | None, *, at: Place | None = None, **fields: Any) -> None:
        """Add a consumer to those of the module. Its place is ``at``, or the function's name."""
        module = fields.pop("module", None) or (function.module if function is not None else self.scanned)
        name = function.qualname if function is not None else "the module"
        if at is None:
            assert function is not None
            at = place_of(function)
        fields.setdefault("registered_in", self.module)
        if function is not None:
            fields.setdefault("guard", function.guard)
        self.consumers.append(DetectedConsumer(kind=kind, name=name, at=at, module=module, function=function, **fields))

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
        if callback.function is None or self.muted:
            return
        self.add(
            kind,
            callback.function,
            acks=acks,
            family=family,
            tags=tags,
            settings=dict(call.keywords) if call is not None else {},
            registration=call.node if call is not None else None,
            only_rules=frozenset({"EO402"}) if family == "saga" else EMPTY_SET,
        )

    def register_route(self, call: Call, view: Value) -> None:
        strings = [argument.string for argument in call.args if argument.string is not None]
        path = "/" + (strings[0] if strings else "").lstrip("/^")
        if not self.muted and view.function is not None and WEBHOOK_NAME.search(path):
            self.add_endpoint(view.function, path)

    def register_router(self, call: Call, path: str) -> None:
        """Register the routes of a router mounted under ``path`` as webhooks, if the path says that they are."""
        if self.muted or not call.node.args or not WEBHOOK_NAME.search(path):
            return
        name, module = self._router(call.node.args[0])
        for function in functions_of(module) if module is not None else ():
            for decorator in getattr(function.node, "decorator_list", ()):
                match decorator:
                    case ast.Call(func=ast.Attribute(value=ast.Name(id=router), attr="post" | "put" | "route")):
                        if router == name:
                            self.add_endpoint(function, path)

    def _router(self, node: ast.expr) -> tuple[str, Module | None]:
        """The name of a router, in the module that makes it."""
        if isinstance(node, ast.Attribute):
            return node.attr, self.value(node.value).module
        name = node.id if isinstance(node, ast.Name) else ""
        for binding in self.module.bindings.get(name, ()):
            if binding.kind == "from":
                modules = [self.project.load(path) for path in self.project.sources(self.module, binding)]
                return binding.name, next((module for module in modules if module is not None), None)
        return name, self.module

    # -- by decorator

    def visit_definition(self, function: Function) -> None:
        """Look at the decorators of a nested function. `scan` visits those of the module and of its classes by name."""
        if self.call_stack and not self.muted and function.module is self.scanned:
            self.visit_decorators(function)

    def visit_decorators(self, function: Function) -> None:
        for position, decorator in enumerate(getattr(function.node, "decorator_list", ())):
            registered_before = len(self.consumers)
            with self.mute_trace():
                self._add_decorated(function, decorator)
            self.apply_decorator(replace(function, layer=position + 1), decorator)
            for consumer in self.consumers[registered_before:]:
                if consumer.function is not None and consumer.function.scope is not None:  # a wrapper of the function
                    consumer.name, consumer.at, consumer.module = function.qualname, place_of(function), function.module
            if len(self.consumers) == registered_before:
                self.visit_unrecognized(function, decorator)

    def visit_unrecognized(self, function: Function, decorator: ast.expr) -> None:
        """Called for each decorator that made no consumer."""

    def apply_decorator(self, function: Function, decorator: ast.expr) -> None:
        """Call a decorator of the project with its function, which it may register: `@bus.on("orders")`.

        Of the function, this decorator and those before it are not applied again when the walk comes to it.
        """
        with self.mute_trace():
            applied = self.value(decorator).function
        if applied is not None and applied.node is not function.node:
            self.invoke(applied, (Value(text=function.name, function=function),), {}, decorator)

    def _add_decorated(self, function: Function, decorator: ast.expr) -> None:
        call = decorator if isinstance(decorator, ast.Call) else None
        target = self.value(call.func if call is not None else decorator)
        keywords = call.keywords if call is not None else []
        settings = {keyword.arg: self.value(keyword.value) for keyword in keywords if keyword.arg}
        family, kind = consumer_of_decorator(target, set(settings))
        if not family and target.cls is not None:
            names = self.ancestry(target.cls)
            family, kind = next((BY_REF[name] for name in names if name in BY_REF), ("", ""))
        if not family and self.project.declared.declares_consumer(target):
            family, kind = DECLARED
        if family:
            base_guard = self._base_guard(settings.get("base"), function.node)
            bound = family == "celery" and "bind" in settings and settings["bind"].literal is True
            self.add(
                kind,
                function,
                family=family,
                tags=((0, "celery.self"),) if bound else (),
                settings=settings,
                registration=call,
                guard=base_guard or guards.guard_of_framework(self, target, call, settings),
            )
        elif call is not None and is_route(target):
            self._add_route(function, target, call, settings)

    def _base_guard(self, base: Value | None, node: ast.AST) -> TracedOperation | None:
        """The guard of `@app.task(base=QueueOnce)`, a class that makes a task run once."""
        if base is None:
            return None
        names = [base.cls.name, *self.ancestry(base.cls)] if base.cls is not None else [base.ref or base.text]
        return self.make_tool_guard(guards.guard_of_bases(names), node)

    def make_tool_guard(self, name: str, node: ast.AST) -> TracedOperation | None:
        return (
            TracedOperation("guard", self.scanned.place(node), text=name, store="tool", atomic=True) if name else None
        )

    def _add_route(self, function: Function, target: Value, call: ast.Call, settings: dict[str, Value]) -> None:
        if target.attr in ("route", "api_route") or target.ref.endswith(".api_view"):
            methods = settings.get("methods") or (self.value(call.args[0]) if target.ref and call.args else None)
            names = [method.literal for method in methods.items] if methods is not None else []
            if not any(isinstance(name, str) and name.upper() in ("POST", "PUT", "PATCH") for name in names):
                return
        path = self.value(call.args[0]) if call.args else settings.get("path") or settings.get("rule") or Value()
        router_settings = (target.base.fields if target.base is not None else None) or {}
        prefix = router_settings.get("prefix") or router_settings.get("url_prefix") or Value()
        self.add_endpoint(function, (prefix.string or "") + (path.string or ""))

    def add_endpoint(self, function: Function, path: str) -> None:
        """Add a webhook, which is a consumer, or another endpoint, whose dual writes do the same harm."""
        module = function.module
        node = function.node if function.owner is None else function.owner.node
        source = b"".join(module.lines[node.lineno - 1 : node.end_lineno])
        is_webhook = (
            WEBHOOK_NAME.search(path)
            or WEBHOOK_NAME.search(to_snake_case(function.qualname))
            or SIGNATURE_CHECK.search(source)
        )
        has_middleware = b"IdempotencyMiddleware" in self.scanned.content + module.content
        base_guard = guards.guard_of_bases(self.ancestry(function.owner)) if function.owner is not None else ""
        self.add(
            "webhook" if is_webhook else "endpoint",
            function,
            family="webhook",
            guard=self.make_tool_guard("IdempotencyMiddleware" if has_middleware else base_guard, node),
            only_rules=EMPTY_SET if is_webhook else ENDPOINT_RULES,
        )


def place_of(function: Function) -> Place:
    """The name of a function; of a lambda, the whole."""
    node, module = function.node, function.module
    return module.place(node) if isinstance(node, ast.Lambda) else module.name_place(node)
