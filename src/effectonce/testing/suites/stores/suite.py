"""The suite for stores: `store_suite` makes a pytest class of it, `store_cases` lists its cases."""

from __future__ import annotations

import asyncio
import unittest
from collections.abc import Callable
from typing import Any

from effectonce.contracts import Backend
from effectonce.core.run_sync import run_sync
from effectonce.testing.suites.cases import Case, collect_cases, pytest_class
from effectonce.testing.suites.expectations import skip_unless

from . import (
    batches,
    claims,
    concurrency,
    expiry,
    fingerprints,
    lists,
    notes,
    operator_api,
    ports,
    renewals,
    seen_set,
    settlements,
    sweeps,
    values,
)
from .harness import StoreHarness
from .port_harness import PORT_KINDS, PortKind


class StoreCase(Case[StoreHarness]):
    """One sentence of the contract for stores."""

    def __init__(self, body: Any, requires: str = "") -> None:
        super().__init__(body, requires)
        self.port_kinds: tuple[PortKind, ...] = getattr(body, "port_kinds", PORT_KINDS)

    def run(self, backend: Backend, port_kind: PortKind, *, brief: float | None = None) -> None:
        """Raise AssertionError where the backend breaks the sentence, SkipTest where it does not apply."""
        if port_kind not in self.port_kinds:
            raise unittest.SkipTest(f"is about {self.port_kinds[0]} ports only")
        if self.requires:
            skip_unless(getattr(backend.capabilities, self.requires), f"the capability {self.requires!r}")
        work = self._run(StoreHarness(backend, port_kind, brief))
        if port_kind == "sync":
            run_sync(work)
        else:
            asyncio.run(work)

    async def _run(self, h: StoreHarness) -> None:
        try:
            await h.main_port.migrate()
            await self.body(h)
        finally:
            await h.close()


def store_cases() -> list[StoreCase]:
    """Return every case of the suite for stores, in the order of the contract."""
    modules = (claims, expiry, fingerprints, settlements, renewals, seen_set, notes)
    return collect_cases(StoreCase, *modules, operator_api, lists, sweeps, ports, values, batches, concurrency)


def store_suite(
    make_backend: Callable[[], Backend] | None = None, *, brief: float | None = None, skip: tuple[str, ...] = ()
) -> type:
    """Make a pytest class that runs every case on sync and async ports, with a new backend each.

    Without ``make_backend`` the tests ask for a fixture named ``backend``. One scratch database serves all cases, each
    of which works in a scope of its own; nothing else should use it meanwhile, since some count what a sweep did.
    ``brief`` is the length, in seconds, of leases that cases wait for: 0.06, and 1.0 where the store's clock is
    estimated. ``skip`` names cases that this backend is known to fail.
    """
    import pytest

    def make_test(case: StoreCase) -> Callable[..., None]:
        @pytest.mark.parametrize("port_kind", case.port_kinds)
        def test(self: object, backend: Backend, port_kind: PortKind) -> None:
            case.run(backend, port_kind, brief=brief)

        return test

    return pytest_class(store_cases(), make_test, skip, backend=make_backend)
