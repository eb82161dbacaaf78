"""What a project declares to be a consumer, an effect or a guard, by dotted name."""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass

from .values import Value


@dataclass(frozen=True)
class Declarations:
    """The dotted names in the settings ``consumers``, ``effects`` and ``guards``."""

    consumers: tuple[str, ...] = ()
    """Decorators and functions that make a function a consumer; and methods of base classes, which handle messages."""
    effects: tuple[str, ...] = ()
    """Functions that must not run twice for a message."""
    guards: tuple[str, ...] = ()
    """Decorators, functions and context managers that keep a duplicate out."""

    def declares_consumer(self, value: Value) -> bool:
        return _names(self.consumers, value)

    def declares_effect(self, value: Value) -> bool:
        return _names(self.effects, value)

    def declares_guard(self, value: Value) -> bool:
        return _names(self.guards, value)

    def handling_method(self, bases: Iterable[Value], methods: Iterable[str]) -> str:
        """The one of ``methods`` that handles messages in a class with these bases, or ""."""
        owners = {name.rpartition(".")[0]: name.rpartition(".")[2] for name in self.consumers}
        handling = (method for base in bases for owner, method in owners.items() if _names((owner,), base))
        return next((method for method in handling if method in methods), "")

    def may_be_used_in(self, content: bytes) -> bool:
        """Whether a file mentions the last part of a declared consumer's name, or the class before it."""
        return any(part.encode() in content for name in self.consumers for part in name.split(".")[-2:])


def dotted_name_of(value: Value) -> str:
    """The dotted name of a function or class, by the file that defines it; of what is not the project's, its import."""
    if value.function is not None:
        return f"{_module_name(value.function.module.path)}.{value.function.qualname}"
    if value.cls is not None:
        return f"{_module_name(value.cls.module.path)}.{value.cls.name}"
    return value.ref


def _names(declared: tuple[str, ...], value: Value) -> bool:
    """Whether one of ``declared`` is the name of ``value``, or ends with it: a package may lack its `__init__.py`."""
    name = dotted_name_of(value) if declared else ""
    return bool(name) and any(full == name or full.endswith(f".{name}") for full in declared)


def _module_name(path: str) -> str:
    """The dotted name of a file in its package."""
    folder, file = os.path.split(path)
    parts = [] if file == "__init__.py" else [file.removesuffix(".py")]
    while os.path.isfile(os.path.join(folder, "__init__.py")) and os.path.dirname(folder) != folder:
        folder, package = os.path.split(folder)
        parts.insert(0, package)
    return ".".join(parts)
