"""What would keep a promise from being kept, found out before it matters: `effectonce doctor`, and the dashboard.

Every start-up check, and what only shows with time: sweepers that stopped, tables that grow, keys that are parked.
Nothing is changed, no file is made, and the work is bounded whatever the stores hold.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TypeVar

from effectonce.broker import Broker
from effectonce.intents.intents import Intents
from effectonce.store import Store
from effectonce.worker.worker import Worker

from .findings import SEVERITIES, Finding, Limits, Severity
from .queues import examine_broker, examine_intents, examine_worker
from .records import examine_outbox, examine_store

__all__ = ["SEVERITIES", "Finding", "Limits", "Severity", "examine"]

T = TypeVar("T")


def examine(
    store: Store | None = None,
    *,
    broker: Broker | None = None,
    queues: Sequence[str] = (),
    group: str = "worker",
    programs: Sequence[Worker | Intents] = (),
    outbox: str | None = None,
    limits: Limits | None = None,
) -> list[Finding]:
    """All that is wrong with these, the worst first; [] where nothing is. Blocks: run it in a thread in async code.

    ``programs`` bring their own store and broker, which are looked at as well. ``queues`` of ``broker`` are looked
    into for the dead letters of ``group``. ``outbox``: a table other than the one that `migrate` makes.
    """
    found = list(_examined(store, broker, queues, group, programs, outbox, limits or Limits()))
    return sorted(dict.fromkeys(found), key=lambda finding: SEVERITIES.index(finding.severity))


def _examined(
    store: Store | None,
    broker: Broker | None,
    queues: Sequence[str],
    group: str,
    programs: Sequence[Worker | Intents],
    outbox: str | None,
    limits: Limits,
) -> Iterator[Finding]:
    workers = [each for each in programs if isinstance(each, Worker)]
    for each in _distinct(store, *(program.store for program in programs)):
        found = list(examine_store(each, limits))
        yield from found
        if not any(finding.severity == "error" and finding.code != "unsafe-store" for finding in found):
            yield from examine_outbox(each, outbox if each is store else None, limits)
    if broker is not None:
        yield from examine_broker(broker, store, queues, group, limits)
    for worker in workers:
        yield from examine_worker(worker, limits)
    for program in programs:
        if isinstance(program, Intents):
            for behind in _distinct(broker, *(worker.broker for worker in workers)):
                yield from examine_intents(program, behind)


def _distinct(*things: T | None) -> list[T]:
    return list(dict.fromkeys(each for each in things if each is not None))
