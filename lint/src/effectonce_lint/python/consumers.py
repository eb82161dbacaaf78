"""Finds the consumers of a module: the functions and loops that messages are delivered to."""

from __future__ import annotations

import ast
import re
from dataclasses import replace
from typing import Any

from effectonce_lint.findings import Place

from .calls import Call
from .handler_tables import functions_of, imported_modules
from .libraries import brokers, guards
from .libraries.frameworks import (
    SIGNATURE_CHECK,
    WEBHOOK_NAME,
    consumer_of_class,
    consumer_of_decorator,
    is_django_webhook,
    is_lambda,
    is_route,
)
from .libraries.object_types import to_snake_case
from .modules import ClassDefinition, Module
from .project import RECEIVE_CALL, Project
from .statements import StatementWalker
from .values import EMPTY_SET, DetectedConsumer, Function, Scope, TracedOperation, Value
from .walk_state import FuelExhausted

FUNCTION_FUEL = 8_000
"""How many expressions the scan for consumers may evaluate in one function."""
FILE_FUEL = 120_000
"""How many it may evaluate in one file."""
MAX_SCAN_DEPTH = 3
"""How many nested calls the scan follows: enough for a helper that opens a channel."""
_FUEL_PER_STATEMENT = 4
"""How many expressions it may evaluate in the module's own code for each of its statements: few, as most define
something."""

ENDPOINT_RULES = frozenset({"EO401"})
"""The rules for an endpoint that is not a webhook. One that checks for duplicates gets the rules about guards, too."""
_RECEIVING_CODE = re.compile(
    rb"basic_consume|\bconsume\(|\.poll\(|\.getone\(|\.getmany\(|receive_message|subscribe\(|xread|xautoclaim|brpop|blpop"
    rb"|blmove|enqueue|next_msg|\.fetch\(|\.iterator\(|\.receive\(|add_url_rule|add_api_route|Consumer\(|on_message"
    rb"|\.listen\(|get_message|process_partial_response|\.pull\(|\n\s+@|\.task\(|register_task|\.register\(|compensat"
    rb"|\.(?:subscriber|actor)\(|shared_task\(|basic_get|\bpath\(|\bRoute\(|web\.post\(|add_(?:route|post|resource)\(|include_router|register_blueprint|xack|delete_message|complete_message|\.ack\("
    rb"|(?:Consumer|Worker|Listener|Subscriber|Poller|Receiver|Dispatcher|Bus)\w*\("
    rb"|\basync for\b"
    rb"|\bfor\s[^\n]*\sin\s[^\n]*(?:consumer|kafka|broker|receiver|messages?|queue|subscri|stream|events?|records|iterator|listen\w*"
    rb"|\bc\b|\bit\b)\b"
)
"""Code without any of these has no registration and no loop that receives, so the scan need not walk through it."""
_RETRYING_CODE = re.compile(rb"retry|retries|attempt|backoff|range\(")
"""Code without any of these does not call again what failed."""


