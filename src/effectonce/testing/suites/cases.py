"""Cases of a contract suite: collecting them from their modules, and making pytest tests of them."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Coroutine, Sequence
from types import ModuleType
from typing import Any, Generic, TypeVar

H = TypeVar("H")
C = TypeVar("C", bound="Case[Any]")


class Case(Generic[H]):
    """One sentence of a contract. Its name is the sentence, its docstring the reason; its body, a coroutine function
    over a harness, raises `AssertionError` where a backend breaks it."""

    def __init__(self, body: Callable[[H], Coroutine[Any, Any, None]], requires: str = "") -> None:
        self.body = body
        self.requires = requires  # a capability; the case is skipped on a backend without it
        self.name = body.__name__
        self.__doc__ = body.__doc__

    def __str__(self) -> str:
        return self.name

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.name})"


def collect_cases(case_type: Callable[[Any, str], C], *modules: ModuleType) -> list[C]:
    """Make a case of every public coroutine function that is defined in ``modules``, in their order.

    A constant ``REQUIRES`` of a module names a capability: its cases are skipped on a backend without it.
    """
    cases = [
        case_type(body, getattr(module, "REQUIRES", ""))
        for module in modules
        for name, body in vars(module).items()
        if inspect.iscoroutinefunction(body) and body.__module__ == module.__name__ and not name.startswith("_")
    ]
    if len({case.name for case in cases}) < len(cases):
        raise ValueError("two cases share a name, and one would hide the other")
    return cases


def pytest_class(
    cases: Sequence[C], make_test: Callable[[C], Callable[..., None]], skip: Sequence[str], **fixtures: Any
) -> type:
    """Make a class of tests, one for each case that ``skip`` does not name.

    An unknown name in ``skip`` is an error, so that the list does not become stale. ``fixtures`` are constructors of
    the fixtures that the tests use; None means that the caller has a fixture of that name.
    """
    import pytest

    if unknown := set(skip) - {case.name for case in cases}:
        raise ValueError(f"the suite has no case named {', '.join(sorted(unknown))}")
    members: dict[str, Any] = {"__doc__": "The contract, one test for each sentence."}
    for name, make in fixtures.items():
        if make is not None:
            members[name] = pytest.fixture(lambda self, make=make: make())
    for case in cases:
        if case.name not in skip:
            members[f"test_{case.name}"] = test = make_test(case)
            test.__doc__ = case.__doc__
    return type("TestContract", (), members)
