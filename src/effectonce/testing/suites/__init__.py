"""The contract suite: what `contracts.Port` says, as cases that run on any backend, on sync and async ports.

A store's whole test is its constructor and one call::

    from effectonce.testing.suites import store_suite

    TestContract = store_suite(lambda: MyBackend("my://localhost"))

or, where the address comes from fixtures, a fixture named ``backend`` and the call without a constructor::

    @pytest.fixture
    def backend(my_server_url):
        return MyBackend(my_server_url)

    TestContract = store_suite()

pytest then shows one test per sentence of the contract and kind of port, as in
``TestContract::test_a_stale_release_leaves_the_successors_done_alone[sync]``. Without pytest:
``for case in store_cases(): case.run(backend, "sync")``; one that does not apply raises `unittest.SkipTest`.

Cases read `Capabilities`, never a store's name. Each works in scopes of its own and runs `migrate` first, so
one scratch database serves them all; nothing else should use it meanwhile, since some count what a sweep did.
Where ``backend.clock`` is a `ManualClock`, time is advanced; elsewhere cases really wait, for leases of
``brief`` seconds (0.06, and 1.0 where the store's clock is estimated).
"""

from __future__ import annotations

from collections.abc import Callable

from effectonce.contracts import Backend

from . import (
    batches,
    claims,
    concurrency,
    expiry,
    fingerprints,
    notes,
    operator_api,
    ports,
    settlements,
    values,
)
from .broker import broker_cases, broker_suite
from .broker_harness import BrokerCase, BrokerHarness, Site
from .harness import Case, Harness, PortKind

__all__ = [
    "BrokerCase",
    "BrokerHarness",
    "Case",
    "PortKind",
    "Harness",
    "Site",
    "broker_cases",
    "broker_suite",
    "store_cases",
    "store_suite",
]


def store_cases() -> list[Case]:
    """Every case of the suite for stores, in the order of the contract."""
    modules = (claims, expiry, fingerprints, settlements, notes, operator_api, ports, values, batches, concurrency)
    cases = [value for module in modules for value in vars(module).values() if isinstance(value, Case)]
    if len({case.name for case in cases}) < len(cases):
        raise ValueError("two cases share a name, and one would hide the other")
    return cases


def store_suite(
    make_backend: Callable[[], Backend] | None = None,
    *,
    brief: float | None = None,
    skip: tuple[str, ...] = (),
) -> type:
    """Make a pytest class that runs every case on sync and async ports, with a new backend each.

    Without ``make_backend`` the tests use a fixture named ``backend``. ``skip`` names cases that this
    backend is known to fail; an unknown name is an error, so that the list cannot rot.
    """
    import pytest

    cases = {str(case): case for case in store_cases()}
    if unknown := set(skip) - set(cases):
        raise ValueError(f"the suite has no case named {', '.join(sorted(unknown))}")

    def parametrized(case: Case) -> Callable[..., None]:
        test: Callable[..., None] = pytest.mark.parametrize("port_kind", case.port_kinds)(
            _test(case, make_backend, brief)
        )
        return test

    body = {f"test_{name}": parametrized(case) for name, case in cases.items() if name not in skip}
    return type("TestContract", (), {"__doc__": "The store contract.", **body})


def _test(case: Case, make_backend: Callable[[], Backend] | None, brief: float | None) -> Callable[..., None]:
    if make_backend is None:

        def test(self: object, backend: Backend, port_kind: PortKind) -> None:
            case.run(backend, port_kind, brief=brief)

        chosen: Callable[..., None] = test
    else:

        def test_made(self: object, port_kind: PortKind) -> None:
            case.run(make_backend(), port_kind, brief=brief)

        chosen = test_made
    chosen.__doc__ = case.__doc__
    return chosen
