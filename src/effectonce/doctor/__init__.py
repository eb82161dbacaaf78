"""Doctor finds what would break a promise, before it does: for `effectonce doctor` and the dashboard.

It runs every start-up check, and looks for what only shows with time: sweepers that stopped, tables that grow, messages
that are parked. It changes nothing and creates no file. It scans no table, so it is quick however much a store holds.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

from effectonce.broker import Broker
from effectonce.intents.intents import Intents
from effectonce.relay.relay import Relay
from effectonce.store import Store
from effectonce.worker.worker import Worker

from .advice import SEVERITIES, DoctorSeverity
from .broker_checks import examine_broker, examine_intents, examine_worker
from .findings import DoctorCheck, DoctorFinding, DoctorReport, Examination, Limits
from .store_checks import examine_store

__all__ = ["SEVERITIES", "DoctorCheck", "DoctorFinding", "DoctorReport", "DoctorSeverity", "Limits", "examine"]

T = TypeVar("T")


def examine(
    store: Store | None = None,
    *,
    broker: Broker | None = None,
    queues: Sequence[str] = (),
    group: str = "worker",
    programs: Sequence[Worker | Intents | Relay] = (),
    outbox: str | None = None,
    limits: Limits | None = None,
) -> DoctorReport:
    """Return every check of these, with what is wrong. It blocks: in async code, run it in a thread.

    ``programs`` bring their own store and broker, and relays their outbox, which are examined as well. The dead letters
    of ``group`` in ``queues`` of ``broker`` are counted. ``outbox`` names a table other than the one that `migrate`
    creates.
    """
    examination, limits = Examination(), limits or Limits()
    workers = [program for program in programs if isinstance(program, Worker)]
    relays = [program for program in programs if isinstance(program, Relay)]
    tables = {relay.store: relay.table for relay in relays}
    stores = _drop_repeats(store, *(program.store for program in programs))
    for examined in stores:
        table = outbox if examined is store and outbox is not None else tables.get(examined)
        examine_store(examination, examined, table, limits)
    if broker is not None:
        examine_broker(examination, broker, store, queues, group, limits)
    for worker in workers:
        examine_worker(examination, worker, limits)
    for program in programs:
        if isinstance(program, Intents):
            redelivering: list[Broker | None] = [*_drop_repeats(broker, *(worker.broker for worker in workers))]
            for redeliverer in redelivering or [None]:
                examine_intents(examination, program, redeliverer)
    for part, is_given, option in (
        ("store", stores, "--store URL"),
        ("broker", broker or workers or relays, "--broker URL"),
        ("programs", programs, "MODULE:NAME"),
    ):
        if not is_given:
            examination.skip(part, "all checks", f"none was given ({option})")
    return examination.report()


def _drop_repeats(*values: T | None) -> list[T]:
    return list(dict.fromkeys(value for value in values if value is not None))
