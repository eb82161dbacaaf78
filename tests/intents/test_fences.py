"""Late senders: what the end of a lease, or of a saga's step, keeps from going out."""

from __future__ import annotations

from typing import Any

import pytest

import effectonce as eo
from effectonce.intents.intents import Intents
from effectonce.intents.operation import Intent
from effectonce.store import Store
from effectonce.testing import ManualClock

from .bank import PAYMENT, Bank


def test_a_handler_that_has_lost_its_lease_sends_nothing_more(
    clock: ManualClock, store: Store, charge: Any, bank: Bank
) -> None:
    """F08: another delivery may be running beside it, under another token."""

    @eo.once(store, scope="consumer", lease="30s")
    def consume(message: eo.Message[Any]) -> None:
        clock.advance("31s")
        charge(PAYMENT, key=message.id)

    with pytest.raises(eo.LeaseLost, match="its caller has lost its lease"):
        consume(eo.Message(type="order.paid", data={}))
    assert bank.seen == []


def test_a_stamp_whose_reply_is_late_is_not_sent(clock: ManualClock, store: Store, bank: Bank) -> None:
    """F11: the process was stopped between the commit of the stamp and the send."""
    intents = Intents(store, scope="slow")

    @intents.operation("stripe", "charge", lease="10s")
    def charge(intent: Intent[Any]) -> str:
        return bank.charge(intent)

    client = store.runtime.sync_client()
    settle = client.settle

    def stopped(op: Any) -> Any:
        clock.advance("11s")
        return settle(op)

    client.settle = stopped
    with pytest.raises(eo.LeaseLost, match="before it was sent"):
        charge({"id": "x"}, key="k")
    client.settle = settle
    assert bank.seen == []
