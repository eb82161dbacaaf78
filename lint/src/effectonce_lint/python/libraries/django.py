"""What Django does behind a save: receivers of its signals, and the rows that its REST framework's serializers make."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING

from effectonce_lint.python.values import Function, Scope, Val

from . import orm_rows
from .message_parts import MESSAGE

if TYPE_CHECKING:
    from effectonce_lint.python.calls import Call, Calls
    from effectonce_lint.python.modules import Class, Module

_SIGNALS = ("pre_save", "post_save")
_FILES = ("signals", "receivers", "handlers")
"""Where receivers stand, beside the models."""


def saved(walk: Calls, call: Call, model: Class | None, row: Val, *, created: bool) -> None:
    """Walk through what runs when ``row`` is saved: the receivers of the signals that Django sends then."""
    if model is None or walk.muted:
        return
    key = (model.module.path, f"receivers of {model.name}")
    if key not in walk.registries:
        walk.registries[key] = tuple(
            Val(text=each.name, function=each) for module in _modules(walk, model) for each in _in(walk, module, model)
        )
    # None, not False: that is how the walk knows which way `if created:` goes
    # and without an origin: that the row's state was set a moment ago is no check on it
    given = {"sender": Val(text=model.name, cls=model), "instance": replace(row, origin=())}
    given["created"] = Val(text="created") if created else Val(text="created", literal=None)
    for each in walk.registries[key]:
        assert each.function is not None
        walk.invoke(each.function, (), given, call.node)


def _modules(walk: Calls, model: Class) -> Iterator[Module]:
    yield model.module
    for name in _FILES:
        path = walk.project.find_relative(model.module.directory, 1, name)
        module = walk.project.load(path) if path else None
        if module is not None:
            yield module


def _in(walk: Calls, module: Module, model: Class) -> Iterator[Function]:
    """The functions of ``module`` that are told of saves of ``model``."""
    if not any(signal.encode() in module.content for signal in _SIGNALS):
        return
    for bindings in module.bindings.values():
        for binding in bindings:
            if isinstance(binding.node, ast.FunctionDef | ast.AsyncFunctionDef):
                for decorator in binding.node.decorator_list:
                    if isinstance(decorator, ast.Call) and _is_told(walk, module, decorator, model):
                        yield Function(binding.node, module, layer=len(binding.node.decorator_list))


def _is_told(walk: Calls, module: Module, decorator: ast.Call, model: Class) -> bool:
    """Whether a decorator is `receiver(post_save, sender=Model)`."""
    with walk.quietly(), walk.within(Scope(module)):
        if walk.value(decorator.func).ref != "django.dispatch.receiver" or not decorator.args:
            return False
        signals = walk.value(decorator.args[0])
        sender = next((walk.value(each.value) for each in decorator.keywords if each.arg == "sender"), Val())
    names = {each.ref.rpartition(".")[2] for each in (signals, *signals.items)}
    return bool(names & set(_SIGNALS)) and sender.cls is model


def serialized(walk: Calls, call: Call) -> Val | None:
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
        return walk.invoke(function, (Val(text="validated_data", taint=frozenset({MESSAGE})),), {}, call.node)
    model = _model_of(walk, instance.cls)
    name = model.name if model is not None else instance.cls.name.removesuffix("Serializer")
    if given:
        walk.emit("write", call.node, text=call.shown, store="orm", location=name)
    else:  # a field that its table keeps unique is checked, and refused by the table
        unique = orm_rows.unique_fields(model) if model is not None else []
        fields = {each: Val(text=each, taint=frozenset({MESSAGE})) for each in unique}
        orm_rows.added(walk, call, name, fields, model, "creates a")
    return Val(text=f"{name}<row>", tag="orm.new")


def _model_of(walk: Calls, cls: Class) -> Class | None:
    """The model that the `Meta` of a serializer names."""
    for meta in cls.node.body:
        if isinstance(meta, ast.ClassDef) and meta.name == "Meta":
            for each in meta.body:
                if isinstance(each, ast.Assign) and getattr(each.targets[0], "id", "") == "model":
                    with walk.quietly(), walk.within(Scope(cls.module)):
                        return walk.value(each.value).cls
    return None
