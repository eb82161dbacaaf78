"""User code that fails in unusual ways: errors without a text, sys.exit, cancellation. Other intents continue."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import Callable
from typing import Any

import pytest

import effectonce as eo
from effectonce.intents.intents import Intents
from effectonce.intents.operation import Intent
from effectonce.providers import Verdict
from effectonce.store import Store
from effectonce.testing import ManualClock
from tests.harness.signals import HANDLERS, signal_handled_by

from .bank import PAYMENT, Bank, Payment, raising


class Mute(Exception):
    """Its text cannot be made."""

    def __str__(self) -> str:
        raise RuntimeError("no text")


class Unread(Exception):
    """As of a client whose answer was not read."""

    @property
    def response(self) -> Any:
        raise RuntimeError("the answer was not read")


def one_mail(intents: Intents, error: BaseException | None) -> Callable[[], Any]:
    """A provider without keys: what is ambiguous is in doubt."""

    @intents.operation("ses", "send", without_key="at-most-once")
    def send(intent: Intent[str]) -> str:
        if error is not None:
            raise error
        return "sent"

    return lambda: send("hello", key="m")


# -- what it raises


@pytest.mark.parametrize("error", [Mute(), Unread("boom")])
def test_an_error_that_cannot_be_read_is_in_doubt_and_listed(intents: Intents, error: Exception) -> None:
    send = one_mail(intents, error)
    with pytest.raises(eo.InDoubt) as told:
        send()
    assert told.value.__cause__ is error
    assert len(intents.in_doubt()) == 1


def raised(outcome: Any) -> Verdict:
    raise Mute


@pytest.mark.parametrize(
    "classifier", [raised, lambda _: Mute(), lambda _: Verdict.unknown(Mute()), lambda _: Verdict.unknown(None)]
)
def test_a_classifier_that_cannot_be_read_leaves_it_in_doubt(intents: Intents, classifier: Any) -> None:
    send = one_mail(intents, None)
    intents.classify("ses")(classifier)
    with pytest.raises(eo.InDoubt):
        send()
    assert len(intents.in_doubt()) == 1


def test_a_failure_whose_text_cannot_be_made_is_recorded_all_the_same(store: Store, intents: Intents) -> None:
    send = one_mail(intents, Mute())
    intents.classify("ses")(lambda _: Verdict.failure("declined"))
    with pytest.raises(Mute):
        send()
    with pytest.raises(eo.PermanentFailure, match="declined"):
        send()
    assert [record.state for record in store.list().records] == ["failed"]


@pytest.mark.parametrize("reconciler", [raised, lambda _: Mute(), lambda _: Verdict.unknown(Mute())])
def test_a_reconciler_that_cannot_be_read_ends_nothing(
    clock: ManualClock, intents: Intents, charge: Any, bank: Bank, reconciler: Any
) -> None:
    bank.after = raising(TimeoutError())
    with pytest.raises(eo.OutcomeUnknown):
        charge(PAYMENT, key="p")
    clock.advance("2d")
    intents.reconcile("stripe")(reconciler)
    with pytest.raises(eo.EffectOnceError):
        charge(PAYMENT, key="p")
    (record,) = intents.store.list(scope=charge.scope).records
    assert record.state in ("free", "in_doubt")


# -- a recovery continues with the others


ENDS = [SystemExit(3), asyncio.CancelledError()]


@pytest.fixture
def three_left(clock: ManualClock, intents: Intents, charge: Any, bank: Bank) -> Bank:
    """Three charges whose outcome is unknown, and which no process has touched for a while."""
    bank.after = raising(TimeoutError())
    for key in ("a", "b", "c"):
        with pytest.raises(eo.OutcomeUnknown):
            charge(Payment(key, 1), key=key)
    bank.after = lambda: None
    clock.advance("2m")
    return bank


def ending(bank: Bank, error: BaseException) -> Callable[[], None]:
    left = [error]

    def once() -> None:
        if left:
            raise left.pop()

    return once


@pytest.mark.parametrize("error", ENDS)
def test_an_operation_that_ends_the_process_ends_its_own_recovery(
    clock: ManualClock, intents: Intents, three_left: Bank, error: BaseException
) -> None:
    three_left.before = ending(three_left, error)
    came = intents.recover()
    assert (came.done, came.later) == (2, 1)
    clock.advance("2m")
    assert intents.recover().done == 1


@pytest.mark.parametrize("error", ENDS)
def test_a_classifier_that_ends_the_process_ends_its_own_recovery(
    intents: Intents, three_left: Bank, error: BaseException
) -> None:
    end = ending(three_left, error)
    intents.classify("stripe")(lambda _: end())
    came = intents.recover()
    assert (came.done, came.later) == (2, 1)


@pytest.mark.parametrize("error", ENDS)
def test_a_reconciler_that_ends_the_process_ends_its_own_recovery(
    clock: ManualClock, intents: Intents, three_left: Bank, error: BaseException
) -> None:
    end = ending(three_left, error)

    @intents.reconcile("stripe")
    def look_up(intent: Intent[Payment]) -> Verdict:
        end()
        return Verdict.success("ch_1")

    clock.advance("2d")
    came = intents.recover()
    assert (came.done, came.later) == (2, 1)


def test_without_keys_what_ended_a_recovery_is_in_doubt(clock: ManualClock, intents: Intents) -> None:
    calls: list[str] = []

    @intents.operation("ses", "send", without_key="at-most-once")
    def send(intent: Intent[str]) -> None:
        calls.append(intent.key)
        if len(calls) > 2:
            raise SystemExit(3)
        raise TimeoutError

    intents.classify("ses")(lambda _: Verdict.not_executed("closed") if len(calls) < 3 else None)
    for key in ("a", "b"):
        with pytest.raises(eo.NotExecuted):
            send("hello", key=key)
    clock.advance("2m")
    assert intents.recover().in_doubt == 2
    assert len(intents.in_doubt()) == 2


@pytest.mark.parametrize("handler", HANDLERS.values(), ids=HANDLERS)
def test_f16_a_process_that_is_asked_to_end_ends_the_recovery(intents: Intents, three_left: Bank, handler: Any) -> None:
    """`sys.exit()` of a signal's handler comes out of the operation that happens to run."""

    def signalled() -> None:
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(5)

    sent = len(three_left.charges)
    three_left.before = signalled
    with signal_handled_by(handler), pytest.raises(SystemExit):
        intents.recover()
    assert len(three_left.charges) == sent


