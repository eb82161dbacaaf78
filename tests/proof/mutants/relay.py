"""Relays and outboxes that are wrong: rows settled unpublished or unconfirmed, out of order, or under another id."""

from __future__ import annotations

from typing import Any

from msgspec.structs import replace

from effectonce.contracts.outbox import RowOutcome
from effectonce.errors import BrokerUnavailable
from effectonce.outbox.outbox import Outbox, message_of
from effectonce.relay import publish_batch
from effectonce.relay.publish_batch import PublishBatch
from tests.proof.explorer.tools import outbox as model

from .base import mutant

_publish_rows, _publish = PublishBatch.publish, PublishBatch._publish
_lease = model.SimulatedOutboxTable.lease


@mutant("F42", PublishBatch, "publish", "outbox-relay+crash/1")
async def settled_before_published(self: Any) -> None:
    """Rows are settled as published, and then published."""
    port = self._publisher
    await port.settle(port._process.owners[-1], [RowOutcome(row.seq, "published") for row in self.rows], 0)
    await _publish_rows(self)


@mutant("F45", PublishBatch, "_publish", "outbox-relay+lose/1")
async def unconfirmed_is_published(self: Any, queue: str, packets: Any, *more: Any) -> None:
    """A row that the broker has not confirmed counts as published."""
    try:
        await _publish(self, queue, packets, *more)
    except BrokerUnavailable:
        for row, _ in packets:
            self.outcomes[row.seq] = RowOutcome(row.seq, "published")


@mutant("F44", PublishBatch, "_record_failure", "outbox-relay+reject/1")
def refused_is_published(self: Any, row: Any, error: Exception) -> None:
    """A row that the broker has refused counts as published with its batch."""
    self.outcomes[row.seq] = RowOutcome(row.seq, "published")


@mutant("F36", PublishBatch, "release_rest", "outbox-relay+lose/1")
def unpublished_is_settled(self: Any) -> list[RowOutcome]:
    """Rows without an outcome are settled as published."""
    for row in self.rows:
        self.outcomes.setdefault(row.seq, RowOutcome(row.seq, "published"))
    return list(self.outcomes.values())


@mutant("F46", PublishBatch, "_defer_if_blocked", "outbox-relay+reject/1")
def key_continues_after_a_refusal(self: Any, row: Any) -> bool:
    """The rows behind a refused one of their key are published all the same."""
    return False


@mutant("F43", model, "select_in_turn", "outbox-relay+crash/1")
def leased_out_of_turn(page: Any, limit: int) -> Any:
    """Rows are leased although earlier ones of their key are not published."""
    return [row.seq for row in page][::-1][:1], {}


@mutant("F42", publish_batch, "message_of", "outbox-relay+crash/2")
def new_id_for_every_publish(row: Any) -> Any:
    """A message that is published again has another id."""
    return replace(message_of(row), id=f"m-{row.ordering_key}-{row.attempts + 7}")


@mutant("F33", Outbox, "_insert", "outbox-send+raise/1")
async def sent_outside_the_transaction(self: Any, session: Any, rows: Any) -> None:
    """The row of the outbox is committed by itself: it is published although the handler fails."""
    database = session.connection.database
    for row in rows:
        database.sequence += 1
        database.on_send(database.sequence, row)


@mutant("F41", model.SimulatedOutboxTable, "lease", "outbox-send/0")
def leased_by_a_cursor(self: Any, lease: Any) -> Any:
    """A relay reads only beyond the last row that it has seen, so that a later commit of an earlier number is lost."""
    seen = getattr(self, "cursor", 0)
    leased = _lease(self, replace(lease, after=seen))
    self.cursor = max([seen, *(row.seq for row in leased.rows), 1 if not self.all else 0])
    return leased


@mutant("F43", model.SimulatedOutboxTable, "lease", "outbox-relay/0")
def rows_not_leased(self: Any, lease: Any) -> Any:
    """Two relays get the same rows."""
    leased = _lease(self, lease)
    for line in self.all:
        line.leased_until = 0
    return leased
