"""The contract suite for brokers: what `contracts.Publisher`, `Consumer` and `DeadLetters` say, as cases.

A broker's whole test is its constructor and one call::

    TestContract = broker_suite(lambda: MyBackend("my://localhost"))

or a fixture named ``site`` and the call without a constructor. Both give a backend, or a `Site`: a backend and what
can be done to it (cut its connections, restart its server), without which some cases are skipped. Cases read
`BrokerCapabilities`, never a broker's name. Each works on a queue of its own, so one server serves them all. Where
``backend.clock`` is a `ManualClock`, time is advanced; elsewhere cases wait for the ack window: configure a second.

Without pytest: ``for case in broker_cases(): case.run(backend)``.
"""

from __future__ import annotations

from collections.abc import Callable

from effectonce.contracts import BrokerBackend

from . import broker_dead_letters, broker_delivery, broker_faults, broker_order, broker_settling
from .broker_harness import BrokerCase, Site

Made = BrokerBackend | Site


def broker_cases() -> list[BrokerCase]:
    """Every case of the suite for brokers, in the order of the contract."""
    modules = (broker_delivery, broker_settling, broker_order, broker_dead_letters, broker_faults)
    cases = [value for module in modules for value in vars(module).values() if isinstance(value, BrokerCase)]
    if len({case.name for case in cases}) < len(cases):
        raise ValueError("two cases share a name, and one would hide the other")
    return cases


def broker_suite(
    make: Callable[[], Made] | None = None,
    *,
    delay: float = 0.3,
    quiet: float = 0.25,
    timeout: float = 15.0,
    skip: tuple[str, ...] = (),
) -> type:
    """A pytest class that runs every case, on a new backend each.

    Without ``make`` the tests ask for a fixture named ``site``. ``delay`` is the shortest `nack` delay that the broker
    tells from none, ``quiet`` how long a case waits to see that nothing comes, ``timeout`` how long for what must
    come. ``skip`` names cases that this broker is known not to keep; an unknown name is an error, so that the list
    cannot rot.
    """
    cases = {str(case): case for case in broker_cases()}
    if unknown := set(skip) - set(cases):
        raise ValueError(f"the suite has no case named {', '.join(sorted(unknown))}")

    def test(case: BrokerCase) -> Callable[..., None]:
        def on_fixture(self: object, site: Made) -> None:
            case.run(site, delay=delay, quiet=quiet, timeout=timeout)

        def on_made(self: object) -> None:
            assert make is not None
            case.run(make(), delay=delay, quiet=quiet, timeout=timeout)

        asked: Callable[..., None] = on_fixture if make is None else on_made
        asked.__doc__ = case.__doc__
        return asked

    body = {f"test_{name}": test(case) for name, case in cases.items() if name not in skip}
    return type("TestContract", (), {"__doc__": "The broker contract.", **body})
