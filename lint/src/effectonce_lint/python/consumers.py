"""Which functions and loops of a module a message is delivered to."""

from __future__ import annotations

import ast
import re
from dataclasses import replace
from typing import Any

from effectonce_lint.findings import Place

from .calls import Call
from .handler_tables import imported_modules
from .libraries import brokers, guards
from .libraries.frameworks import (
    SIGNED,
    WEBHOOK,
    consumer_of_class,
    consumer_of_decorator,
    is_django_webhook,
    is_lambda,
    is_route,
)
from .libraries.object_types import to_snake_case
from .modules import ClassDefinition, Module
from .project import RECEIVES, Project
from .statements import StatementWalker
from .values import NOTHING, Consumer, Function, Operation, Scope, Trace, Value
from .walk_state import FuelExhausted

FUNCTION_FUEL = 8_000
"""How many expressions the scan for consumers may evaluate in one function."""
FILE_FUEL = 120_000
"""How many it may evaluate in one file."""
MAX_SCAN_DEPTH = 3
"""How many nested calls the scan follows: enough for a helper that opens a channel."""

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
"""What a function has to hold for a walk through it to find a registration, or a loop that receives."""
_RETRYING_CODE = re.compile(rb"retry|retries|attempt|backoff|range\(")


class ConsumerScanner(StatementWalker):
    """Finds the consumers of one module. ``settings`` is what its own code sets on an application's configuration."""

    def __init__(self, project: Project, module: Module) -> None:
        super().__init__(project, module, FUNCTION_FUEL)
        self.deepest = MAX_SCAN_DEPTH
        self.scanned = module
        self.found: list[Consumer] = []
        self.left = FILE_FUEL
        self.settings: dict[str, tuple[Value, Place]] = {}
        self._is_django = b"django" in module.content
        loops = {name for name, cls in module.classes.items() if RECEIVES.search(self._source(cls.node))}
        names = [re.escape(name).encode() for name in sorted(loops | project.receivers(module))]
        self._starts = re.compile(rb"\b(?:" + b"|".join(names) + rb")\b") if names else None

    def scan(self) -> list[Consumer]:
        for module in imported_modules(self, self.scanned):
            self._fill_tables(module)
        self._scan_function(None)
        self.settings = self.trace.settings
        for cls in self.scanned.classes.values():
            self._reset()
            try:
                self._scan_class(cls)
            except FuelExhausted:
                continue
        for function in self._all_functions():
            segment = self._source(function.node)
            if function.owner is None:
                self._reset()
                self._look_at_decorators(function)
            if _RECEIVING_CODE.search(segment) or (self._starts is not None and self._starts.search(segment)):
                self._scan_function(function)
            self._add_by_shape(function, segment)
        return _deduplicate(self.found)

    def _fill_tables(self, module: Module) -> None:
        """As an import does: decorators of ``module`` put its functions into the tables of the project's objects."""
        if b"\n@" not in module.content:
            return
        self._reset()
        for bindings in module.bindings.values():
            for node in (each.node for each in bindings):
                if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                    for decorator in node.decorator_list:
                        self._fill_table(Function(node, module), decorator)

    def _fill_table(self, function: Function, decorator: ast.expr) -> None:
        call = decorator.func if isinstance(decorator, ast.Call) else decorator
        if not isinstance(call, ast.Attribute):
            return
        try:
            with self.quietly(), self.in_scope(Scope(function.module)):
                if self.value(call.value).instance is not None:
                    self._apply_decorator(function, decorator)
        except FuelExhausted:
            return

    def _all_functions(self) -> list[Function]:
        out = _functions_of(self.scanned)
        for cls in self.scanned.classes.values():
            out += [Function(method, self.scanned, owner=cls) for method in cls.methods.values()]
        return out

    def _source(self, node: ast.AST) -> bytes:
        """The lines of a function or class, decorators included."""
        first = min([each.lineno for each in getattr(node, "decorator_list", ())], default=getattr(node, "lineno", 1))
        return b"".join(self.scanned.lines[first - 1 : getattr(node, "end_lineno", first)])

    def _add(self, kind: str, function: Function | None, *, at: Place | None = None, **more: Any) -> None:
        """Note a consumer; where it is a function, it stands at the function's name."""
        module = more.pop("module", None) or (function.module if function is not None else self.scanned)
        name = function.qualname if function is not None else "the module"
        if at is None:
            assert function is not None
            node = function.node
            at = module.place(node) if isinstance(node, ast.Lambda) else module.name_place(node)
        more.setdefault("registered_in", self.module)
        if function is not None:
            more.setdefault("guard", function.guard)
        self.found.append(Consumer(kind=kind, name=name, at=at, module=module, function=function, **more))

    # -- by what code does

    def _reset(self) -> None:
        """As if nothing had been walked yet."""
        self.trace = Trace()
        self.fuel = min(FUNCTION_FUEL, self.left)
        self.held, self.conditions, self.transactions = [], [], []
        self.serial = set()
        self.stack, self.active, self.unique_tries = [], [], []
        self.arms, self.tries, self.handlers, self.loops = (), (), (), ()
        self.frames, self.trail = (0,), ()
        self.muted = self.retrying = self.deferred = self.locks = 0
        self.scope = Scope(self.scanned)

    def _scan_function(self, function: Function | None, *, at: ClassDefinition | None = None) -> None:
        """Walk through one function, or the module's own code, and see what it registers and receives.

        A loop stands where it receives; one that is inherited, at the class that inherits it.
        """
        self._reset()
        try:
            if function is None:
                self.fuel = max(FUNCTION_FUEL, 4 * len(self.scanned.tree.body))
                self.block(self.scanned.tree.body)
            else:
                self.invoke(function, (), {}, function.node)
        except FuelExhausted:
            pass
        self.left -= FUNCTION_FUEL - max(self.fuel, 0)
        nearest: dict[str, Operation] = {}
        for op in self.trace.ops:
            if op.kind == "receive" and (op.store not in nearest or len(op.trail) < len(nearest[op.store].trail)):
                nearest[op.store] = op
        for family, op in nearest.items():
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
            only=frozenset({"EO402"}) if family == "saga" else NOTHING,
        )

    def register_route(self, call: Call, view: Value) -> None:
        path = "/" + (next((each.string for each in call.args if each.string is not None), "") or "").lstrip("/^")
        if not self.muted and view.function is not None and WEBHOOK.search(path):
            self._add_endpoint(view.function, path)

    def register_router(self, call: Call, path: str) -> None:
        """Register the routes of a router mounted under ``path`` as webhooks, if the path says that they are."""
        if self.muted or not call.node.args or not WEBHOOK.search(path):
            return
        name, module = self._router(call.node.args[0])
        for function in _functions_of(module) if module is not None else ():
            for each in getattr(function.node, "decorator_list", ()):
                match each:
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
                found = [self.project.load(path) for path in self.project.sources(self.module, binding)]
                return binding.name, next((each for each in found if each is not None), None)
        return name, self.module

    # -- by decorator

    def visit_definition(self, function: Function) -> None:
        """Look at the decorators of a nested function. `scan` visits those of the module and of its classes by name."""
        if self.stack and not self.muted and function.module is self.scanned:
            self._look_at_decorators(function)

    def _look_at_decorators(self, function: Function) -> None:
        for decorator in getattr(function.node, "decorator_list", ()):
            try:
                with self.quietly():
                    self._add_decorated(function, decorator)
                self._apply_decorator(function, decorator)
            except FuelExhausted:
                return

    def _apply_decorator(self, function: Function, decorator: ast.expr) -> None:
        """A decorator of the project may register what it is given: `@bus.on("orders")`."""
        with self.quietly():
            made = self.value(decorator)
        if made.function is not None and made.function.node is not function.node:
            self.invoke(made.function, (Value(text=function.name, function=function),), {}, decorator)

    def _add_decorated(self, function: Function, decorator: ast.expr) -> None:
        call = decorator if isinstance(decorator, ast.Call) else None
        target = self.value(call.func if call is not None else decorator)
        settings = {each.arg: self.value(each.value) for each in call.keywords if each.arg} if call is not None else {}
        family, kind = consumer_of_decorator(target, set(settings))
        if family:
            base = self._base_guard(settings.get("base"), function.node)
            bound = family == "celery" and "bind" in settings and settings["bind"].literal is True
            self._add(
                kind,
                function,
                family=family,
                tags=((0, "celery.self"),) if bound else (),
                settings=settings,
                registration=call,
                guard=base or guards.guard_of_framework(self, target, call, settings),
            )
        elif call is not None and is_route(target):
            self._add_route(function, target, call, settings)

    def _base_guard(self, base: Value | None, node: ast.AST) -> Operation | None:
        """`@app.task(base=QueueOnce)`: a class that makes a task run once."""
        if base is None:
            return None
        names = [base.cls.name, *self.ancestry(base.cls)] if base.cls is not None else [base.ref or base.text]
        return self._make_tool_guard(guards.guard_of_bases(names), node)

    def _make_tool_guard(self, name: str, node: ast.AST) -> Operation | None:
        return Operation("guard", self.scanned.place(node), text=name, store="tool", atomic=True) if name else None

    def _add_route(self, function: Function, target: Value, call: ast.Call, settings: dict[str, Value]) -> None:
        if target.attr in ("route", "api_route") or target.ref.endswith(".api_view"):
            methods = settings.get("methods") or (self.value(call.args[0]) if target.ref and call.args else None)
            names = [each.literal for each in methods.items] if methods is not None else []
            if not any(isinstance(name, str) and name.upper() in ("POST", "PUT", "PATCH") for name in names):
                return
        path = self.value(call.args[0]) if call.args else settings.get("path") or settings.get("rule") or Value()
        made_with = (target.base.fields if target.base is not None else None) or {}
        prefix = made_with.get("prefix") or made_with.get("url_prefix") or Value()
        self._add_endpoint(function, (prefix.string or "") + (path.string or ""))

    def _add_endpoint(self, function: Function, path: str) -> None:
        """A webhook is a consumer. Any other endpoint is none, but its dual writes are as bad."""
        module = function.module
        node = function.node if function.owner is None else function.owner.node
        segment = b"".join(module.lines[node.lineno - 1 : node.end_lineno])
        webhook = WEBHOOK.search(path) or WEBHOOK.search(to_snake_case(function.qualname)) or SIGNED.search(segment)
        middleware = b"IdempotencyMiddleware" in self.scanned.content + module.content
        tool = guards.guard_of_bases(self.ancestry(function.owner)) if function.owner is not None else ""
        self._add(
            "webhook" if webhook else "endpoint",
            function,
            family="webhook",
            guard=self._make_tool_guard("IdempotencyMiddleware" if middleware else tool, node),
            only=NOTHING if webhook else ENDPOINT_RULES,
        )

    # -- by class and by shape

    def _scan_class(self, cls: ClassDefinition) -> None:
        decorated = [method for method in cls.methods.values() if method.decorator_list]
        if decorated:
            receiver = self.instance_of(cls, (), {}, "self")
            with self.in_scope(Scope(self.scanned, owner=cls)):
                for method in decorated:
                    self._look_at_decorators(Function(method, self.scanned, owner=cls, receiver=receiver))
        if cls.node.bases and cls.methods.keys() & {"run", "perform", "post", "on_message", "create"}:
            self._add_derived(cls)
        self._scan_inherited(cls)
        functions = cls.attributes.get("functions")
        arq = b"arq" in self.scanned.content or cls.name == "WorkerSettings"
        if functions is not None and arq and isinstance(functions[0], ast.List | ast.Tuple):
            given = (self._arq_context(cls),)
            for each in functions[0].elts:
                inner = each.args[0] if isinstance(each, ast.Call) and each.args else each
                with self.quietly():
                    job = self.value(inner)
                    job = self.value_of_dotted_name(job.string) if job.string is not None else job
                if job.function is not None:
                    self._add("arq job", job.function, family="arq", given=given)

    def _arq_context(self, cls: ClassDefinition) -> Value:
        """What arq hands to each job, after the function that it calls at start-up has filled it."""
        context = Value(
            text="ctx", fields={"redis": Value(text="ctx['redis']", tag="redis")}, taint=frozenset({"message"})
        )
        startup = cls.attributes.get("on_startup", (None, None))[0]
        if startup is not None:
            with self.quietly():
                function = self.value(startup).function
                if function is not None:
                    self.invoke(function, (context,), {}, startup)
        return context

    def _scan_inherited(self, cls: ClassDefinition) -> None:
        """A loop, or a registration, that stands in a base class and works by what this one fills in."""
        seen = set(cls.methods)
        todo = [base.cls for base in self.bases(cls) if base.cls is not None] if seen else []
        for base in todo:
            for name, method in base.methods.items():
                segment = b"".join(base.module.lines[method.lineno - 1 : method.end_lineno])
                if name not in seen and _RECEIVING_CODE.search(segment):
                    receiver = self.instance_of(cls, (), {}, "self")
                    self._scan_function(Function(method, base.module, owner=cls, receiver=receiver), at=cls)
            seen |= set(base.methods)
            todo += [each.cls for each in self.bases(base) if each.cls is not None and each.cls not in todo]

    def _add_derived(self, cls: ClassDefinition) -> None:
        """A task, an actor or a webhook's view by what it derives from."""
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
                with self.quietly():
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
            if any(isinstance(each.value, ast.Call) for each in bindings):
                value = self.global_value(self.scanned, name)
                if value.instance is not None and value.instance.cls is cls:
                    return value
        return None

    def _add_by_shape(self, function: Function, segment: bytes) -> None:
        """What has no decorator of its own: a Lambda handler, a Django view, a function that retries by itself."""
        node = function.node
        names = [each.arg for each in (*node.args.posonlyargs, *node.args.args)]
        own = names[1:] if function.owner is not None and names[:1] == ["self"] else names
        if is_lambda(own, segment):
            if function.owner is not None:
                function = replace(function, receiver=self._module_instance(function.owner))
            self._add("Lambda handler", function, family="lambda", tags=((0, "lambda.event"),))
        elif function.owner is None and self._is_django and is_django_webhook(function.name, names, segment):
            self._add("webhook", function, family="webhook", tags=((0, "web.request"),))
        if b"dempoten" in segment and _RETRYING_CODE.search(segment):
            self._add("retried function", function, only=frozenset({"EO304"}))


def _functions_of(module: Module) -> list[Function]:
    return [
        Function(binding.node, module)
        for bindings in module.bindings.values()
        for binding in bindings
        if isinstance(binding.node, ast.FunctionDef | ast.AsyncFunctionDef)
    ]


def _settings_of(source: Value) -> dict[str, Value]:
    """What a consumer object was made with: keywords, or a dict of settings."""
    out = dict(source.fields or {})
    for each in source.items:
        out.update(each.fields or {})
    if source.base is not None and source.base.tag:
        out = {**_settings_of(source.base), **out}
    return out


def _deduplicate(found: list[Consumer]) -> list[Consumer]:
    """Each once: a webhook before a plain endpoint, one with settings before one without."""
    best: dict[tuple[object, ...], Consumer] = {}
    for each in found:
        closure = id(each.function.scope) if each.function is not None and each.function.scope is not None else 0
        key = (each.at.at, each.family if not each.only else "", each.name if each.receive is not None else "", closure)
        old = best.get(key)
        if old is None or (old.only and not each.only) or (not old.settings and each.settings):
            best[key] = each
    strict = {each.at.at for each in best.values() if not each.only}
    return [each for each in best.values() if not each.only or each.at.at not in strict]
