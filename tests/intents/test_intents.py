"""Intents over a bank that can be told to misbehave: each rule of the log, and each verdict, by its number."""

from __future__ import annotations

import asyncio
from typing import Any

import httpx
import pytest

import effectonce as eo
from effectonce.intents.intents import Intents
from effectonce.intents.operation import Intent
from effectonce.providers import Verdict
from effectonce.store import Store
from effectonce.testing import ManualClock

from .bank import PAYMENT, Answer, Bank, Payment, raising, unknown

# -- once


def test_a_duplicate_gets_the_first_ones_result(charge: Any, bank: Bank) -> None:
    first = charge.call(PAYMENT, key="pay_1")
    again = charge.call(PAYMENT, key="pay_1")
    assert (first.value, first.replayed, again.value, again.replayed) == ("ch_1", False, "ch_1", True)
    assert bank.charges == ["pay_1"]


async def test_an_async_operation(intents: Intents, bank: Bank) -> None:
    @intents.operation("stripe", "charge")
    async def charge(intent: Intent[Payment]) -> str:
        await asyncio.sleep(0)
        return bank.charge(intent)

    assert [await charge(PAYMENT, key="pay_1") for _ in range(2)] == ["ch_1", "ch_1"]
    assert bank.charges == ["pay_1"]


def test_another_request_under_the_same_key_is_refused(charge: Any, bank: Bank) -> None:
    """F21."""
    charge(PAYMENT, key="pay_1")
    with pytest.raises(eo.PayloadMismatch):
        charge(Payment("pay_1", 9999), key="pay_1")
    assert len(bank.seen) == 1


def test_keys_differ_by_account_step_and_scope(intents: Intents, store: Store, charge: Any, bank: Bank) -> None:
    """Rule 2: one key per effect, and two tenants never share one (F24)."""
    other = Intents(store, scope="other")

    @other.operation("stripe", "charge")
    def elsewhere(intent: Intent[Payment]) -> str:
        return bank.charge(intent)

    charge(PAYMENT, key="k")
    charge(PAYMENT, key="k", account="acme")
    charge(PAYMENT, key="k", step="fee")
    elsewhere(PAYMENT, key="k")
    assert len(set(bank.seen)) == 4
    assert {len(key) for key in bank.seen} == {36}


# -- rule 1: what is committed before each send


def test_the_frozen_request_and_the_stamp_are_committed_before_it_is_sent(
    intents: Intents, store: Store, charge: Any, bank: Bank
) -> None:
    """Rule 1."""
    found: list[tuple[bytes, int, bool]] = []

    def look() -> None:
        (record,) = store.list(scope=charge.scope, unfinished=True).records
        log = intents.log(record)
        found.append((log.request, log.send_count, log.first_sent_at > 0))

    bank.before = look
    charge(PAYMENT, key="pay_1")
    assert found == [(b'1{"id":"pay_1","amount":4200}', 1, True)]


def test_a_resend_uses_the_request_as_it_was_frozen(clock: ManualClock, store: Store, bank: Bank) -> None:
    """A deploy in between changes how requests are made; what was written down goes out all the same."""
    sent: list[Any] = []
    for version in range(2):
        intents = Intents(Store(store.runtime.backend, sweep_every=None), scope="billing")

        @intents.operation("stripe", "charge")
        def charge(intent: Intent[Any]) -> str:
            sent.append((intent.request, intent.provider_key, intent.send_count))
            raise TimeoutError

        if version == 0:
            with pytest.raises(eo.OutcomeUnknown):
                charge({"amount": 1}, key="k")
        else:
            clock.advance("2m")
            assert intents.recover().later == 1
    assert [request for request, _, _ in sent] == [{"amount": 1}, {"amount": 1}]
    assert sent[0][1] == sent[1][1]
    assert [count for *_, count in sent] == [1, 2]


# -- the four verdicts


@pytest.mark.parametrize("error", [TimeoutError("read"), ConnectionResetError(), Answer(500), Answer(409)])
def test_unknown_is_sent_again_with_the_same_key(charge: Any, bank: Bank, error: Exception) -> None:
    """F03, mode K; rule 3: the effect happened, the reply did not come."""
    bank.after = raising(error)
    with pytest.raises(eo.OutcomeUnknown) as told:
        charge(PAYMENT, key="pay_1")
    assert told.value.__cause__ is error
    bank.after = lambda: None
    assert charge(PAYMENT, key="pay_1") == "ch_1"
    assert bank.charges == ["pay_1"]
    assert len(set(bank.seen)) == 1


