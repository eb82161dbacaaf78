"""Workers in mode L that are wrong: they ack too early, mix up blocks, do not keep what they have in hand.

Each defect is put between the worker and what it speaks to (the store's port, the consumer, the publisher, the
handler), so that it does not depend on how a worker is built.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

from msgspec.structs import replace

from effectonce.core.codec import NOTHING
from effectonce.errors import StoreUnavailable
from effectonce.record import Answer, Claim, Settlement
from tests.proof.explorer.tools.worker import SimulatedBrokerBackend, SimulatedConsumer, WorkerSystem
from tests.proof.explorer.transport import SimulatedStorePort

from .base import mutant

_run = SimulatedStorePort.run
_run_handler, _stop = WorkerSystem.run_handler, WorkerSystem.stop
_extend, _publish = SimulatedConsumer.extend, SimulatedBrokerBackend.publish


def ack(system: WorkerSystem, message_id: str) -> None:
    """Let the process whose turn it is ack a message that it has in hand: with its next fetch."""
    assert system.simulation is not None
    consumer = system.consumers[system.simulation.on]
    consumer.acks.append(consumer.known[message_id])


def are_claims(batch: Sequence[Any]) -> bool:
    return all(isinstance(op, Claim) for op in batch)


def are_completions(batch: Sequence[Any]) -> bool:
    return all(isinstance(op, Settlement) and op.state == "done" for op in batch)


# -- the worker and the store


@mutant("F06", SimulatedStorePort, "run", "worker-L+crash/1")
async def worker_acks_what_is_in_progress(self: Any, batch: Any) -> Any:
    """A duplicate of what another worker runs is taken for done, and acked."""
    replies = await _run(self, batch)
    if not are_claims(batch):
        return replies
    return [replace(each, kind="done", result=NOTHING) if each.kind == "in_progress" else each for each in replies]


@mutant("F36", SimulatedStorePort, "run", "worker-L+lose/1")
async def worker_acks_what_was_not_answered(self: Any, batch: Any) -> Any:
    """A message whose claim the store has not answered is taken for done, and acked."""
    try:
        return await _run(self, batch)
    except StoreUnavailable:
        if not are_claims(batch):
            raise
        return [Answer("done", result=NOTHING) for _ in batch]


@mutant("F36", SimulatedStorePort, "run", "worker-L+lose/1")
async def block_recorded_unseen(self: Any, batch: Any) -> Any:
    """What the store says of a block of completions is not looked at."""
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
    """The answers to a block of claims are given to the wrong ones."""
    replies = await _run(self, batch)
    return replies[::-1] if are_claims(batch) else replies


@mutant("F20", SimulatedStorePort, "run", "worker-L+crash/1", promise=False)
async def suspect_pays_for_waiting(self: Any, batch: Any) -> Any:
    """What is given back until it can run alone has lost an attempt for it."""
    return await _run(self, [replace(op, refund=False) if isinstance(op, Settlement) else op for op in batch])


@mutant("F52", SimulatedStorePort, "run", "worker-to+crash/1")
async def duplicate_sends_nothing_on(self: Any, batch: Any) -> Any:
    """A duplicate of what is done is acked, whether or not that was sent on."""
    replies = await _run(self, batch)
    if not are_claims(batch):
        return replies
    return [replace(each, result=NOTHING) if each.kind == "done" else each for each in replies]


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
    """Only what runs is kept from being delivered again, not what waits behind it."""
    await _extend(self, [each for each in deliveries if each.handle.task is not None], seconds)
    return [True for _ in deliveries]


@mutant("F58", WorkerSystem, "stop", "worker-L+stop/1")
def stop_acks_all_in_hand(self: Any, simulation: Any, process: Any) -> None:
    """Told to stop, it acks what it has in hand."""
    self.consumers[process].acks += process.deliveries.values()
    _stop(self, simulation, process)


@mutant("F52", SimulatedBrokerBackend, "publish", "worker-to+crash/1")
async def acked_before_sent_on(self: Any, queue: str, packets: Any) -> Any:
    """The ack does not wait for what the handler sends on."""
    keys = {packet.id.removeprefix("r-") for packet in packets}
    sources = [each for each in self._process.deliveries.values() if each.entry.key in keys]
    self._system.consumers[self._process].acks += sources
    return await _publish(self, queue, packets)
