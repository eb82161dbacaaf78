"""What `once` promises, in both forms."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest

import effectonce as eo
from effectonce.record import Record
from effectonce.testing import ManualClock

from .conftest import HandlerForm


def record(store: eo.Store, key: str = "p1", scope: str = "charge") -> Record:
    found = store.get(scope, key)
    assert found is not None
    return found


def test_a_duplicate_gets_the_first_result_and_runs_nothing(store: eo.Store, form: HandlerForm) -> None:
    charges: list[int] = []

    @form.once(store, scope="charge", key="payment_id")
    def charge(payment_id: str, amount: int) -> dict[str, int]:
        charges.append(amount)
        return {"charged": amount}

    assert charge("p1", 4200) == {"charged": 4200}
    assert charge("p1", amount=4200) == {"charged": 4200}
    assert charge(payment_id="p1", amount=4200) == {"charged": 4200}
    assert charges == [4200]


def test_different_keys_are_different_operations(store: eo.Store, form: HandlerForm) -> None:
    runs: list[str] = []
    handler = form.once(store, scope="charge", key="payment_id")(lambda payment_id: runs.append(payment_id))
    handler("p1")
    handler("p2")
    assert runs == ["p1", "p2"]


@pytest.mark.parametrize("value", [None, 0, "", False, [], {}, 0.0])
def test_a_falsy_result_is_a_result(store: eo.Store, form: HandlerForm, value: Any) -> None:
    """A peer's defect: None, 0 and [] replayed as "no result", or run again."""
    runs: list[Any] = []

    @form.once(store, scope="charge", key="payment_id")
    def charge(payment_id: str):  # type: ignore[no-untyped-def]
        runs.append(1)
        return value

    first, again = charge.call("p1"), charge.call("p1")
    assert (first.value, first.replayed) == (value, False)
    assert (again.value, again.replayed) == (value, True)
    assert runs == [1]


def test_an_outcome_tells_key_scope_attempt_and_whether_it_was_replayed(store: eo.Store, form: HandlerForm) -> None:
    guarded = form.once(store, scope="charge", key=("tenant", "payment_id"))(lambda tenant, payment_id: 7)
    assert guarded.call("acme", "p1") == eo.Outcome(7, False, "acme:p1", "charge", 1)
    assert guarded.call("acme", "p1") == eo.Outcome(7, True, "acme:p1", "charge", 1)


def test_an_error_frees_the_key_so_that_a_retry_runs(store: eo.Store, form: HandlerForm) -> None:
    """F19: a failure is never stored as done."""
    outcomes: list[Any] = [ValueError("card network down"), "ok"]

    @form.once(store, scope="charge", key="payment_id")
    def charge(payment_id: str) -> str:
        outcome = outcomes.pop(0)
        if isinstance(outcome, Exception):
            raise outcome
        return str(outcome)

    with pytest.raises(ValueError, match="card network down"):
        charge("p1")
    assert record(store).state == "free"
    assert charge.call("p1") == eo.Outcome("ok", False, "p1", "charge", 2)


class CardDeclined(Exception):
    pass


class Awkward(Exception):
    def __init__(self, *, reason: str) -> None:
        super().__init__()


def test_a_permanent_error_is_stored_and_raised_again(store: eo.Store, form: HandlerForm) -> None:
    runs: list[int] = []

    @form.once(store, scope="charge", key="payment_id", permanent=(CardDeclined,))
    def charge(payment_id: str) -> None:
        runs.append(1)
        raise CardDeclined("insufficient funds", 51)

    for _ in range(2):
        with pytest.raises(CardDeclined) as caught:
            charge("p1")
        assert caught.value.args == ("insufficient funds", 51)
    assert runs == [1]
    assert record(store).state == "failed"


def test_a_permanent_error_that_cannot_be_rebuilt_is_a_permanent_failure(store: eo.Store, form: HandlerForm) -> None:
    @form.once(store, scope="charge", key="payment_id", permanent=(Awkward,))
    def charge(payment_id: str) -> None:
        raise Awkward(reason="x")

    with pytest.raises(Awkward):
        charge("p1")
    with pytest.raises(eo.PermanentFailure) as caught:
        charge("p1")
    assert caught.value.error.endswith(":Awkward")


def test_on_error_doubt_leaves_the_outcome_to_an_operator(store: eo.Store, form: HandlerForm) -> None:
    runs: list[int] = []

    @form.once(store, scope="charge", key="payment_id", on_error="doubt")
    def charge(payment_id: str) -> str:
        runs.append(1)
        if len(runs) == 1:
            raise TimeoutError("no answer from the card network")
        return "charged"

    with pytest.raises(TimeoutError):
        charge("p1")
    with pytest.raises(eo.InDoubt, match="resolve"):
        charge("p1")
    store.resolve("charge", "p1", "retry")
    assert charge.call("p1") == eo.Outcome("charged", False, "p1", "charge", 1)
    assert record(store).generation == 1