def test_a_definitive_failure_is_stored_and_raised_again(charge: Any, bank: Bank) -> None:
    bank.before = raising(Answer(402, "card_declined"))
    with pytest.raises(Answer):
        charge(PAYMENT, key="pay_1")
    bank.before = lambda: None
    with pytest.raises(eo.PermanentFailure, match="card_declined"):
        charge(PAYMENT, key="pay_1")
    assert bank.charges == []


@pytest.mark.parametrize("status", [401, 429])
def test_turned_away_on_a_first_send_is_not_executed(intents: Intents, charge: Any, bank: Bank, status: int) -> None:
    """Rule 4."""
    bank.before = raising(Answer(status))
    with pytest.raises(eo.NotExecuted):
        charge(PAYMENT, key="pay_1")
    (record,) = intents.store.list(scope=charge.scope, unfinished=True).records
    assert intents.log(record).send_count == 0
    bank.before = lambda: None
    assert charge(PAYMENT, key="pay_1") == "ch_1"


@pytest.mark.parametrize("status", [401, 429])
def test_turned_away_on_a_resend_says_nothing_about_the_first(
    clock: ManualClock, intents: Intents, charge: Any, bank: Bank, status: int
) -> None:
    """Rule 4: the first may have happened, so after the window it is in doubt and not sent as new."""
    bank.after = raising(TimeoutError())
    with pytest.raises(eo.OutcomeUnknown):
        charge(PAYMENT, key="pay_1")
    bank.before, bank.after = raising(Answer(status)), lambda: None
    with pytest.raises(eo.OutcomeUnknown):
        charge(PAYMENT, key="pay_1")
    clock.advance("2d")
    with pytest.raises(eo.InDoubt):
        charge(PAYMENT, key="pay_1")
    assert bank.charges == ["pay_1"]
    assert len(bank.seen) == 2


def test_what_never_left_is_not_executed(charge: Any, bank: Bank) -> None:
    bank.before = raising(httpx.ConnectError("refused"))
    with pytest.raises(eo.NotExecuted):
        charge(PAYMENT, key="pay_1")


def test_a_refused_connection_to_something_else_says_nothing(charge: Any, bank: Bank) -> None:
    """An audit database that is down, after the charge."""
    bank.after = raising(ConnectionRefusedError())
    with pytest.raises(eo.OutcomeUnknown):
        charge(PAYMENT, key="pay_1")


def test_the_users_classifier_comes_first(intents: Intents, charge: Any, bank: Bank) -> None:
    @intents.classify("stripe")
    def verdict(outcome: Any) -> Verdict | None:
        return Verdict.failure("ours") if isinstance(outcome, TimeoutError) else None

    bank.after = raising(TimeoutError())
    for _ in range(2):  # the second one gets the error of the first
        with pytest.raises(TimeoutError):
            charge(PAYMENT, key="pay_1")
    assert len(bank.charges) == 1


# -- rules 5 and 6: the deadline, and the reconciler


def test_after_the_window_it_is_in_doubt_and_never_sent(clock: ManualClock, charge: Any, bank: Bank) -> None:
    """Rule 5: neither a resend nor a fresh key."""
    unknown(charge, bank)
    bank.kept.clear()  # the provider has forgotten
    clock.advance("1436m")
    for _ in range(2):
        with pytest.raises(eo.InDoubt):
            charge(PAYMENT, key="pay_1")
    assert bank.charges == ["pay_1"]


def test_inside_the_window_it_is_sent_until_the_margin(clock: ManualClock, charge: Any, bank: Bank) -> None:
    unknown(charge, bank)
    clock.advance("1434m")
    assert charge(PAYMENT, key="pay_1") == "ch_1"


def test_a_reconciler_finds_it(clock: ManualClock, intents: Intents, charge: Any, bank: Bank) -> None:
    """Rule 6: found, so it is completed."""

    @intents.reconcile("stripe")
    def look_up(intent: Intent[Payment]) -> Verdict:
        return Verdict.success(bank.kept[intent.provider_key])

    unknown(charge, bank)
    clock.advance("2d")
    assert charge(PAYMENT, key="pay_1") == "ch_1"
    assert len(bank.seen) == 1


