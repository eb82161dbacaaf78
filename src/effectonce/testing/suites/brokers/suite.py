"""The suite for brokers: `broker_suite` makes a pytest class of it, `broker_cases` lists its cases."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from effectonce.contracts import BrokerBackend
from effectonce.testing.suites.cases import Case, collect_cases, pytest_class

from . import dead_letters, delays, delivery, faults, order, settling
from .harness import BrokerHarness, Site


class BrokerCase(Case[BrokerHarness]):
    """One sentence of the contract for brokers."""

    def run(self, site: Site | BrokerBackend, **waits: float) -> None:
        """Raise AssertionError where the broker breaks the sentence, SkipTest where it does not apply.

        ``waits`` are those of `BrokerHarness`.
        """
        asyncio.run(self._run(site if isinstance(site, Site) else Site(backend=site), waits))

    async def _run(self, site: Site, waits: dict[str, float]) -> None:
        h = BrokerHarness(site, **waits)
        try:
            await self.body(h)
        finally:
            await h.close()


def broker_cases() -> list[BrokerCase]:
    """Return every case of the suite for brokers, in the order of the contract."""
    return collect_cases(BrokerCase, delivery, delays, settling, order, dead_letters, faults)


def broker_suite(
    make_site: Callable[[], BrokerBackend | Site] | None = None, *, skip: tuple[str, ...] = (), **waits: float
) -> type:
    """Make a pytest class that runs every case, with a new backend each.

    ``make_site`` makes a backend, or a `Site`: a backend and what can be done to it, without which some cases are
    skipped. Without ``make_site`` the tests ask for a fixture named ``site``. One server serves all cases, each of
    which works on a queue of its own. On a real clock cases wait for the ack window: configure a second.

    ``waits``, in seconds: ``delay`` (0.3) is the shortest `nack` delay that the broker does not round to none,
    ``quiet`` (0.25) how long a case waits to see that nothing is delivered, ``timeout`` (15) how long for a delivery.
    ``skip`` names cases that this broker is known to fail.
    """

    def make_test(case: BrokerCase) -> Callable[..., None]:
        def test(self: object, site: BrokerBackend | Site) -> None:
            case.run(site, **waits)

        return test

    return pytest_class(broker_cases(), make_test, skip, site=make_site)
