"""What hostile readers found, in the corners of an intent's life."""

from __future__ import annotations

import asyncio
from contextlib import nullcontext
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import httpx
import msgspec
import pytest

import effectonce as eo
from effectonce.intents.intents import Intents
from effectonce.intents.operations import Intent
from effectonce.providers import Verdict
from effectonce.store import Store
from effectonce.testing import ManualClock

from .bank import PAYMENT, Answer, Bank, Payment, raising, unknown


def test_an_operators_word_is_kept_as_long_as_the_operation_says(clock: ManualClock, intents: Intents) -> None:
    sent = []

    @intents.operation("ses", "mail", without_key="at-most-once", retention="90d")
    def mail(intent: Intent[str]) -> None:
        sent.append(intent.request)
        raise TimeoutError

    for outcome in ("done", "retry"):
        with pytest.raises(eo.InDoubt):
            mail("hello", key=outcome)
    for record in intents.in_doubt():
        intents.resolve(record.key, "done" if intents.log(record).key == "done" else "retry", result=...)
    clock.advance("60d")
    intents.store.purge()
    with pytest.raises(eo.ResultNotStored) if mail.policy.codec.discards is False else nullcontext():
        mail("hello", key="done")
    assert sent.count("hello") == 2
    assert intents.recover().in_doubt == 1, "what is to be retried waits for it"


def test_every_doubt_is_listed_however_many_others_there_are(intents: Intents, mail: Any) -> None:
    for number in range(7):
        with pytest.raises(eo.InDoubt):
            mail("lost reply", key=f"m{number}")
    assert len(intents.in_doubt(limit=5)) == 5
    assert len(intents.in_doubt()) == 7


@pytest.mark.parametrize("request_", [{"rate": float("nan")}, (1, 2), {5: "five"}])
def test_a_request_that_would_change_by_being_frozen_is_refused(intents: Intents, request_: Any) -> None:
    @intents.operation("stripe", "untyped")
    def untyped(intent: Intent[Any]) -> None:
        raise AssertionError("nothing may be sent")

    with pytest.raises(eo.ConfigurationError, match="cannot be stored"):
        untyped(request_, key="k")


def test_the_order_of_a_requests_members_is_no_other_request(intents: Intents) -> None:
    """F22."""

    @intents.operation("stripe", "untyped")
    def untyped(intent: Intent[Any]) -> int:
        return 1

    untyped({"a": 1, "b": 2}, key="k")
    assert untyped.call({"b": 2, "a": 1}, key="k").replayed


def test_a_refusal_of_a_keyless_resend_does_not_settle_the_first(intents: Intents) -> None:
    answers: list[Exception] = [TimeoutError(), Answer(400)]

    @intents.operation("twilio", "message", without_key="at-least-once")
    def message(intent: Intent[str]) -> None:
        raise answers.pop(0)

    for _ in range(2):
        with pytest.raises(eo.OutcomeUnknown):
            message("hello", key="m")


def test_one_unreadable_record_does_not_keep_the_others_waiting(
    clock: ManualClock, store: Store, intents: Intents, charge: Any, bank: Bank
) -> None:
    bank.after = raising(TimeoutError())
    for number in range(3):
        with pytest.raises(eo.OutcomeUnknown):
            charge(PAYMENT, key=f"p{number}")
    bank.after = lambda: None
    log = intents.log

    def unreadable(record: Any) -> Any:
        if log(record).key == "p0":
            raise eo.CorruptRecord("a row that somebody edited")
        return log(record)

    intents.log = unreadable  # type: ignore[method-assign]
    clock.advance("2m")
    assert (intents.recover().done, intents.recover().broken) == (2, 1)


