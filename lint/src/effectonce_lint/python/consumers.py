"""Finds the consumers of a module: the functions and loops that messages are delivered to."""

from __future__ import annotations

import ast
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

from effectonce_lint.coverage import Skip, checker_failure
from effectonce_lint.findings import Finding, Place

from .consumer_registrations import RegistrationWalker, place_of
from .consumer_trace import TOO_DEEP, TOO_LARGE
from .handler_tables import functions_of, imported_modules
from .libraries import brokers, guards
from .libraries.frameworks import (
    DECLARED,
    QUEUE_WORKER,
    consumer_of_class,
    handling_method,
    is_django_webhook,
    is_lambda,
)
from .modules import ClassDefinition, Module
from .project import RECEIVE_CALL, Project
from .taints import MESSAGE
from .values import DetectedConsumer, Function, Scope, TracedOperation, Value
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


class ConsumerScanner(RegistrationWalker):
    """Finds the consumers of one module."""

    max_call_depth = MAX_SCAN_DEPTH

    def __init__(self, project: Project, module: Module) -> None:
        super().__init__(project, module, FUNCTION_FUEL)
        self.settings: dict[str, tuple[Value, Place]] = {}
        """What the module's own code sets on an application's configuration."""
        self.skipped: list[Skip] = []
        """The functions and classes that were not searched to their end."""
        self.failures: list[Finding] = []
        """Those on which the search failed."""
        self._top = Place(module.path, 1, 1, 1, 2)
        """The beginning of the file: the place of what is said of it as a whole."""
        self._searched = ("the file", self._top)
        """What is searched now, and where it is."""
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
            with self._search(f"the decorators of `{os.path.basename(module.path)}`", self._top):
                self._fill_tables(module)
        with self._search("the module's own code", self._top):
            self._scan_function(None)
        self.settings = self.trace.settings
        for cls in self.scanned.classes.values():
            with self._search(f"the class `{cls.name}`", self.scanned.name_place(cls.node)):
                self._scan_class(cls)
        for function in self._all_functions():
            source = self._source(function.node)
            subject, place = f"the function `{function.qualname}`", place_of(function)
            if function.owner is None:
                with self._search(subject, place):
                    self.visit_decorators(function)
            with self._search(subject, place):
                if _RECEIVING_CODE.search(source) or (self._receiver_names and self._receiver_names.search(source)):
                    self._scan_function(function)
                self._add_by_shape(function, source)
        return _deduplicate(self.consumers)

    @contextmanager
    def _search(self, subject: str, place: Place) -> Iterator[None]:
        """Search one function or class for consumers. Whatever breaks this off is kept, and the next is searched."""
        self._searched = (subject, place) if self._file_fuel > 0 else ("the rest of the file", self._top)
        self._start_walk()
        try:
            yield
        except FuelExhausted:
            self._skip(TOO_LARGE)
        except RecursionError:
            self._skip(TOO_DEEP)
        except Exception as error:  # a defect of the checker must not hide the other consumers
            self.failures.append(checker_failure(subject, place, error))

    def _start_walk(self) -> None:
        """Begin the walk through the next function, with the fuel that one function gets."""
        self.reset(min(FUNCTION_FUEL, self._file_fuel))

    def _skip(self, reason: str) -> None:
        """Keep that what is searched now was not searched to its end."""
        subject, place = self._searched
        skip = Skip(subject=subject, reason=reason, place=place)
        if skip not in self.skipped:
            self.skipped.append(skip)

    def _fill_tables(self, module: Module) -> None:
        """Fill the tables of the project's objects with the functions that decorators of ``module`` register."""
        if b"\n@" not in module.content:
            return
        for function in functions_of(module):
            for decorator in getattr(function.node, "decorator_list", ()):
                self._fill_table(function, decorator)

    def _fill_table(self, function: Function, decorator: ast.expr) -> None:
        target = decorator.func if isinstance(decorator, ast.Call) else decorator
        if not isinstance(target, ast.Attribute):
            return
        with self.mute_trace(), self.in_scope(Scope(function.module)):
            if self.value(target.value).instance is not None:
                self.apply_decorator(function, decorator)

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

    # -- by what code does

    def _scan_function(self, function: Function | None, *, at: ClassDefinition | None = None) -> None:
        """Walk through one function, or the module's own code, and add what it registers and the loops that receive.

        The place of a loop is where it receives; of one that is inherited, the class ``at`` that inherits it.
        """
        self._start_walk()
        if function is None:
            self.fuel = max(FUNCTION_FUEL, _FUEL_PER_STATEMENT * len(self.scanned.tree.body))
        granted_fuel = self.fuel
        try:
            if function is None:
                self.walk_block(self.scanned.tree.body)
            else:
                self.invoke(function, (), {}, function.node)
        except FuelExhausted:
            self._skip(TOO_LARGE)  # the registrations and loops so far count
        self._file_fuel -= granted_fuel - max(self.fuel, 0)
        receives: dict[str, TracedOperation] = {}  # by family, the one that the fewest calls lead to
        for op in self.trace.ops:
            if op.kind == "receive" and (op.family not in receives or len(op.trail) < len(receives[op.family].trail)):
                receives[op.family] = op
        for family, op in receives.items():
            source = op.key or Value()
            settings = {**_settings_of(source.base or source), **(source.fields or {})}
            call = op.node if isinstance(op.node, ast.Call) else None
            self.add(
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

    # -- by class and by shape

    def _scan_class(self, cls: ClassDefinition) -> None:
        decorated = [method for method in cls.methods.values() if method.decorator_list]
        if decorated:
            receiver = self.instance_of(cls, (), {}, "self")
            with self.in_scope(Scope(self.scanned, owner=cls)):
                for method in decorated:
                    self.visit_decorators(Function(method, self.scanned, owner=cls, receiver=receiver))
        self._add_by_declared_base(cls)
        self._add_by_abstract_base(cls)
        if cls.node.bases and cls.methods.keys() & {"run", "_run", "perform", "post", "on_message", "create"}:
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
                self.add("arq job", job.function, family="arq", first_arguments=(context,))

    def _arq_context(self, cls: ClassDefinition) -> Value:
        """The ``ctx`` that arq passes to each job, as the function ``on_startup`` has filled it."""
        context = Value(
            text="ctx", fields={"redis": Value(text="ctx['redis']", tag="redis")}, taint=frozenset({MESSAGE})
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

    def _add_by_declared_base(self, cls: ClassDefinition) -> None:
        """Add the method that the project declares to handle messages in classes that derive from a base."""
        declared = self.project.declared
        if not declared.consumers or not cls.node.bases:
            return
        bases = [base for ancestor in self.lineage(cls) for base in self.bases(ancestor)]
        if name := declared.handling_method(bases, cls.methods):
            receiver = self.instance_of(cls, (), {}, "self")
            family, kind = DECLARED
            self.add(kind, Function(cls.methods[name], self.scanned, owner=cls, receiver=receiver), family=family)

    def _add_by_abstract_base(self, cls: ClassDefinition) -> None:
        """Add the method that a base class of the project, such as a `QueueWorker`, hands its messages to."""
        if not cls.methods or not any(handling_method(frozenset((name,))) for name in cls.methods):
            return
        bases = [base for base in self.lineage(cls) if base is not cls and QUEUE_WORKER.search(base.name)]
        abstract = frozenset().union(*(base.abstract_methods for base in bases))
        name = handling_method(abstract & cls.methods.keys())
        if name and name not in cls.abstract_methods:
            receiver = self.instance_of(cls, (), {}, "self")
            function = Function(cls.methods[name], self.scanned, owner=cls, receiver=receiver)
            self.add("consumer", function, family="queue")

    def _add_by_base_class(self, cls: ClassDefinition) -> None:
        """Add a task, an actor or a webhook's view that is one by its base class."""
        ancestors = self.ancestry(cls)
        family, kind, name = consumer_of_class(ancestors, set(cls.methods))
        if not family:
            return
        receiver = self.instance_of(cls, (), {}, "self")
        function = Function(cls.methods[name], self.scanned, owner=cls, receiver=receiver)
        if family == "webhook":
            self.add_endpoint(function, "")
            return
        settings = {}
        for key, (value, _) in cls.attributes.items():
            if value is not None:
                with self.mute_trace():
                    settings[key] = self.value(value)
        self.add(
            kind,
            function,
            family=family,
            settings=settings,
            guard=self.make_tool_guard(guards.guard_of_bases(ancestors), cls.node),
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
            self.add("Lambda handler", function, family="lambda", tags=((0, "lambda.event"),))
        elif function.owner is None and self._is_django and is_django_webhook(function.name, names, source):
            self.add("webhook", function, family="webhook", tags=((0, "web.request"),))
        if b"dempoten" in source and _RETRYING_CODE.search(source):
            self.add("retried function", function, only_rules=frozenset({"EO304"}))


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