def test_an_interrupt_ends_the_recovery(intents: Intents, three_left: Bank) -> None:
    three_left.before = ending(three_left, KeyboardInterrupt())
    with pytest.raises(KeyboardInterrupt):
        intents.recover()


def test_a_direct_call_ends_the_process_as_it_asked_to(intents: Intents) -> None:
    send = one_mail(intents, SystemExit(3))
    with pytest.raises(SystemExit):
        send()
    assert len(intents.in_doubt()) == 1


@pytest.mark.parametrize("error", ENDS)
async def test_an_async_operation_that_ends_ends_its_own_recovery(
    clock: ManualClock, intents: Intents, error: BaseException
) -> None:
    lost = True

    @intents.operation("stripe", "charge")
    async def charge(intent: Intent[str]) -> str:
        await asyncio.sleep(0)
        if lost:
            raise TimeoutError
        if intent.key == "b":
            raise error
        return intent.key

    for key in ("a", "b", "c"):
        with pytest.raises(eo.OutcomeUnknown):
            await charge("p", key=key)
    lost = False
    clock.advance("2m")
    came = await intents.arecover()
    assert (came.done, came.later) == (2, 1)


async def test_a_recovery_that_is_cancelled_ends(clock: ManualClock, intents: Intents) -> None:
    lost, began = True, asyncio.Event()

    @intents.operation("stripe", "charge")
    async def charge(intent: Intent[str]) -> None:
        if lost:
            raise TimeoutError
        began.set()
        await asyncio.sleep(60)

    with pytest.raises(eo.OutcomeUnknown):
        await charge("p", key="p")
    lost = False
    clock.advance("2m")
    recovery = asyncio.ensure_future(intents.arecover())
    await began.wait()
    recovery.cancel()
    with pytest.raises(asyncio.CancelledError):
        await recovery


# -- what it is called with


@pytest.mark.parametrize("given", [None, 7, b"acct", "\udc80"])
@pytest.mark.parametrize("name", ["account", "step"])
def test_an_account_that_is_not_text_is_refused_and_nothing_is_written(
    store: Store, charge: Any, bank: Bank, name: str, given: Any
) -> None:
    with pytest.raises(eo.InvalidKey, match=f"^{name} must be"):
        charge(PAYMENT, key="p", **{name: given})
    assert (bank.seen, store.list().records) == ([], [])


def test_a_guards_key_for_a_provider_needs_text_as_well(store: Store) -> None:
    @eo.once(store, scope="guarded", key="number")
    def handle(number: int) -> str:
        return eo.current().provider_key("stripe", account=None)  # type: ignore[arg-type]

    with pytest.raises(eo.InvalidKey, match=r"^account must be text"):
        handle(1)
