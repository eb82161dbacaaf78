"""Doctor finds what would break a promise, before it does: for `effectonce doctor` and the dashboard.

It runs every start-up check, and looks for what only shows with time: sweepers that stopped, tables that grow, messages
that are parked. It changes nothing and creates no file. It scans no table, so it is quick however much a store holds.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

from effectonce.broker import Broker
from effectonce.intents.intents import Intents
from effectonce.store import Store
from effectonce.worker.worker import Worker

from .advice import SEVERITIES, DoctorSeverity
from .broker_checks import examine_broker, examine_intents, examine_worker
from .findings import DoctorFinding, Findings, Limits
from .store_checks import examine_store

__all__ = ["SEVERITIES", "DoctorFinding", "Limits", "DoctorSeverity", "examine"]

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
) -> list[DoctorFinding]:
    """Return what is wrong with these, the worst first; [] if nothing is. It blocks: in async code, run it in a thread.

    ``programs`` bring their own store and broker, which are examined as well. The dead letters of ``group`` in
    ``queues`` of ``broker`` are counted. ``outbox`` names a table other than the one that `migrate` creates.
    """
    findings, limits = Findings(), limits or Limits()
    workers = [program for program in programs if isinstance(program, Worker)]
    for examined in _drop_repeats(store, *(program.store for program in programs)):
        examine_store(findings, examined, outbox if examined is store else None, limits)
    if broker is not None:
        examine_broker(findings, broker, store, queues, group, limits)
    for worker in workers:
        examine_worker(findings, worker, limits)
    for program in programs:
        if isinstance(program, Intents):
            for redelivering in _drop_repeats(broker, *(worker.broker for worker in workers)):
                examine_intents(findings, program, redelivering)
    return findings.worst_first()


def _drop_repeats(*values: T | None) -> list[T]:
    return list(dict.fromkeys(value for value in values if value is not None))