@pytest.mark.parametrize(("outcome", "then"), [("done", "rcpt_9"), ("abandon", eo.PermanentFailure)])
def test_resolve_ends_a_doubt_without_running_it(store: eo.Store, form: HandlerForm, outcome: Any, then: Any) -> None:
    runs: list[int] = []

    @form.once(store, scope="charge", key="payment_id", on_error="doubt")
    def charge(payment_id: str) -> str:
        runs.append(1)
        raise TimeoutError

    with pytest.raises(TimeoutError):
        charge("p1")
    store.resolve("charge", "p1", outcome, result="rcpt_9" if outcome == "done" else None)
    if isinstance(then, str):
        assert charge("p1") == then
    else:
        with pytest.raises(then):
            charge("p1")
    assert runs == [1]


def test_resolve_of_what_is_not_in_doubt_changes_nothing(store: eo.Store, form: HandlerForm) -> None:
    form.once(store, scope="charge", key="payment_id")(lambda payment_id: 7)("p1")
    before = record(store)
    with pytest.raises(eo.NotInDoubt, match="is done"):
        store.resolve("charge", "p1", "retry")
    with pytest.raises(eo.NotInDoubt, match="no record"):
        store.resolve("charge", "unknown", "retry")
    assert record(store) == before


def test_forget_lets_it_run_again_as_a_new_generation(store: eo.Store, form: HandlerForm) -> None:
    keys: list[str] = []

    @form.once(store, scope="charge", key="payment_id")
    def charge(payment_id: str) -> int:
        keys.append(eo.current().provider_key("stripe"))
        return len(keys)

    assert (charge("p1"), charge("p1")) == (1, 1)
    assert store.forget("charge", "p1")
    assert (charge("p1"), charge("p1")) == (2, 2)
    assert keys[0] != keys[1], "a new generation is a new operation to the provider"
    assert not store.forget("charge", "unknown")


def test_attempts_are_limited_and_counted_before_the_run(store: eo.Store, form: HandlerForm) -> None:
    """F20: counted when it starts, so that work which takes the process down counts too."""
    seen: list[int] = []

    @form.once(store, scope="charge", key="payment_id", max_attempts=2)
    def charge(payment_id: str) -> None:
        seen.append(record(store).attempts)
        raise ValueError("declined")

    for _ in range(2):
        with pytest.raises(ValueError, match="declined"):
            charge("p1")
    for _ in range(2):
        with pytest.raises(eo.AttemptsExhausted, match=r"the last error was ValueError: declined; .*forget"):
            charge("p1")
    assert seen == [1, 2]
    assert record(store).state == "failed"


def test_a_record_is_kept_for_the_retention_and_then_forgotten(
    store: eo.Store, form: HandlerForm, clock: ManualClock
) -> None:
    runs: list[int] = []
    charge = form.once(store, scope="charge", key="payment_id", retention="1h")(lambda payment_id: runs.append(1))
    charge("p1")
    clock.advance("59m")
    charge("p1")
    assert runs == [1]
    clock.advance("2m")
    charge("p1")
    assert runs == [1, 1]


def test_a_dead_runner_is_replaced_when_its_lease_ends(store: eo.Store, form: HandlerForm, clock: ManualClock) -> None:
    """F02: the claim of a process that died holds for the lease and not longer (a peer kept it for a day)."""
    abandon_claim(store, "charge", "p1")
    charge = form.once(store, scope="charge", key="payment_id", lease="30s")(lambda payment_id: "charged")
    with pytest.raises(eo.InProgress) as caught:
        charge("p1")
    assert caught.value.retry_after == 0.2
    assert caught.value.lease_left is not None
    assert 0.2 < caught.value.lease_left <= 30
    clock.advance("30s")
    assert charge.call("p1") == eo.Outcome("charged", False, "p1", "charge", 2)


def abandon_claim(store: eo.Store, scope: str, key: str, **options: Any) -> None:
    """Leave a record as a killed process does: claimed, without an owner that lives."""
    stepped = threading.Event()

    @eo.once(store, scope=f"{scope}", key="key", **options)
    def dies(key: str) -> None:
        stepped.set()
        raise GeneratorExit  # the one exit that says nothing to the store, as a kill -9 does

    with pytest.raises(GeneratorExit):
        dies(key)
    assert stepped.is_set()
    store._scopes.clear()


