"""The broker contract, its cases side by side: for servers where a case is mostly waiting."""

import traceback
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from types import ModuleType
from unittest import SkipTest

from effectonce.testing.suites import BrokerCase, Site, broker_cases

#: Cases that count the open files of the whole process, or that break connections which others use.
ALONE = (
    "both_ends_recover_from_a_broken_connection",
    "both_ends_recover_from_a_restart",
    "deliveries_of_a_broken_connection_are_redelivered",
    "a_closed_backend_leaves_nothing_open",
)

#: This case waits for nearly three ack windows: it starts first, so that the others do not wait for it in the end.
LONGEST = "extend_keeps_a_delivery_past_the_window"

Make = Callable[[], Site]


def run(
    *makes: Make | tuple[Make, Make], threads: int, parts: tuple[ModuleType, ...] | None = None, **waits: float
) -> None:
    """Run every case that may run beside others, on every site. Raises with all that failed.

    Where two sites are given as one, the first has a long ack window, which a busy machine does not upset; a case that
    does not apply there, since it would have to wait for that, runs on the second. ``parts``: only the cases of these
    modules of the suite.
    """
    wanted = [case for case in broker_cases() if case.name not in ALONE]
    if parts is not None:
        wanted = [case for case in wanted if case.body.__module__ in {part.__name__ for part in parts}]
    wanted.sort(key=lambda case: case.name != LONGEST)
    chosen = [(case, make) for case in wanted for make in makes]
    with ThreadPoolExecutor(threads) as pool:
        running = [(case, pool.submit(_run, case, make, waits)) for case, make in chosen]
    failed = []
    for case, done in running:
        error = done.exception()
        if error is not None:
            failed.append(f"{case}\n{''.join(traceback.format_exception(error, limit=-4))}")
    assert not failed, f"{len(failed)} of {len(running)} cases failed\n" + "\n".join(failed)


def _run(case: BrokerCase, make: Make | tuple[Make, Make], waits: Mapping[str, float]) -> None:
    for make_site in make if isinstance(make, tuple) else (make,):
        try:
            return case.run(make_site(), **{"timeout": 60.0, **waits})
        except SkipTest:
            continue


def alone(*, skip: Iterable[str] = ()) -> list[BrokerCase]:
    """Return the cases that must run alone, for a test that is parametrised with them."""
    return [case for case in broker_cases() if case.name in ALONE and case.name not in skip]
