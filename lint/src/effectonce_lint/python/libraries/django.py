"""What Django runs when a row is saved: the receivers of its signals, and the serializers of its REST framework."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING

from effectonce_lint.python.taints import MESSAGE
from effectonce_lint.python.values import Function, Scope, Value

from . import orm_rows

if TYPE_CHECKING:
    from effectonce_lint.python.calls import Call, CallWalker
    from effectonce_lint.python.modules import ClassDefinition, Module

_SIGNALS = ("pre_save", "post_save")
_RECEIVER_MODULES = ("signals", "receivers", "handlers")
"""The usual modules for receivers, next to the models."""


def run_signal_receivers(
    walk: CallWalker, call: Call, model: ClassDefinition | None, row: Value, *, created: bool
) -> None:
    """Walk through the receivers of the signals that Django sends when it saves ``row``."""
    if model is None or walk.muted:
        return
    key = (model.module.path, f"receivers of {model.name}")
    if key not in walk.registries:
        walk.registries[key] = tuple(
            Value(text=receiver.name, function=receiver)
            for module in _modules_with_receivers(walk, model)
            for receiver in _receivers_in(walk, module, model)
        )
    # `created` is None instead of False, by which the walk knows that `if created:` is skipped; the row has no origin,
    # since a test of the state that it was just given is not a check
    arguments = {"sender": Value(text=model.name, cls=model), "instance": replace(row, origin=())}
    arguments["created"] = Value(text="created") if created else Value(text="created", literal=None)
    for receiver in walk.registries[key]:
        assert receiver.function is not None
        walk.invoke(receiver.function, (), arguments, call.node)


def _modules_with_receivers(walk: CallWalker, model: ClassDefinition) -> Iterator[Module]:
    """The module of a model, and the usual modules for receivers next to it."""
    yield model.module
    for name in _RECEIVER_MODULES:
        path = walk.project.find_relative(model.module.directory, 1, name)
        module = walk.project.load(path) if path else None
        if module is not None:
            yield module


def _receivers_in(walk: CallWalker, module: Module, model: ClassDefinition) -> Iterator[Function]:
    """The functions of ``module`` that receive the signals of ``model``."""
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
    with walk.mute_trace(), walk.in_scope(Scope(module)):
        if walk.value(decorator.func).ref != "django.dispatch.receiver" or not decorator.args:
            return False
        signals = walk.value(decorator.args[0])
        senders = [walk.value(keyword.value) for keyword in decorator.keywords if keyword.arg == "sender"]
    names = {signal.ref.rpartition(".")[2] for signal in (signals, *signals.items)}
    return bool(names & set(_SIGNALS)) and any(sender.cls is model for sender in senders)


def save_serializer(walk: CallWalker, call: Call) -> Value | None:
    """`serializer.save()`: adds a row, or changes the one that the serializer was created with."""
    instance = call.receiver.instance
    if instance is None or call.name != "save" or call.target.function is not None:
        return None
    if not any(name.endswith("ModelSerializer") for name in walk.ancestry(instance.cls)):
        return None
    create = instance.cls.methods.get("create")
    has_instance = instance.arguments or "instance" in instance.keywords
    if create is not None and not has_instance:
        function = Function(create, instance.cls.module, owner=instance.cls, receiver=call.receiver)
        return walk.invoke(function, (Value(text="validated_data", taint=frozenset({MESSAGE})),), {}, call.node)
    model = _model_of(walk, instance.cls)
    name = model.name if model is not None else instance.cls.name.removesuffix("Serializer")
    if has_instance:
        walk.emit("write", call.node, text=call.source_text, store="orm", location=name)
    else:  # the unique fields are in the message, so the table refuses a duplicate
        unique_fields = orm_rows.unique_fields(model) if model is not None else []
        fields = {field: Value(text=field, taint=frozenset({MESSAGE})) for field in unique_fields}
        orm_rows.add_row(walk, call, name, fields, model, "creates a")
    return Value(text=f"{name}<row>", tag="orm.new")


def _model_of(walk: CallWalker, cls: ClassDefinition) -> ClassDefinition | None:
    """The model that the `Meta` of a serializer names."""
    for meta in cls.node.body:
        if isinstance(meta, ast.ClassDef) and meta.name == "Meta":
            for node in meta.body:
                if isinstance(node, ast.Assign) and getattr(node.targets[0], "id", "") == "model":
                    with walk.mute_trace(), walk.in_scope(Scope(cls.module)):
                        return walk.value(node.value).cls
    return None
