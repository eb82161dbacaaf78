"""How a mutant is described, put in place, and searched for."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any
from unittest import mock

from tests.proof.explorer import SearchReport, explore, sample, scenario

Function = Callable[..., Any]
Swap = tuple[Any, str, Any]  # an object, its attribute, and the value that replaces it


@dataclass(frozen=True)
class Mutant:
    """One defect, and the search that must find it: ``guard-L+lapse/2`` is a scenario, its faults, and how many."""

    name: str
    about: str
    failure: str  # its number in the failure catalogue, or where it was seen
    swaps: tuple[Swap, ...]
    search_in: str
    promise: bool  # whether users notice; if not, only the contract is broken, and another rule keeps users safe

    @contextmanager
    def in_place(self) -> Iterator[None]:
        with ExitStack() as stack:
            for owner, name, value in self.swaps:
                stack.enter_context(mock.patch.object(owner, name, value))
            yield

    def search(self, rules: frozenset[str]) -> SearchReport:
        """Search with the defect in place. A report without a finding means that the mutant has survived."""
        name, _, faults = self.search_in.partition("/")
        with self.in_place():
            if scenario(name).fine:
                return sample(name, 1500, faults=int(faults), rules=rules)
            return explore(name, int(faults), rules=rules)

    def __str__(self) -> str:
        return self.name


MUTANTS: list[Mutant] = []


def mutant(
    failure: str,
    owner: Any,
    attribute: str,
    search_in: str,
    *,
    promise: bool = True,
    also: tuple[Any, str, Any] | None = None,
) -> Callable[[Function], Function]:
    """Register the decorated function, which replaces ``owner.attribute``; its docstring says what it breaks."""

    def register(function: Function) -> Function:
        swaps = ((owner, attribute, function), *((also,) if also is not None else ()))
        name = function.__name__.replace("_", "-")
        MUTANTS.append(Mutant(name, function.__doc__ or "", failure, swaps, search_in, promise))
        return function

    return register