def test_on_lapse_doubt_never_reruns_what_a_dead_runner_left(
    store: eo.Store, form: HandlerForm, clock: ManualClock
) -> None:
    """F03: at-most-once by choice. F07: the next delivery finds it, and so does the sweeper."""
    runs: list[int] = []
    for key in ("p1", "p2"):
        abandon_claim(store, "charge", key, on_lapse="doubt")
    charge = form.once(store, scope="charge", key="payment_id", on_lapse="doubt")(lambda payment_id: runs.append(1))
    clock.advance("90d")
    with pytest.raises(eo.InDoubt):
        charge("p1")
    assert store.purge().lapsed == 1
    assert [r.key for r in store.list(state="in_doubt").records] == ["p1", "p2"]
    assert runs == []


def test_seen_mode_records_after_success_and_holds_no_lease(store: eo.Store, form: HandlerForm) -> None:
    runs: list[Any] = []

    @form.once(store, scope="index", key="doc", mode="seen")
    def index(doc: str) -> int:
        assert store.get("index", doc) is None
        assert not eo.current().lease_lost
        runs.append(doc)
        if len(runs) == 1:
            raise ValueError
        return 3

    with pytest.raises(ValueError):
        index("d1")
    assert index.call("d1") == eo.Outcome(3, False, "d1", "index", 1)
    assert index.call("d1").replayed
    assert len(runs) == 2


def test_seen_mode_refuses_what_has_no_meaning_there(store: eo.Store) -> None:
    for option in ({"wait": "1s"}, {"max_attempts": 3}, {"on_error": "doubt"}, {"permanent": (ValueError,)}):
        with pytest.raises(eo.ConfigurationError, match="seen"):
            eo.once(store, mode="seen", key="x", **option)  # type: ignore[arg-type]


def test_current_is_the_running_call_and_nothing_outside(store: eo.Store, form: HandlerForm) -> None:
    @form.once(store, scope="charge", key="payment_id")
    def charge(payment_id: str) -> list[Any]:
        run = eo.current()
        return [run.key, run.scope, run.attempt, run.lease_lost, run.redriven, run.token > 0]

    assert charge("p1") == ["p1", "charge", 1, False, False, True]
    with pytest.raises(eo.ConfigurationError, match="outside"):
        eo.current()


def test_provider_keys_differ_by_everything_that_makes_an_effect_its_own(store: eo.Store) -> None:
    found: list[str] = []

    def body(payment_id: str) -> None:
        run = eo.current()
        found.extend(
            [
                run.provider_key("stripe"),
                run.provider_key("paypal"),
                run.provider_key("stripe", account="acct_2"),
                run.provider_key("stripe", operation="refund"),
                run.provider_key("stripe", step="2"),
            ]
        )

    eo.once(store, scope="a", key="payment_id")(body)("p1")
    eo.once(store, scope="b", key="payment_id")(body)("p1")
    eo.once(store, scope="a2", key="payment_id")(body)("p2")
    assert len(set(found)) == len(found)
    assert {len(key) for key in found} == {36}
    # Pinned: a provider that saw this key yesterday must see the same one after an upgrade.
    assert found[0] == "36a0b90f-fb22-571c-8ee2-1773391d20b2"


def test_missing_keys_are_refused_or_run_unprotected_by_choice(
    store: eo.Store, form: HandlerForm, events: list[eo.Event]
) -> None:
    runs: list[Any] = []

    def body(payment_id: str | None) -> None:
        runs.append(payment_id)

    strict = form.once(store, scope="strict", key="payment_id")(body)
    for missing in (None, ""):
        with pytest.raises(eo.MissingKey):
            strict(missing)
    assert runs == []
    lax = form.once(store, scope="lax", key="payment_id", on_missing_key="run")(body)
    lax(None)
    lax(None)
    assert runs == [None, None]
    assert [event.kind for event in events if event.scope == "lax"] == ["missing_key", "missing_key"]


def test_same_key_other_payload_is_refused_and_leaks_nothing(store: eo.Store, form: HandlerForm) -> None:
    """F21, whatever state the record is in."""
    fail = [True]

    @form.once(store, scope="charge", key="payment_id", fingerprint=("payment_id", "amount"))
    def charge(payment_id: str, amount: int) -> str:
        if fail:
            raise ValueError
        return "secret receipt"

    with pytest.raises(ValueError):
        charge("p1", 4200)
    with pytest.raises(eo.PayloadMismatch) as caught:
        charge("p1", 9999)
    fail.clear()
    assert charge("p1", 4200) == charge("p1", 4200) == "secret receipt"
    with pytest.raises(eo.PayloadMismatch) as caught:
        charge("p1", 9999)
    assert "secret" not in str(caught.value)


