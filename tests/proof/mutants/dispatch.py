"""Consumers that are wrong: which clock they use, and how they settle deliveries."""

from __future__ import annotations

from typing import Any

from effectonce.core.run_sync import run_sync
from effectonce.errors import InDoubt, InProgress, StoreUnavailable
from tests.proof.explorer import guard_system, simulation
from tests.proof.explorer.guard_system import GuardSystem
from tests.proof.explorer.system import word_for

from .base import mutant

_guarded, _word_for = GuardSystem._guarded, word_for


@mutant("F12", simulation.Simulation, "apply", "guard-L/0")
def workers_clock(self: Any, batch: Any, sender: Any = None) -> Any:
    """A store uses the worker's clock."""
    skew = 0 if sender is None else sender.runtime.backend.clock.skew
    self.offset += skew
    try:
        replies = [reply for op in batch for reply in run_sync(self.port.run([op]))]
    finally:
        self.offset -= skew
    for op, reply in zip(batch, replies, strict=True):
        self.oracle.observe(op, reply, self.now())
    return replies


@mutant("F05", GuardSystem, "_guarded", "guard-L+crash/1")
async def acked_before_commit(self: Any, simulation: Any, process: Any, delivery: Any) -> None:
    """Acked before it has run."""
    await simulation.ask_broker(process, delivery, "ack")
    await _guarded(self, simulation, process, delivery)


@mutant("F06", guard_system, "word_for", "guard-L/0")
def in_progress_acked(error: BaseException) -> str:
    """A duplicate of a running message is acked."""
    return "ack" if isinstance(error, InProgress) else _word_for(error)


@mutant("F03", guard_system, "word_for", "guard-D+raise/1")
def doubt_acked(error: BaseException) -> str:
    """A message in doubt is acked away."""
    return "ack" if isinstance(error, InDoubt) else _word_for(error)


@mutant("F36", guard_system, "word_for", "guard-L+lose/1")
def outage_dead_lettered(error: BaseException) -> str:
    """A message whose store is down is dead-lettered."""
    return "dead" if isinstance(error, StoreUnavailable) else _word_for(error)