def test_proven_absent_it_begins_anew_under_another_key(
    clock: ManualClock, intents: Intents, charge: Any, bank: Bank
) -> None:
    """Rule 6."""

    @intents.reconcile("stripe")
    def look_up(intent: Intent[Payment]) -> Verdict:
        return Verdict.not_executed("not in the list")

    bank.before = raising(TimeoutError())
    with pytest.raises(eo.OutcomeUnknown):
        charge(PAYMENT, key="pay_1")
    bank.before = lambda: None
    clock.advance("2d")
    assert charge(PAYMENT, key="pay_1") == "ch_1"
    assert len(set(bank.seen)) == 2


def test_a_reconciler_that_does_not_know_leaves_it_in_doubt(
    clock: ManualClock, intents: Intents, charge: Any, bank: Bank
) -> None:
    @intents.reconcile("stripe")
    def look_up(intent: Intent[Payment]) -> Verdict:
        return Verdict.unknown("their search is down")

    unknown(charge, bank)
    clock.advance("2d")
    with pytest.raises(eo.InDoubt, match="their search is down"):
        charge(PAYMENT, key="pay_1")


def test_a_redelivery_longer_than_the_window_needs_a_reconciler(intents: Intents, charge: Any) -> None:
    """Rule 7."""
    intents.check("12h")
    with pytest.raises(eo.ConfigurationError, match="add a reconciler"):
        intents.check("14d")
    intents.reconcile("stripe")(lambda intent: Verdict.unknown("?"))
    intents.check("14d")


# -- mode I


def test_without_keys_an_unknown_outcome_is_in_doubt_at_once(intents: Intents, mail: Any) -> None:
    """F03, mode I: never a blind rerun."""
    for _ in range(2):
        with pytest.raises(eo.InDoubt):
            mail("lost reply", key="m1")
    assert mail.sent == ["lost reply"]
    assert len(intents.in_doubt()) == 1


def test_without_keys_a_process_that_died_leaves_it_in_doubt(clock: ManualClock, store: Store, mail: Any) -> None:
    store.runtime.after_fork()  # from here on nothing that this process held is settled by it
    with pytest.raises(BaseException):  # noqa: B017
        mail("killed", key="m1")
    clock.advance("2m")
    with pytest.raises(eo.InDoubt):
        mail("killed", key="m1")
    assert mail.sent == ["killed"]


def test_at_least_once_is_a_choice(intents: Intents) -> None:
    """Rule 8."""
    sent = []

    @intents.operation("twilio", "message", without_key="at-least-once")
    def message(intent: Intent[str]) -> None:
        sent.append(intent.id)
        if len(sent) == 1:
            raise TimeoutError

    with pytest.raises(eo.OutcomeUnknown):
        message("hello", key="m1")
    message("hello", key="m1")
    assert len(sent) == 2
    assert len(set(sent)) == 1, "the intent's id goes into tags, the same each time"


def test_a_retention_shorter_than_the_redelivery_is_refused(intents: Intents) -> None:
    """F25."""

    @intents.operation("ses", "send", without_key="at-most-once", retention="1h")
    def send(intent: Intent[str]) -> None: ...

    with pytest.raises(eo.ConfigurationError, match="lengthen retention="):
        intents.check("14d")


async def test_a_coroutine_that_is_awaited_late_is_sent(clock: ManualClock, intents: Intents) -> None:
    sent = []

    @intents.operation("ses", "send", without_key="at-most-once")
    async def send(intent: Intent[str]) -> None:
        sent.append(intent.request)

    later = send("hello", key="m")
    clock.advance("31s")
    await later
    assert sent == ["hello"]


async def test_the_lease_of_a_coroutine_that_is_awaited_late_is_kept(
    clock: ManualClock, store: eo.Store, intents: Intents
) -> None:
    """It may run for ``max_run`` from when it begins, not from when it was made."""
    told: list[eo.Event] = []
    store.add_hook(told.append)

    @intents.operation("stripe", "charge", max_run="10m")
    async def charge(intent: Intent[str]) -> None:
        for _ in range(20):
            clock.advance("20s")
            store.runtime.heartbeat.beat()
        assert not eo.current().lease_lost

    later = charge("p1", key="p1")
    clock.advance("9m")
    await later
    assert [event.seconds for event in told if event.kind == "completed"] == [400.0]