def test_a_reconciler_of_another_colour_is_refused_before_anything_happens(
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


def test_without_keys_a_reconciler_is_asked_before_it_is_in_doubt(intents: Intents, mail: Any) -> None:
    @intents.reconcile("ses")
    def look_up(intent: Intent[str]) -> Verdict:
        return Verdict.success(None)

    with pytest.raises(eo.OutcomeUnknown):
        mail("lost reply", key="m1")
    mail("lost reply", key="m1")
    assert mail.sent == ["lost reply"]


def test_an_operators_result_must_be_one(intents: Intents) -> None:
    @intents.operation("ses", "send", without_key="at-most-once")
    def send(intent: Intent[str]) -> int:
        raise TimeoutError

    with pytest.raises(eo.InDoubt):
        send("hello", key="m")
    (record,) = intents.in_doubt()
    with pytest.raises(eo.ConfigurationError, match="not a result of"):
        intents.resolve(record.key, "done", result="ch_1")
    intents.resolve(record.key, "done", result=7)
    assert send("hello", key="m") == 7


# -- the history of what was sent is never lost


def test_an_operation_of_the_wrong_colour_keeps_what_was_sent_before(
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


def test_a_wrong_colour_from_within_may_come_after_the_effect(intents: Intents) -> None:
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


# -- what is the user's own, and goes wrong


def test_a_frozen_request_that_no_longer_reads_is_not_counted_as_sent(
    clock: ManualClock, store: Store, intents: Intents
) -> None:
    """A deploy changed the type of the requests; nothing is sent, and nothing is in doubt."""

    @intents.operation("ses", "send", without_key="at-most-once")
    def send(intent: Intent[dict[str, str]]) -> None:
        raise httpx.ConnectError("refused")

    with pytest.raises(eo.NotExecuted):
        send({"to": "ann"}, key="m")
    deployed = Intents(Store(store.runtime.backend, sweep_every=None), scope="billing")

    @deployed.operation("ses", "send", without_key="at-most-once")
    def changed(intent: Intent[Payment]) -> None:
        raise AssertionError("nothing may be sent")

    clock.advance("2m")
    assert deployed.recover().broken == 1
    (record,) = store.list(scope=send.scope).records
    assert (record.state, intents.log(record).send_count) == ("free", 0)


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


# -- what is frozen


class Invoice(msgspec.Struct):
    amount: Decimal
    due: datetime


def test_decimals_and_dates_are_frozen_as_they_are(intents: Intents) -> None:
    sent: list[Invoice] = []

    @intents.operation("stripe", "invoice")
    def invoice(intent: Intent[Invoice]) -> Decimal:
        sent.append(intent.request)
        if len(sent) == 1:
            raise TimeoutError
        return intent.request.amount

    asked = Invoice(Decimal("0.10"), datetime(2026, 1, 31, 23, 59, tzinfo=UTC))
    with pytest.raises(eo.OutcomeUnknown):
        invoice(asked, key="i")
    assert [invoice(asked, key="i"), invoice(asked, key="i")] == [Decimal("0.10")] * 2
    assert sent == [asked, asked]
    assert str(sent[1].amount) == "0.10"
    with pytest.raises(eo.PayloadMismatch):
        invoice(Invoice(Decimal("0.20"), asked.due), key="i")


def test_secrets_do_not_get_out_of_a_frozen_request(
    clock: ManualClock, intents: Intents, caplog: pytest.LogCaptureFixture
) -> None:
    """F65, F66: neither by the intent's repr, nor by the URL in a client's error."""
    seen = []

    @intents.operation("stripe", "charge")
    def charge(intent: Intent[dict[str, str]]) -> None:
        seen.append(repr(intent))
        request = httpx.Request("POST", "https://shop:canary-1@api.example/v1?api_key=canary-2&size=9")
        raise httpx.ReadTimeout(f"no answer from {request.url}\r\nforged \x1b[31m", request=request)

    with pytest.raises(eo.OutcomeUnknown) as told:
        charge({"card": "canary-3"}, key="k")
    clock.advance("2m")
    intents.recover()
    text = f"{told.value} {seen} {caplog.text}"
    assert "canary" not in text
    assert "api.example" in text
    assert not {"\n", "\r", "\x1b"} & set(str(told.value))
