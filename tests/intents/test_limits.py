"""What intents refuse, where they stop, and what they count."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

import effectonce as eo
from effectonce.intents.intents import Intents
from effectonce.intents.operation import Intent
from effectonce.store import Store
from effectonce.testing import ManualClock

from .bank import PAYMENT, Bank, Payment, unknown


@pytest.mark.parametrize("scope", ["", "a\0b", "x" * 256, 7])
def test_a_scope_is_a_short_text(store: Store, scope: Any) -> None:
    with pytest.raises(eo.ConfigurationError, match="scope="):
        Intents(store, scope=scope)


def test_the_name_of_an_operation_belongs_to_its_scope(store: Store, intents: Intents) -> None:
    with pytest.raises(eo.ConfigurationError, match="scope="):
        intents.operation("stripe", "x" * 256)(lambda intent: None)


def test_a_provider_has_one_classifier_and_one_reconciler(intents: Intents) -> None:
    intents.classify("stripe")(lambda answer: None)
    intents.reconcile("stripe")(lambda intent: None)
    with pytest.raises(eo.ConfigurationError, match="stripe has a classifier already"):
        intents.classify("stripe")(lambda answer: None)
    with pytest.raises(eo.ConfigurationError, match="stripe has a reconciler already"):
        intents.reconcile("stripe")(lambda intent: None)
    intents.classify("paypal")(lambda answer: None)


def test_a_request_has_a_largest_size(intents: Intents, mail: Any) -> None:
    mail("x" * (256 * 1024 - 2), key="fits")
    assert len(mail.sent) == 1
    with pytest.raises(eo.ConfigurationError, match="nothing was sent"):
        mail("x" * 256 * 1024, key="does not fit")
    assert len(mail.sent) == 1


def test_a_margin_as_long_as_the_window_leaves_nothing(intents: Intents) -> None:
    with pytest.raises(eo.ConfigurationError, match="leaves nothing"):
        intents.operation("stripe", "charge", window="5m", margin="5m")
    intents.operation("stripe", "charge", window="301s", margin="5m")(lambda intent: None)


def test_a_store_without_notes_is_told_and_has_no_orphans(redis_url: str, unique_name: str) -> None:
    with eo.connect(f"{redis_url}?namespace={unique_name}", sweep_every=None) as store:
        intents = Intents(store, scope="billing")
        charge = intents.operation("stripe", "charge")(lambda intent: None)
        with pytest.raises(eo.ConfigurationError, match="keeps no notes"):
            charge("request", key="k")
        assert intents.orphaned_scopes() == []


def test_as_many_doubts_are_listed_as_are_asked_for(intents: Intents, mail: Any) -> None:
    @intents.operation("ses", "another", without_key="at-most-once")
    def another(intent: Intent[str]) -> None:
        raise TimeoutError

    for number in range(3):
        for operation, request in ((mail, "lost reply"), (another, "any")):
            with pytest.raises(eo.InDoubt):
                operation(request, key=f"k{number}")
    assert [len(intents.in_doubt(limit)) for limit in (1, 3, 4, 6, 7)] == [1, 3, 4, 6, 6]
    assert len(intents.in_doubt()) == 6


# -- recovery


@pytest.fixture
def five_unknown(clock: ManualClock, charge: Any, bank: Bank) -> Bank:
    for number in range(5):
        bank.after = lambda: raise_timeout()
        with pytest.raises(eo.OutcomeUnknown):
            charge(Payment(f"pay_{number}", 1), key=f"pay_{number}")
    bank.after = lambda: None
    bank.seen.clear()
    clock.advance("2m")
    return bank


def raise_timeout() -> None:
    raise TimeoutError


def test_a_recovery_counts_what_it_did(intents: Intents, five_unknown: Bank) -> None:
    done = intents.recover()
    assert (done.done, done.failed, done.in_doubt, done.later, done.broken) == (5, 0, 0, 0, 0)
    assert len(five_unknown.charges) == 5
    done = intents.recover()
    assert (done.done, done.later) == (0, 0)


def test_a_recovery_stops_when_it_is_told(intents: Intents, five_unknown: Bank) -> None:
    asked: list[int] = []

    def stop() -> bool:
        asked.append(len(five_unknown.seen))
        return len(five_unknown.seen) >= 2

    assert intents.recover(stop=stop).done == 2
    assert len(five_unknown.seen) == 2
    assert intents.recover(limit=2).done == 2
    assert intents.recover().done == 1


def test_a_recovery_leaves_alone_what_has_just_changed(
    clock: ManualClock, intents: Intents, charge: Any, bank: Bank
) -> None:
    unknown(charge, bank)
    assert intents.recover(idle="1m").done == 0
    clock.advance("59s")
    assert intents.recover(idle="1m").done == 0
    clock.advance("2s")
    assert intents.recover(idle="1m").done == 1


async def test_an_async_recovery_stops_when_it_is_told(clock: ManualClock, intents: Intents) -> None:
    sent: list[str] = []

    @intents.operation("stripe", "acharge")
    async def acharge(intent: Intent[str]) -> str:
        sent.append(intent.request)
        if len(sent) <= 3:
            raise TimeoutError
        return "ok"

    for number in range(3):
        with pytest.raises(eo.OutcomeUnknown):
            await acharge(f"r{number}", key=f"k{number}")
    clock.advance("2m")
    assert (await intents.arecover(stop=lambda: True)).done == 0
    assert len(sent) == 3
    assert intents.recover().done == 0, "what is async is left to arecover"
    assert (await intents.arecover()).done == 3


# -- in a transaction of the caller's


@pytest.fixture
def file(tmp_path: Path) -> str:
    return str(tmp_path / "shop.db")


async def test_an_async_operation_is_sent_with_async_with(file: str) -> None:
    import aiosqlite

    with eo.connect(f"sqlite:///{file}", sweep_every=None) as store:
        store.migrate()
        intents = Intents(store, scope="billing")

        @intents.operation("stripe", "charge")
        async def charge(intent: Intent[Payment]) -> str:
            await asyncio.sleep(0)
            return f"charged {intent.request.id}"

        with pytest.raises(eo.SyncAsyncMismatch, match="async with"), charge.send(PAYMENT, key="k"):
            pass
        async with aiosqlite.connect(file) as connection, charge.send(PAYMENT, key="k") as sent:
            assert sent.result == "charged pay_1"
            await connection.execute("BEGIN IMMEDIATE")
            await sent.complete(connection)
            await connection.commit()
        assert (await charge.call(PAYMENT, key="k")).replayed
