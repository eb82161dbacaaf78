"""Unfinished intents are resumed, operators decide those in doubt, and what cannot keep its promise is refused."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

import effectonce as eo
from effectonce.intents.intents import Intents
from effectonce.intents.operation import Intent
from effectonce.providers import Provider
from effectonce.store import Store
from effectonce.testing import ManualClock

from .bank import PAYMENT, Answer, Bank, Payment, raising, unknown

# -- recovery and people


def test_recovery_goes_on_with_what_a_dead_process_left(
    clock: ManualClock, intents: Intents, charge: Any, bank: Bank
) -> None:
    unknown(charge, bank)
    assert intents.recover().later == 0, "it is too fresh: its own message may be redelivered"
    clock.advance("2m")
    assert intents.recover().done == 1
    assert charge.call(PAYMENT, key="pay_1").replayed
    assert bank.charges == ["pay_1"]
    assert intents.recover() == type(intents.recover())()


def test_an_unknown_intent_is_kept_until_someone_knows(
    clock: ManualClock, intents: Intents, charge: Any, bank: Bank
) -> None:
    """Retention is of what is finished: what is not is never silently dropped."""
    unknown(charge, bank)
    clock.advance("200d")
    intents.store.purge()
    assert intents.recover().in_doubt == 1
    assert len(intents.in_doubt()) == 1


def test_what_failed_for_good_is_kept_for_the_retention_of_its_operation(clock: ManualClock, intents: Intents) -> None:
    """And not as long as what is unfinished."""

    @intents.operation("stripe", "refund", retention="90d")
    def refund(intent: Intent[Payment]) -> None:
        raise Answer(402, "card_declined")

    with pytest.raises(Answer):
        refund(PAYMENT, key="pay_1")
    (record,) = intents.store.list(state="failed").records
    assert record.expires_at is not None
    assert record.expires_at - intents.store.now() == 90 * 86_400_000_000


def test_an_operators_retry_goes_out_under_a_new_key(
    clock: ManualClock, intents: Intents, charge: Any, bank: Bank
) -> None:
    unknown(charge, bank)
    clock.advance("2d")
    intents.recover()
    (record,) = intents.in_doubt()
    intents.resolve(record.key, "retry")
    clock.advance("2m")
    assert intents.recover().done == 1
    assert len(set(bank.seen)) == 2


def test_an_operator_says_what_came_of_it(clock: ManualClock, intents: Intents, charge: Any, bank: Bank) -> None:
    unknown(charge, bank)
    clock.advance("2d")
    intents.recover()
    (record,) = intents.in_doubt()
    intents.resolve(record.key, "done", result="ch_1")
    assert charge(PAYMENT, key="pay_1") == "ch_1"
    with pytest.raises(eo.NotInDoubt):
        intents.resolve(record.key, "retry")
    with pytest.raises(eo.NotInDoubt, match="no intent"):
        intents.resolve("nothing", "retry")


# -- what is refused


@pytest.mark.parametrize(
    ("provider", "options", "said"),
    [
        ("nobody", {}, "there is no provider"),
        ("ses", {}, "keeps no keys: choose without_key="),
        ("stripe", {"without_key": "at-most-once"}, "keeps keys"),
        ("square", {}, "does not say how long"),
        ("paypal", {}, "does not say how long"),
        ("stripe", {"margin": "25h"}, "leaves nothing"),
        (Provider(name="tiny", limit=35, window=1), {}, "takes keys of 35 characters; ours have 36"),
    ],
)
def test_an_operation_that_cannot_keep_its_promise_is_refused(
    intents: Intents, provider: Any, options: Any, said: str
) -> None:
    with pytest.raises(eo.ConfigurationError, match=said):
        intents.operation(provider, "anything", **options)


def test_a_request_that_cannot_be_frozen_is_refused_before_anything_happens(
    intents: Intents, charge: Any, bank: Bank
) -> None:
    with pytest.raises(eo.ConfigurationError, match="cannot be stored"):
        charge(object(), key="k")
    with pytest.raises(eo.ConfigurationError, match="over the limit"):
        charge(Payment("x" * 300_000, 1), key="k")
    with pytest.raises(eo.MissingKey):
        charge(PAYMENT, key="")
    assert bank.seen == []
    assert intents.store.list(scope=charge.scope).records == []


def test_two_operations_of_one_name_are_refused(intents: Intents, charge: Any) -> None:
    with pytest.raises(eo.ConfigurationError, match="already"):
        intents.operation("stripe", "charge")(lambda intent: None)


def test_two_groups_of_intents_do_not_share_an_operation(store: Store, intents: Intents, charge: Any) -> None:
    """The second function would get the results of the first, and never run for what that has handled."""
    other = Intents(store, scope="billing")
    with pytest.raises(eo.ScopeTaken, match="already used"):
        other.operation("stripe", "charge")(lambda intent: None)


# -- a bounded number at a time


def test_a_bounded_recovery_gets_to_all_of_them(clock: ManualClock, intents: Intents, charge: Any, bank: Bank) -> None:
    """F07: those that stay unknown, and are touched last, do not keep the others from their turn."""
    bank.after = raising(TimeoutError())
    for number in range(12):
        with pytest.raises(eo.OutcomeUnknown):
            charge(PAYMENT, key=f"p{number}")
    before = len(bank.seen)
    for _ in range(6):
        clock.advance("2m")
        assert intents.recover(limit=2).later == 2
    assert len(set(bank.seen[before:])) == 12
    with pytest.raises(eo.InvalidOption, match="limit=0"):
        intents.recover(limit=0)


async def test_an_async_recovery_has_many_on_their_way_and_does_not_stop_the_loop(
    clock: ManualClock, intents: Intents
) -> None:
    here: list[str] = []
    most = 0
    lost = True

    @intents.operation("stripe", "charge")
    async def charge(intent: Intent[str]) -> str:
        nonlocal most
        if lost:
            raise TimeoutError
        here.append(intent.request)
        most = max(most, len(here))
        await asyncio.sleep(0.01)
        here.remove(intent.request)
        return intent.request

    for number in range(7):
        with pytest.raises(eo.OutcomeUnknown):
            await charge(f"p{number}", key=f"p{number}")
    lost = False
    clock.advance("2m")
    first, second = await asyncio.gather(intents.arecover(limit=4), intents.arecover())
    assert first.done + second.done >= 7
    assert most > 1


def test_what_somebody_runs_is_left_alone(clock: ManualClock, store: Store, intents: Intents, bank: Bank) -> None:
    """A recoverer beside a live sender, whose lease holds: not even a claim."""
    found = []

    @intents.operation("stripe", "charge", wait="10s")
    def charge(intent: Intent[Payment]) -> str:
        beside = Intents(Store(store.runtime.backend, sweep_every=None), scope="billing")
        beside.operation("stripe", "charge", wait="10s")(lambda intent: bank.charge(intent))
        found.append(beside.recover(idle="1ms"))
        return bank.charge(intent)

    charge(PAYMENT, key="p")
    assert found == [type(found[0])()]
    assert len(bank.seen) == 1


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
