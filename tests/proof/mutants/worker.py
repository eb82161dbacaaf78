"""Workers in mode L that are wrong: they ack too early, mix up blocks, or do not extend their deliveries.

Each defect is put between the worker and its seams (the store's port, the consumer, the publisher, the handler), so
that it does not depend on how a worker is built.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

from msgspec.structs import replace

from effectonce.core.codec import STORED_NONE
from effectonce.errors import StoreUnavailable
from effectonce.record import Answer, Claim, Settlement
from tests.proof.explorer.tools.worker import SimulatedBrokerBackend, SimulatedConsumer, WorkerSystem
from tests.proof.explorer.transport import SimulatedStorePort

from .base import mutant

_run = SimulatedStorePort.run
_run_handler, _stop = WorkerSystem.run_handler, WorkerSystem.stop
_extend, _publish = SimulatedConsumer.extend, SimulatedBrokerBackend.publish


def ack(system: WorkerSystem, message_id: str) -> None:
    """Ack a message of the process that runs, with its next fetch."""
    assert system.simulation is not None
    consumer = system.consumers[system.simulation.running_process]
    consumer.acks.append(consumer.last_deliveries[message_id])


def are_claims(batch: Sequence[Any]) -> bool:
    return all(isinstance(op, Claim) for op in batch)


def are_completions(batch: Sequence[Any]) -> bool:
    return all(isinstance(op, Settlement) and op.state == "done" for op in batch)


# -- the worker and the store


@mutant("F06", SimulatedStorePort, "run", "worker-L+crash/1")
async def in_progress_acked_by_worker(self: Any, batch: Any) -> Any:
    """A duplicate of a message that another worker runs is taken for done, and acked."""
    replies = await _run(self, batch)
    if not are_claims(batch):
        return replies
    return [
        replace(answer, kind="done", result=STORED_NONE) if answer.kind == "in_progress" else answer
        for answer in replies
    ]


@mutant("F36", SimulatedStorePort, "run", "worker-L+lose/1")
async def unanswered_claim_acked_by_worker(self: Any, batch: Any) -> Any:
    """A message whose claim the store has not answered is taken for done, and acked."""
    try:
        return await _run(self, batch)
    except StoreUnavailable:
        if not are_claims(batch):
            raise
        return [Answer("done", result=STORED_NONE) for _ in batch]


@mutant("F36", SimulatedStorePort, "run", "worker-L+lose/1")
async def replies_to_completions_ignored(self: Any, batch: Any) -> Any:
    """The replies to a block of completions are ignored."""
    try:
        replies = await _run(self, batch)
    except StoreUnavailable:
        if not are_completions(batch):
            raise
    return [True for _ in batch] if are_completions(batch) else replies


@mutant("F08", SimulatedStorePort, "run", "worker-L+lapse/1")
async def lost_lease_acked(self: Any, batch: Any) -> Any:
    """A success that came after its lease is acked, although another runs it again."""
    replies = await _run(self, batch)
    return [True for _ in batch] if are_completions(batch) else replies


@mutant("F70", SimulatedStorePort, "run", "worker-B+raise+crash/2")
async def block_answers_mixed_up(self: Any, batch: Any) -> Any:
    """The answers to a block of claims go to the wrong messages."""
    replies = await _run(self, batch)
    return replies[::-1] if are_claims(batch) else replies


@mutant("F20", SimulatedStorePort, "run", "worker-L+crash/1", promise=False)
async def suspect_pays_for_waiting(self: Any, batch: Any) -> Any:
    """A message that is given back until it can run alone is charged an attempt for that."""
    return await _run(self, [replace(op, refund=False) if isinstance(op, Settlement) else op for op in batch])


@mutant("F52", SimulatedStorePort, "run", "worker-to+crash/1")
async def duplicate_publishes_nothing(self: Any, batch: Any) -> Any:
    """A duplicate of a message that is done is acked, whether or not its result was published."""
    replies = await _run(self, batch)
    if not are_claims(batch):
        return replies
    return [replace(answer, result=STORED_NONE) if answer.kind == "done" else answer for answer in replies]


# -- the worker and its handlers


@mutant("F05", WorkerSystem, "run_handler", "worker-L+crash/1")
async def acked_before_recorded(self: Any, message: Any) -> Any:
    """The ack goes out with the next fetch as soon as the handler has returned."""
    value = await _run_handler(self, message)
    ack(self, message.id)
    return value


@mutant("F58", WorkerSystem, "run_handler", "worker-E+stop/1")
async def cancelled_counts_as_done(self: Any, message: Any) -> Any:
    """A handler that did not end in time and was cancelled is acked."""
    try:
        return await _run_handler(self, message)
    except asyncio.CancelledError:
        ack(self, message.id)
        raise


# -- the worker and its broker


@mutant("F54", SimulatedConsumer, "extend", "worker-E/0")
async def prefetched_not_extended(self: Any, deliveries: Any, seconds: float) -> Any:
    """Only the window of running messages is extended, not that of those that wait behind them."""
    await _extend(self, [delivery for delivery in deliveries if delivery.handle.task is not None], seconds)
    return [True for _ in deliveries]


@mutant("F58", WorkerSystem, "stop", "worker-L+stop/1")
def stop_acks_unsettled(self: Any, simulation: Any, process: Any) -> None:
    """When it is stopped, it acks the messages that it has."""
    self.consumers[process].acks += process.deliveries.values()
    _stop(self, simulation, process)


@mutant("F52", SimulatedBrokerBackend, "publish", "worker-to+crash/1")
async def acked_before_published(self: Any, queue: str, packets: Any) -> Any:
    """The ack does not wait until the handler's result is published."""
    keys = {packet.id.removeprefix("r-") for packet in packets}
    sources = [delivery for delivery in self._process.deliveries.values() if delivery.entry.key in keys]
    self._system.consumers[self._process].acks += sources
    return await _publish(self, queue, packets)
