"""Redrives that are wrong: they remove before they publish, overlook refusals, or repeat work that is done."""

from __future__ import annotations

from typing import Any

from effectonce.dead_letters.queue import DeadLetterQueue
from effectonce.errors import BrokerUnavailable
from tests.proof.explorer.tools.redrive import QUEUE, SimulatedDeadLetters

from .base import mutant

_publish, _prepare_record, _predict = (
    SimulatedDeadLetters.publish,
    DeadLetterQueue._prepare_record,
    DeadLetterQueue._predict,
)


@mutant("F51", DeadLetterQueue, "aredrive", "redrive+crash/1")
async def removed_before_published(self: Any, **options: Any) -> list[Any]:
    """A dead letter is removed, and then published: a crash in between loses it."""
    letters = self.broker.backend.dead_letters(QUEUE, group="")
    for letter in (await letters.browse(100))[0]:
        if letter.packet.id != "k2":
            await letters.remove([letter.id])
            await letters.publish(QUEUE, [letter.packet])
    return []


@mutant("F45", SimulatedDeadLetters, "publish", "redrive+lose/1")
async def redrive_unconfirmed(self: Any, queue: str, packets: Any) -> Any:
    """A re-publish that the broker has not confirmed counts as published."""
    try:
        return await _publish(self, queue, packets)
    except BrokerUnavailable:
        return [None for _ in packets]


@mutant("F44", SimulatedDeadLetters, "publish", "redrive+reject/1")
async def redrive_refusal_overlooked(self: Any, queue: str, packets: Any) -> Any:
    """A re-publish that the broker has refused counts as published."""
    await _publish(self, queue, packets)
    return [None for _ in packets]


@mutant("F51", DeadLetterQueue, "_prepare_record", "redrive/0")
async def redrive_repeats_done_work(self: Any, job: Any, fate: Any, reopens: bool) -> None:
    """A plain redrive starts a new generation of a record that is done."""
    await _prepare_record(self, job, fate, True)


@mutant("F51", DeadLetterQueue, "_predict", "redrive/0")
async def redrive_leaves_dead_letters(self: Any, dead: Any, target: str) -> Any:
    """A message that was tried before is left among the dead letters."""
    job, fate, attempts = await _predict(self, dead, target)
    return job, "failed" if fate == "resume" else fate, attempts
