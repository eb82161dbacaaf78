"""Classifiers and reconcilers, and what a verdict says about the sends before."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime
from typing import Any

import pytest

import effectonce as eo
from effectonce.intents.intents import Intents
from effectonce.intents.operation import Intent
from effectonce.providers import Verdict
from effectonce.record import Settlement
from effectonce.store import Store
from effectonce.testing import ManualClock
from tests.harness.faulty_store import FaultyBackend, fine

from .bank import PAYMENT, Answer, Bank, Payment, raising, unknown


def test_a_refusal_of_a_keyless_resend_does_not_settle_the_first(intents: Intents) -> None:
    answers: list[Exception] = [TimeoutError(), Answer(400)]

    @intents.operation("twilio", "message", without_key="at-least-once")
    def message(intent: Intent[str]) -> None:
        raise answers.pop(0)

    for _ in range(2):
        with pytest.raises(eo.OutcomeUnknown):
            message("hello", key="m")


def test_an_async_reconciler_of_a_sync_operation_is_refused_before_anything_happens(
    intents: Intents, charge: Any, bank: Bank
) -> None:
    @intents.reconcile("stripe")
    async def look_up(intent: Intent[Payment]) -> Verdict:
        return Verdict.unknown("")

    with pytest.raises(eo.SyncAsyncMismatch):
        charge(PAYMENT, key="k")
    with pytest.raises(eo.SyncAsyncMismatch):
        intents.check("1h")
    assert bank.seen == []


def test_without_keys_a_reconciler_is_asked_before_it_is_in_doubt(intents: Intents, mail: Any) -> None:
    @intents.reconcile("ses")
    def look_up(intent: Intent[str]) -> Verdict:
        return Verdict.success(None)

    with pytest.raises(eo.OutcomeUnknown):
        mail("lost reply", key="m1")
    mail("lost reply", key="m1")
    assert mail.sent == ["lost reply"]


def test_a_reconciler_that_cannot_tell_yet_is_asked_again_later(
    clock: ManualClock, intents: Intents, mail: Any
) -> None:
    asked: list[tuple[datetime, int]] = []

    @intents.reconcile("ses")
    def look_up(intent: Intent[str]) -> Verdict:
        asked.append((intent.first_sent_at, intent.send_count))
        if clock.now() / 1e6 < intent.first_sent_at.timestamp() + 60:
            return Verdict.pending("not listed yet", retry_after=7.0)
        return Verdict.success(None)

    sent_at = clock.now() / 1e6
    with pytest.raises(eo.OutcomeUnknown):
        mail("lost reply", key="m1")
    clock.advance(5)
    with pytest.raises(eo.OutcomeUnknown, match="cannot tell yet: not listed yet") as raised:
        mail("lost reply", key="m1")
    assert raised.value.retry_after == 7.0
    assert intents.in_doubt() == []
    clock.advance(3600)
    assert intents.recover().done == 1
    assert mail.sent == ["lost reply"]
    assert [(round(first.timestamp() - sent_at, 1), count) for first, count in asked] == [(0.0, 1)] * 2
    assert {first.tzinfo for first, _ in asked} == {UTC}


def test_a_classifier_that_cannot_tell_yet_leaves_it_unknown(intents: Intents) -> None:
    intents.classify("stripe")(lambda outcome: Verdict.pending("202", retry_after=3.0))

    @intents.operation("stripe", "charge", returns=str)
    def charge(intent: Intent[str]) -> str:
        return intent.provider_key

    with pytest.raises(eo.OutcomeUnknown, match="202") as raised:
        charge("x", key="k")
    assert raised.value.retry_after == 3.0


def test_a_plain_def_that_returns_an_awaitable_does_not_forget_what_was_sent_before(
    clock: ManualClock, store: Store, charge: Any, bank: Bank
) -> None:
    """A deploy made it ``return client.post(…)``, a coroutine, between two sends: the first is still to be known."""
    unknown(charge, bank)
    deployed = Intents(Store(store.runtime.backend, sweep_every=None), scope="billing")

    @deployed.operation("stripe", "charge")
    def lazy(intent: Intent[Payment]) -> str:
        return asyncio.sleep(0)  # type: ignore[return-value]

    with pytest.raises(eo.SyncAsyncMismatch):
        lazy(PAYMENT, key="pay_1")
    bank.kept.clear()  # the provider has forgotten
    clock.advance("2d")
    with pytest.raises(eo.InDoubt):
        charge(PAYMENT, key="pay_1")
    assert bank.charges == ["pay_1"]


def test_a_sync_async_mismatch_raised_inside_may_come_after_the_effect(intents: Intents) -> None:
    """The mail is out; then something else of the operation raises `SyncAsyncMismatch`."""
    sent = []

    @intents.operation("ses", "send", without_key="at-most-once")
    def send(intent: Intent[str]) -> None:
        sent.append(intent.request)
        raise eo.SyncAsyncMismatch("a sync saga in a running loop, say")

    with pytest.raises(eo.SyncAsyncMismatch):
        send("hello", key="m")
    with pytest.raises(eo.InDoubt):
        send("hello", key="m")
    assert sent == ["hello"]


@pytest.mark.parametrize("status", [403, 404, 405, 407, 413, 415])
def test_a_gate_before_the_keys_says_nothing_about_the_send_before(charge: Any, bank: Bank, status: int) -> None:
    """Rule 4, for the other answers that are given before a key is looked at: a revoked permission, a changed route."""
    unknown(charge, bank)
    bank.before = raising(Answer(status))
    with pytest.raises(eo.OutcomeUnknown, match="says nothing about the send before"):
        charge(PAYMENT, key="pay_1")
    bank.before = lambda: None
    assert charge(PAYMENT, key="pay_1") == "ch_1"


def test_a_gate_on_a_first_send_is_final(charge: Any, bank: Bank) -> None:
    bank.before = raising(Answer(403))
    with pytest.raises(Answer):
        charge(PAYMENT, key="pay_1")
    with pytest.raises(eo.PermanentFailure):
        charge(PAYMENT, key="pay_1")


@pytest.mark.parametrize("answer", [lambda _: 1 / 0, lambda _: "success"])
def test_a_classifier_that_is_broken_leaves_it_unknown(intents: Intents, charge: Any, bank: Bank, answer: Any) -> None:
    intents.classify("stripe")(answer)
    with pytest.raises(eo.OutcomeUnknown, match="the classifier"):
        charge(PAYMENT, key="pay_1")
    intents.classifiers.clear()
    assert charge(PAYMENT, key="pay_1") == "ch_1"
    assert bank.charges == ["pay_1"]


def test_a_classifier_that_is_async_is_refused(intents: Intents) -> None:
    async def verdict(outcome: Any) -> Verdict:
        return Verdict.unknown("")

    with pytest.raises(eo.SyncAsyncMismatch, match="plain def"):
        intents.classify("stripe")(verdict)  # type: ignore[arg-type]


def test_a_reconciler_that_gives_no_verdict_leaves_it_open(
    clock: ManualClock, intents: Intents, charge: Any, bank: Bank
) -> None:
    unknown(charge, bank)
    clock.advance("2d")
    intents.reconcile("stripe")(lambda intent: "found")
    with pytest.raises(eo.ConfigurationError, match="is not a Verdict"):
        charge(PAYMENT, key="pay_1")
    (record,) = intents.store.list(scope=charge.scope).records
    assert record.state == "free"


def test_a_doubt_that_could_not_be_recorded_is_recorded_by_the_next_delivery() -> None:
    """Else no operator would ever see it."""
    clock = ManualClock()
    backend = FaultyBackend(clock)
    intents = Intents(eo.Store(backend, sweep_every=None), scope="billing")
    sent: list[str] = []

    @intents.operation("twilio", "sms", without_key="at-most-once")
    def sms(intent: eo.Intent[str]) -> str:
        sent.append(intent.request)
        backend.before = lambda op: eo.StoreUnavailable("away") if isinstance(op, Settlement) else None
        raise TimeoutError

    with pytest.raises(eo.OutcomeUnknown, match="could not be recorded; deliver it again"):
        sms("hello", key="1")
    backend.before = fine
    clock.advance("1m")
    with pytest.raises(eo.InDoubt):
        sms("hello", key="1")
    assert sent == ["hello"]
