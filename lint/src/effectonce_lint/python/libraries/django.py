"""What Django does behind a save: receivers of its signals, and the rows that its REST framework's serializers make."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING

from effectonce_lint.python.values import Function, Scope, Value

from . import orm_rows
from .message_parts import MESSAGE

if TYPE_CHECKING:
    from effectonce_lint.python.calls import Call, CallWalker
    from effectonce_lint.python.modules import ClassDefinition, Module

_SIGNALS = ("pre_save", "post_save")
_FILES = ("signals", "receivers", "handlers")
"""Where receivers stand, beside the models."""


def run_signal_receivers(
    walk: CallWalker, call: Call, model: ClassDefinition | None, row: Value, *, created: bool
) -> None:
    """Walk through what runs when ``row`` is saved: the receivers of the signals that Django sends then."""
    if model is None or walk.muted:
        return
    key = (model.module.path, f"receivers of {model.name}")
    if key not in walk.registries:
        walk.registries[key] = tuple(
            Value(text=each.name, function=each)
            for module in _modules_with_receivers(walk, model)
            for each in _receivers_in(walk, module, model)
        )
    # None, not False: that is how the walk knows which way `if created:` goes
    # and without an origin: that the row's state was set a moment ago is no check on it
    given = {"sender": Value(text=model.name, cls=model), "instance": replace(row, origin=())}
    given["created"] = Value(text="created") if created else Value(text="created", literal=None)
    for each in walk.registries[key]:
        assert each.function is not None
        walk.invoke(each.function, (), given, call.node)


def _modules_with_receivers(walk: CallWalker, model: ClassDefinition) -> Iterator[Module]:
    yield model.module
    for name in _FILES:
        path = walk.project.find_relative(model.module.directory, 1, name)
        module = walk.project.load(path) if path else None
        if module is not None:
            yield module


def _receivers_in(walk: CallWalker, module: Module, model: ClassDefinition) -> Iterator[Function]:
    """The functions of ``module`` that are told of saves of ``model``."""
    if not any(signal.encode() in module.content for signal in _SIGNALS):
        return
    for bindings in module.bindings.values():
        for binding in bindings:
            if isinstance(binding.node, ast.FunctionDef | ast.AsyncFunctionDef):
                for decorator in binding.node.decorator_list:
                    if isinstance(decorator, ast.Call) and _is_receiver(walk, module, decorator, model):
                        yield Function(binding.node, module, layer=len(binding.node.decorator_list))


def _is_receiver(walk: CallWalker, module: Module, decorator: ast.Call, model: ClassDefinition) -> bool:
    """Whether a decorator is `receiver(post_save, sender=Model)`."""
    with walk.quietly(), walk.in_scope(Scope(module)):
        if walk.value(decorator.func).ref != "django.dispatch.receiver" or not decorator.args:
            return False
        signals = walk.value(decorator.args[0])
        sender = next((walk.value(each.value) for each in decorator.keywords if each.arg == "sender"), Value())
    names = {each.ref.rpartition(".")[2] for each in (signals, *signals.items)}
    return bool(names & set(_SIGNALS)) and sender.cls is model


def save_serializer(walk: CallWalker, call: Call) -> Value | None:
    """`serializer.save()`: a new row, unless the serializer was given the one to change."""
    instance = call.receiver.instance
    if instance is None or call.name != "save" or call.target.function is not None:
        return None
    if not any(each.endswith("ModelSerializer") for each in walk.ancestry(instance.cls)):
        return None
    create = instance.cls.methods.get("create")
    given = instance.arguments or "instance" in instance.keywords
    if create is not None and not given:
        function = Function(create, instance.cls.module, owner=instance.cls, receiver=call.receiver)
        return walk.invoke(function, (Value(text="validated_data", taint=frozenset({MESSAGE})),), {}, call.node)
    model = _model_of(walk, instance.cls)
    name = model.name if model is not None else instance.cls.name.removesuffix("Serializer")
    if given:
        walk.emit("write", call.node, text=call.source_text, store="orm", location=name)
    else:  # a field that its table keeps unique is checked, and refused by the table
        unique = orm_rows.unique_fields(model) if model is not None else []
        fields = {each: Value(text=each, taint=frozenset({MESSAGE})) for each in unique}
        orm_rows.add_row(walk, call, name, fields, model, "creates a")
    return Value(text=f"{name}<row>", tag="orm.new")


def _model_of(walk: CallWalker, cls: ClassDefinition) -> ClassDefinition | None:
    """The model that the `Meta` of a serializer names."""
    for meta in cls.node.body:
        if isinstance(meta, ast.ClassDef) and meta.name == "Meta":
            for each in meta.body:
                if isinstance(each, ast.Assign) and getattr(each.targets[0], "id", "") == "model":
                    with walk.quietly(), walk.in_scope(Scope(cls.module)):
                        return walk.value(each.value).cls
    return None