def test_a_message_brings_its_own_key_and_fingerprint(store: eo.Store, form: HandlerForm) -> None:
    runs: list[Any] = []

    @form.once(store, scope="orders")
    def handle(message: eo.Message[Any]) -> int:
        runs.append(message.data)
        return 1

    message = eo.Message(type="order.paid", data={"order": 1, "total": 10.0})
    handle(message)
    handle(message)
    handle(eo.Message(id=message.id, data={"total": 10, "order": 1}, attempt=5, headers={"x": "y"}))
    assert runs == [{"order": 1, "total": 10.0}]
    with pytest.raises(eo.PayloadMismatch):
        handle(eo.Message(id=message.id, data={"order": 2}))
    with pytest.raises(eo.ConfigurationError, match="instead of a Message"):
        handle({"order": 1})


def test_two_guards_on_one_store_have_their_own_settings(
    store: eo.Store, form: HandlerForm, clock: ManualClock
) -> None:
    """A peer's defect: the settings of the first guard were written into the shared store."""
    runs: list[str] = []
    short = form.once(store, scope="short", key="k", retention="1m")(lambda k: runs.append("short"))
    long = form.once(store, scope="long", key="k", retention="1d")(lambda k: runs.append("long"))
    for guard in (long, short):
        guard("k")
    clock.advance("1h")
    for guard in (long, short):
        guard("k")
    assert runs == ["long", "short", "short"]


def test_one_message_id_and_two_handlers_run_both(store: eo.Store, form: HandlerForm) -> None:
    """F24. A peer's defect: on one store, the second handler of a message never ran."""
    runs: list[str] = []
    mail = form.once(store, scope="mail")(lambda message: runs.append("mail"))
    bill = form.once(store, scope="bill")(lambda message: runs.append("bill"))
    message = eo.Message(data={})
    for handler in (mail, bill, mail, bill):
        handler(message)
    assert runs == ["mail", "bill"]


def test_a_global_scope_is_one_namespace_by_explicit_word(store: eo.Store, form: HandlerForm) -> None:
    runs: list[str] = []
    for name in ("first", "second"):
        form.once(store, scope=eo.GLOBAL, key="k")(lambda k, name=name: runs.append(name))("k")
    assert runs == ["first"]


async def test_waiters_get_the_first_ones_result(store: eo.Store) -> None:
    """F15, in small: five at once, one run, five results."""
    gate = asyncio.Event()
    runs: list[int] = []

    @eo.once(store, scope="charge", key="payment_id", wait="5s")
    async def charge(payment_id: str) -> str:
        runs.append(1)
        await gate.wait()
        return "receipt"

    tasks = [asyncio.create_task(charge.call("p1")) for _ in range(5)]
    await asyncio.sleep(0.05)
    gate.set()
    outcomes = await asyncio.gather(*tasks)
    assert runs == [1]
    assert [o.value for o in outcomes] == ["receipt"] * 5
    assert sorted(o.replayed for o in outcomes) == [False, True, True, True, True]


async def test_a_waiter_takes_over_when_the_first_one_fails(store: eo.Store) -> None:
    runs: list[int] = []

    @eo.once(store, scope="charge", key="payment_id", wait="5s")
    async def charge(payment_id: str) -> int:
        runs.append(1)
        await asyncio.sleep(0.02)
        if len(runs) == 1:
            raise ValueError
        return len(runs)

    results = await asyncio.gather(*(charge("p1") for _ in range(3)), return_exceptions=True)
    assert sorted(map(str, results)) == ["", "2", "2"]


async def test_waiting_ends_with_in_progress_when_the_time_is_over() -> None:
    with eo.connect("memory://") as store:
        gate = asyncio.Event()

        @eo.once(store, scope="charge", key="payment_id", wait="100ms")
        async def charge(payment_id: str) -> None:
            await gate.wait()

        first = asyncio.create_task(charge("p1"))
        await asyncio.sleep(0.01)
        with pytest.raises(eo.InProgress):
            await charge("p1")
        gate.set()
        await first


def test_waiting_threads_get_the_first_ones_result() -> None:
    with eo.connect("memory://") as store:
        gate = threading.Event()
        started = threading.Event()
        results: list[str] = []

        @eo.once(store, scope="charge", key="payment_id", wait="10s")
        def charge(payment_id: str) -> str:
            started.set()
            gate.wait(10)
            return "receipt"

        threads = [threading.Thread(target=lambda: results.append(charge("p1"))) for _ in range(4)]
        threads[0].start()
        started.wait(10)
        for thread in threads[1:]:
            thread.start()
        gate.set()
        for thread in threads:
            thread.join(10)
        assert results == ["receipt"] * 4


def test_a_call_without_a_key_has_no_key_for_a_provider(store: eo.Store, form: HandlerForm) -> None:
    @form.once(store, scope="s", key="k", on_missing_key="run")
    def charge(k: str | None) -> None:
        eo.current().provider_key("stripe")

    with pytest.raises(eo.MissingKey, match="provider"):
        charge(None)
