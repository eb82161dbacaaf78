"""Workers in mode T that are wrong: acked before the commit, batches half rolled back, ordering keys ignored.

Each defect is put between the worker and its seams: the database's session, the consumer, the handler.
"""

from __future__ import annotations

from typing import Any

from msgspec.structs import replace

from effectonce.contracts import ConnectionLost
from tests.proof.explorer.database import SimulatedSession
from tests.proof.explorer.tools.worker import SimulatedConsumer, WorkerSystem
from tests.proof.explorer.tools.worker_transactions import TransactionalWorkerSystem

from .base import mutant
from .worker import ack

FOREVER_US = 1 << 62

_insert, _commit, _roll_back = SimulatedSession._insert, SimulatedSession._commit, SimulatedSession.roll_back
_run_handler_in, _message_of = TransactionalWorkerSystem.run_handler_in, WorkerSystem.message_of
_nack = SimulatedConsumer.nack


# -- the worker, its handlers and its database


@mutant("F05", TransactionalWorkerSystem, "run_handler_in", "worker-TB+crash/1")
async def batch_acked_before_commit(self: Any, conn: Any, message: Any) -> None:
    """The acks of a batch go out with the next fetch, whether or not its transaction is committed by then."""
    await _run_handler_in(self, conn, message)
    ack(self, message.id)


@mutant("F33", SimulatedSession, "_insert_many", "worker-TB+crash/1")
def batch_rows_committed_first(self: Any, keys: Any) -> Any:
    """The rows of a batch are committed before its handlers run."""
    connection = self.connection
    inserted = [(key, *row) for key in keys for row in _insert(self, key)]
    connection.database.commit(connection.transaction)
    connection.transaction = connection.database.begin()
    return inserted


@mutant("F33", SimulatedSession, "roll_back", "worker-TB+raise/1")
async def batch_redone_without_rollback(self: Any) -> None:
    """A batch in which one message fails is redone one by one without a rollback."""
    await self.commit()


@mutant("F33", SimulatedSession, "roll_back", "worker-TB+raise/1")
async def batch_not_redone(self: Any) -> None:
    """A batch in which one message fails is rolled back, and acked."""
    await _roll_back(self)
    process, system = self.connection.process, self.connection.simulation.system
    system.consumers[process].acks += process.deliveries.values()


@mutant("F30", SimulatedSession, "_commit", "worker-TB+lose/1")
async def lost_commit_of_a_batch_is_success(self: Any) -> None:
    """The COMMIT of a batch without a reply is taken for a success."""
    try:
        await _commit(self)
    except ConnectionLost:
        pass


@mutant("F14", SimulatedSession, "_insert_many", "worker-TB/0")
def batch_runs_its_duplicates(self: Any, keys: Any) -> Any:
    """A message whose row was there before runs with the others."""
    return [(key, *(_insert(self, key) or [(0,)])[0]) for key in keys]


# -- the worker and the order of its messages


@mutant("F43", SimulatedConsumer, "nack", "worker-TO+raise/2")
async def messages_behind_a_failure_forgotten(self: Any, deliveries: Any, delay: float = 0.0) -> Any:
    """The messages of a batch behind a failed one of their ordering key are not given back, and kept for ever."""
    failed = [delivery for delivery in deliveries if delivery.handle.handler_error is not None]
    for delivery in deliveries:
        if delivery not in failed:
            self.queue.window_ends[delivery.handle.number] = FOREVER_US
    return await _nack(self, failed, delay)


def unordered(message: Any) -> Any:
    return replace(message, ordering_key=None)


@mutant("F43", WorkerSystem, "message_of", "worker-TO+raise/2")
def batch_goes_on_behind_a_failure(self: Any, entry: Any) -> Any:
    """Redone one by one, the messages behind a failed one of their ordering key do not wait for it."""
    return unordered(_message_of(self, entry))


@mutant("F43", WorkerSystem, "message_of", "worker-O+raise/1")
def delayed_key_not_held(self: Any, entry: Any) -> Any:
    """A redelivered message is handled before an earlier one of its ordering key."""
    message = _message_of(self, entry)
    return unordered(message) if entry.deliveries > 1 else message


@mutant("F43", WorkerSystem, "message_of", "worker-O+raise/2")
def order_forgotten_at_the_second_retry(self: Any, entry: Any) -> Any:
    """A message that is given back a second time is no longer kept in the order of its key (seen here)."""
    message = _message_of(self, entry)
    return unordered(message) if entry.deliveries > 2 else message