class ConsumerScanner(StatementWalker):
    """Finds the consumers of one module."""

    max_call_depth = MAX_SCAN_DEPTH

    def __init__(self, project: Project, module: Module) -> None:
        super().__init__(project, module, FUNCTION_FUEL)
        self.scanned = module
        self.consumers: list[DetectedConsumer] = []
        self.settings: dict[str, tuple[Value, Place]] = {}
        """What the module's own code sets on an application's configuration."""
        self._file_fuel = FILE_FUEL
        """How many expressions may still be evaluated in this file."""
        self._is_django = b"django" in module.content
        receiving_classes = {
            name for name, cls in module.classes.items() if RECEIVE_CALL.search(self._source(cls.node))
        }
        names = [re.escape(name).encode() for name in sorted(receiving_classes | project.receivers(module))]
        self._receiver_names = re.compile(rb"\b(?:" + b"|".join(names) + rb")\b") if names else None
        """Finds the names of classes and imports that hold a receiving loop: code that mentions one may start it."""

    def scan(self) -> list[DetectedConsumer]:
        """The consumers that the module defines or registers."""
        for module in imported_modules(self, self.scanned):
            self._fill_tables(module)
        self._scan_function(None)
        self.settings = self.trace.settings
        for cls in self.scanned.classes.values():
            self._start_walk()
            try:
                self._scan_class(cls)
            except FuelExhausted:
                continue
        for function in self._all_functions():
            source = self._source(function.node)
            if function.owner is None:
                self._start_walk()
                self._visit_decorators(function)
            if _RECEIVING_CODE.search(source) or (self._receiver_names and self._receiver_names.search(source)):
                self._scan_function(function)
            self._add_by_shape(function, source)
        return _deduplicate(self.consumers)

    def _start_walk(self) -> None:
        """Begin the walk through the next function, with the fuel that one function gets."""
        self.reset(min(FUNCTION_FUEL, self._file_fuel))

    def _fill_tables(self, module: Module) -> None:
        """Fill the tables of the project's objects with the functions that decorators of ``module`` register."""
        if b"\n@" not in module.content:
            return
        self._start_walk()
        for function in functions_of(module):
            for decorator in getattr(function.node, "decorator_list", ()):
                self._fill_table(function, decorator)

    def _fill_table(self, function: Function, decorator: ast.expr) -> None:
        target = decorator.func if isinstance(decorator, ast.Call) else decorator
        if not isinstance(target, ast.Attribute):
            return
        try:
            with self.mute_trace(), self.in_scope(Scope(function.module)):
                if self.value(target.value).instance is not None:
                    self._apply_decorator(function, decorator)
        except FuelExhausted:
            return

    def _all_functions(self) -> list[Function]:
        functions = functions_of(self.scanned)
        for cls in self.scanned.classes.values():
            functions += [Function(method, self.scanned, owner=cls) for method in cls.methods.values()]
        return functions

    def _source(self, node: ast.AST) -> bytes:
        """The lines of a function or class, decorators included."""
        decorators = getattr(node, "decorator_list", ())
        first = min([decorator.lineno for decorator in decorators], default=getattr(node, "lineno", 1))
        return b"".join(self.scanned.lines[first - 1 : getattr(node, "end_lineno", first)])

    def _add(self, kind: str, function: Function | None, *, at: Place | None = None, **fields: Any) -> None:
        """Add a consumer to those of the module. Its place is ``at``, or the function's name."""
        module = fields.pop("module", None) or (function.module if function is not None else self.scanned)
        name = function.qualname if function is not None else "the module"
        if at is None:
            assert function is not None
            node = function.node
            at = module.place(node) if isinstance(node, ast.Lambda) else module.name_place(node)
        fields.setdefault("registered_in", self.module)
        if function is not None:
            fields.setdefault("guard", function.guard)
        self.consumers.append(DetectedConsumer(kind=kind, name=name, at=at, module=module, function=function, **fields))

    # -- by what code does

    def _scan_function(self, function: Function | None, *, at: ClassDefinition | None = None) -> None:
        """Walk through one function, or the module's own code, and add what it registers and the loops that receive.

        The place of a loop is where it receives; of one that is inherited, the class ``at`` that inherits it.
        """
        self._start_walk()
        try:
            if function is None:
                self.fuel = max(FUNCTION_FUEL, _FUEL_PER_STATEMENT * len(self.scanned.tree.body))
                self.walk_block(self.scanned.tree.body)
            else:
                self.invoke(function, (), {}, function.node)
        except FuelExhausted:
            pass
        self._file_fuel -= FUNCTION_FUEL - max(self.fuel, 0)
        receives: dict[str, TracedOperation] = {}  # by family, the one that the fewest calls lead to
        for op in self.trace.ops:
            if op.kind == "receive" and (op.store not in receives or len(op.trail) < len(receives[op.store].trail)):
                receives[op.store] = op
        for family, op in receives.items():
            source = op.key or Value()
            settings = {**_settings_of(source.base or source), **(source.fields or {})}
            call = op.node if isinstance(op.node, ast.Call) else None
            self._add(
                brokers.KINDS.get(family, "loop"),
                function,
                module=at.module if at is not None else None,
                at=op.at if at is None else at.module.name_place(at.node),
                acks="explicit",
                family=family,
                receive=op.at,
                settings=settings,
                registration=call,
                registered_in=op.module,
            )

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
        self._add(
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
            self._add_endpoint(view.function, path)

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
                            self._add_endpoint(function, path)

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
            self._visit_decorators(function)

    def _visit_decorators(self, function: Function) -> None:
        for decorator in getattr(function.node, "decorator_list", ()):
            try:
                with self.mute_trace():
                    self._add_decorated(function, decorator)
                self._apply_decorator(function, decorator)
            except FuelExhausted:
                return

    def _apply_decorator(self, function: Function, decorator: ast.expr) -> None:
        """Call a decorator of the project with its function, which it may register: `@bus.on("orders")`."""
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
        if family:
            base_guard = self._base_guard(settings.get("base"), function.node)
            bound = family == "celery" and "bind" in settings and settings["bind"].literal is True
            self._add(
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
        return self._make_tool_guard(guards.guard_of_bases(names), node)

    def _make_tool_guard(self, name: str, node: ast.AST) -> TracedOperation | None:
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
        self._add_endpoint(function, (prefix.string or "") + (path.string or ""))

    def _add_endpoint(self, function: Function, path: str) -> None:
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
        self._add(
            "webhook" if is_webhook else "endpoint",
            function,
            family="webhook",
            guard=self._make_tool_guard("IdempotencyMiddleware" if has_middleware else base_guard, node),
            only_rules=EMPTY_SET if is_webhook else ENDPOINT_RULES,
        )

    # -- by class and by shape

    def _scan_class(self, cls: ClassDefinition) -> None:
        decorated = [method for method in cls.methods.values() if method.decorator_list]
        if decorated:
            receiver = self.instance_of(cls, (), {}, "self")
            with self.in_scope(Scope(self.scanned, owner=cls)):
                for method in decorated:
                    self._visit_decorators(Function(method, self.scanned, owner=cls, receiver=receiver))
        if cls.node.bases and cls.methods.keys() & {"run", "perform", "post", "on_message", "create"}:
            self._add_by_base_class(cls)
        self._scan_inherited_methods(cls)
        if b"arq" in self.scanned.content or cls.name == "WorkerSettings":
            self._add_arq_jobs(cls)

    def _add_arq_jobs(self, cls: ClassDefinition) -> None:
        """Add the functions of arq's `WorkerSettings.functions`."""
        functions, _ = cls.attributes.get("functions", (None, None))
        if not isinstance(functions, ast.List | ast.Tuple):
            return
        context = self._arq_context(cls)
        for entry in functions.elts:
            named = entry.args[0] if isinstance(entry, ast.Call) and entry.args else entry  # `func(send, timeout=60)`
            with self.mute_trace():
                job = self.value(named)
                job = self.value_of_dotted_name(job.string) if job.string is not None else job
            if job.function is not None:
                self._add("arq job", job.function, family="arq", first_arguments=(context,))

    def _arq_context(self, cls: ClassDefinition) -> Value:
        """The ``ctx`` that arq passes to each job, as the function ``on_startup`` has filled it."""
        context = Value(
            text="ctx", fields={"redis": Value(text="ctx['redis']", tag="redis")}, taint=frozenset({"message"})
        )
        startup = cls.attributes.get("on_startup", (None, None))[0]
        if startup is not None:
            with self.mute_trace():
                function = self.value(startup).function
                if function is not None:
                    self.invoke(function, (context,), {}, startup)
        return context

    def _scan_inherited_methods(self, cls: ClassDefinition) -> None:
        """Scan the methods of base classes as methods of ``cls``: a loop there may call what this class fills in."""
        overridden = set(cls.methods)
        todo = [base.cls for base in self.bases(cls) if base.cls is not None] if overridden else []
        for base in todo:
            for name, method in base.methods.items():
                source = b"".join(base.module.lines[method.lineno - 1 : method.end_lineno])
                if name not in overridden and _RECEIVING_CODE.search(source):
                    receiver = self.instance_of(cls, (), {}, "self")
                    self._scan_function(Function(method, base.module, owner=cls, receiver=receiver), at=cls)
            overridden |= set(base.methods)
            todo += [further.cls for further in self.bases(base) if further.cls is not None and further.cls not in todo]

    def _add_by_base_class(self, cls: ClassDefinition) -> None:
        """Add a task, an actor or a webhook's view that is one by its base class."""
        ancestors = self.ancestry(cls)
        family, kind, name = consumer_of_class(ancestors, set(cls.methods))
        if not family:
            return
        receiver = self.instance_of(cls, (), {}, "self")
        function = Function(cls.methods[name], self.scanned, owner=cls, receiver=receiver)
        if family == "webhook":
            self._add_endpoint(function, "")
            return
        settings = {}
        for key, (value, _) in cls.attributes.items():
            if value is not None:
                with self.mute_trace():
                    settings[key] = self.value(value)
        self._add(
            kind,
            function,
            family=family,
            settings=settings,
            guard=self._make_tool_guard(guards.guard_of_bases(ancestors), cls.node),
        )

    def _module_instance(self, cls: ClassDefinition) -> Value | None:
        """The object of ``cls`` that the module makes: `handler = Handler(Gateway())`."""
        for name, bindings in self.scanned.bindings.items():
            if any(isinstance(binding.value, ast.Call) for binding in bindings):
                value = self.global_value(self.scanned, name)
                if value.instance is not None and value.instance.cls is cls:
                    return value
        return None

    def _add_by_shape(self, function: Function, source: bytes) -> None:
        """Add what has no decorator: a Lambda handler, a Django view, a function that retries by itself."""
        node = function.node
        names = [parameter.arg for parameter in (*node.args.posonlyargs, *node.args.args)]
        names_without_self = names[1:] if function.owner is not None and names[:1] == ["self"] else names
        if is_lambda(names_without_self, source):
            if function.owner is not None:
                function = replace(function, receiver=self._module_instance(function.owner))
            self._add("Lambda handler", function, family="lambda", tags=((0, "lambda.event"),))
        elif function.owner is None and self._is_django and is_django_webhook(function.name, names, source):
            self._add("webhook", function, family="webhook", tags=((0, "web.request"),))
        if b"dempoten" in source and _RETRYING_CODE.search(source):
            self._add("retried function", function, only_rules=frozenset({"EO304"}))


def _settings_of(source: Value) -> dict[str, Value]:
    """The settings of a consumer object: keywords, or dicts of settings, that it was made with."""
    settings = dict(source.fields or {})
    for argument in source.items:
        settings.update(argument.fields or {})
    if source.base is not None and source.base.tag:
        settings = {**_settings_of(source.base), **settings}
    return settings


def _deduplicate(consumers: list[DetectedConsumer]) -> list[DetectedConsumer]:
    """Each consumer once: a webhook rather than a plain endpoint, one with settings rather than one without."""
    best: dict[tuple[object, ...], DetectedConsumer] = {}
    for consumer in consumers:
        function, is_endpoint = consumer.function, bool(consumer.only_rules)
        key = (
            consumer.at.start,
            "" if is_endpoint else consumer.family,
            consumer.name if consumer.receive is not None else "",
            id(function.scope) if function is not None and function.scope is not None else 0,
        )
        other = best.get(key)
        if other is None or (other.only_rules and not is_endpoint) or (not other.settings and consumer.settings):
            best[key] = consumer
    full_places = {consumer.at.start for consumer in best.values() if not consumer.only_rules}
    return [consumer for consumer in best.values() if not consumer.only_rules or consumer.at.start not in full_places]
