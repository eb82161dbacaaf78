"""What a saga promises: forward once, back in reverse, and an operator where the outcome is unknown."""

from __future__ import annotations

import threading
from contextlib import suppress
from typing import Any

import pytest

import effectonce as eo
from effectonce.backends.memory.store import MemoryStoreBackend
from effectonce.core.run_sync import run_sync
from effectonce.sagas.recovery import ResumeCounts
from effectonce.testing import ManualClock

from .shop import Order, Receipt, Shop, order_saga, raising, state

ORDER = Order("o-1")


class Declined(Exception):
    pass


class Stopped(BaseException):
    """The process is asked to end."""


# -- forward


def test_the_steps_run_in_order_and_a_duplicate_gets_what_they_gave(saga: eo.Saga[Order], shop: Shop) -> None:
    first, again = saga.run("o-1", ORDER), saga.run("o-1", ORDER)
    charge = saga.steps["charge"]
    assert first[charge] == again[charge] == Receipt("charge-2", 4200)
    assert again[saga.steps["ship"]] is None
    assert shop.calls == ["reserve", "charge", "ship"]


def test_what_a_step_does_once_is_kept_as_long_as_the_saga(store: eo.Store) -> None:
    @eo.once(store, scope="charges", key="order", retention="1h")
    def charge(order: str) -> None: ...

    saga = eo.Saga("kept", store, input=Order, retention="30d")

    @saga.step()
    def pay(order: Order) -> None:
        charge(order.id)

    saga.run("o-1", ORDER)
    record = store.get("charges", "o-1")
    assert record is not None
    assert record.expires_at is not None
    assert record.expires_at - record.changed_at > 29 * 86_400_000_000


@pytest.mark.parametrize("fails", [False, True])
def test_a_saga_in_a_step_is_kept_as_long_as_the_saga_around_it(store: eo.Store, fails: bool) -> None:
    inner = eo.Saga("inner", store, input=Order, retention="1h")

    @inner.step()
    def pay(order: Order) -> None:
        if fails:
            raise LookupError("no such account")

    outer = eo.Saga("outer", store, input=Order, retention="30d")

    @outer.step()
    def run_inner(order: Order) -> None:
        inner.run(order.id, order)

    with suppress(eo.SagaFailed):
        outer.run("o-1", ORDER)
    record = inner.get("o-1")
    assert record is not None
    assert record.state == ("failed" if fails else "done")
    assert record.expires_at is not None
    assert record.expires_at - record.changed_at > 29 * 86_400_000_000


def test_three_steps_are_four_commits(shop: Shop) -> None:
    with eo.connect("memory://") as store:
        client = store.runtime.sync_client()
        claim, settle = client.claim, client.settle
        ops: list[Any] = []

        def noting(submit: Any) -> Any:
            def noted(op: Any) -> Any:
                ops.append(type(op).__name__)
                return submit(op)

            return noted

        client.claim, client.settle = noting(claim), noting(settle)
        order_saga(store, shop).run("o-1", ORDER)
    assert ops == ["Claim", "Note", "Note", "Settlement"]


def test_another_input_under_the_same_id_is_refused(saga: eo.Saga[Order], shop: Shop) -> None:
    saga.run("o-1", ORDER)
    with pytest.raises(eo.PayloadMismatch):
        saga.run("o-1", Order("o-1", 9999))
    assert shop.calls == ["reserve", "charge", "ship"]


def test_a_step_is_tried_again_under_the_same_keys(saga: eo.Saga[Order], shop: Shop) -> None:
    keys: list[tuple[str, str, int]] = []

    def note() -> None:
        run = eo.current()
        keys.append((run.key, run.provider_key("stripe"), run.attempt))
        raising(ConnectionError(), 1 if len(keys) == 1 else 0)()

    shop.at["charge"] = note
    saga.run("o-1", ORDER)
    assert [(key, attempt) for key, _, attempt in keys] == [("order/o-1/charge", 1), ("order/o-1/charge", 2)]
    assert len({provider for _, provider, _ in keys}) == 1


def test_a_saga_that_is_started_is_run_by_resume(saga: eo.Saga[Order], shop: Shop) -> None:
    for number in range(3):
        saga.start(f"o-{number}", ORDER)
        saga.start(f"o-{number}", ORDER)
    assert shop.calls == []
    with pytest.raises(eo.PayloadMismatch):
        saga.start("o-1", Order("another"))
    assert saga.resume() == ResumeCounts(done=3)
    assert saga.resume() == ResumeCounts()
    assert shop.calls.count("ship") == 3
    saga.start("o-1", ORDER)
    assert saga.resume() == ResumeCounts()


def test_what_an_interrupted_process_left_is_gone_on_with(saga: eo.Saga[Order], shop: Shop) -> None:
    shop.at["ship"] = raising(Stopped(), 1)
    with pytest.raises(Stopped):
        saga.run("o-1", ORDER)
    assert state(saga) == "free"
    assert saga.resume() == ResumeCounts(done=1)
    assert shop.calls == ["reserve", "charge", "ship", "ship"]


def test_two_runners_do_not_run_one_saga(saga: eo.Saga[Order], shop: Shop, store: eo.Store) -> None:
    other = order_saga(store, shop)
    refused: list[Any] = []

    def beside() -> None:
        def run() -> None:
            with pytest.raises(eo.InProgress):
                other.run("o-1", ORDER)
            refused.append(other.resume())

        thread = threading.Thread(target=run)
        thread.start()
        thread.join()

    shop.at["charge"] = beside
    saga.run("o-1", ORDER)
    assert refused == [ResumeCounts()]
    assert shop.calls == ["reserve", "charge", "ship"]


def test_a_zombie_stops_where_another_has_taken_over(shop: Shop) -> None:
    clock = ManualClock()
    with eo.Store(MemoryStoreBackend(clock=clock), sweep_every=None) as store:
        saga, other = order_saga(store, shop), order_saga(store, shop)

        def slept() -> None:
            shop.at.clear()
            clock.advance("31s")
            thread = threading.Thread(target=other.resume)
            thread.start()
            thread.join()

        shop.at["charge"] = slept
        with pytest.raises(eo.LeaseLost):
            saga.run("o-1", ORDER)
        assert state(saga) == "done"
    assert shop.calls == ["reserve", "charge", "charge", "ship"]
    assert shop.effects == ["reserve", "charge", "ship"]


def test_an_interruption_is_not_forgotten_by_who_only_looks(store: eo.Store, shop: Shop) -> None:
    """F49: somebody had it and died, and then it is started once more, which runs nothing."""
    saga = order_saga(store, shop, lease="50ms")
    saga.start("o-1", ORDER)
    claimed = run_sync(store.runtime.sync_client().claim(saga.prepare_run("o-1").claim_request()))
    assert (claimed if hasattr(claimed, "kind") else run_sync(claimed)).kind == "claimed"
    while saga.get("o-1").lease_until > store.now():  # type: ignore[union-attr, operator]
        threading.Event().wait(0.01)
    for _ in range(2):
        saga.start("o-1", ORDER)
    assert state(saga) == "free"
    with pytest.raises(eo.InDoubt, match="step reserve: it was started, and whether it happened is not known"):
        saga.compensate("o-1")
    saga.resolve("o-1", "not_done")
    assert saga.resume() == ResumeCounts(failed=1)


def test_what_was_let_go_in_order_was_not_interrupted(store: eo.Store, shop: Shop) -> None:
    saga = order_saga(store, shop)
    for _ in range(3):
        saga.start("o-1", ORDER)
    saga.compensate("o-1")
    assert (state(saga), shop.calls) == ("failed", [])


# -- back


def test_a_step_that_fails_turns_the_saga_around(saga: eo.Saga[Order], shop: Shop) -> None:
    shop.at["ship"] = raising(Declined("no carrier"))
    with pytest.raises(
        eo.SagaFailed, match=r"at step ship: Declined: no carrier; compensated: charge, reserve"
    ) as first:
        saga.run("o-1", ORDER)
    assert shop.calls == ["reserve", "charge", "ship", "ship", "refund", "release"]
    assert (first.value.step, first.value.error) == ("ship", f"{__name__}:Declined")
    assert isinstance(first.value.__cause__, Declined)
    with pytest.raises(eo.SagaFailed) as again:
        saga.run("o-1", ORDER)
    assert (str(again.value), again.value.step) == (str(first.value), "ship")
    assert len(shop.calls) == 6


def test_a_first_step_that_fails_has_nothing_to_undo(saga: eo.Saga[Order], shop: Shop) -> None:
    shop.at["reserve"] = raising(StopIteration("sold out"))
    with pytest.raises(eo.SagaFailed, match="StopIteration: sold out; there was nothing to undo"):
        saga.run("o-1", ORDER)
    assert shop.effects == []


def test_f48_an_interrupted_compensation_goes_on_in_reverse_each_once(saga: eo.Saga[Order], shop: Shop) -> None:
    shop.at["ship"] = raising(Declined())
    shop.at["release"] = raising(Stopped(), 1)
    with pytest.raises(Stopped):
        saga.run("o-1", ORDER)
    shop.at.pop("ship")  # it would succeed now; but the saga has turned around
    assert saga.resume() == ResumeCounts(failed=1)
    assert shop.calls == ["reserve", "charge", "ship", "ship", "refund", "release", "release"]
    assert shop.effects == ["reserve", "charge", "refund", "release"]


def test_f50_a_compensation_that_keeps_failing_waits_for_an_operator(saga: eo.Saga[Order], shop: Shop) -> None:
    shop.at["ship"] = raising(Declined())
    shop.at["refund"] = raising(ConnectionError("bank closed"))
    with pytest.raises(eo.InDoubt, match=r"compensation of step charge: it has failed 2 times.*bank closed"):
        saga.run("o-1", ORDER)
    assert "release" not in shop.calls
    assert saga.resume() == ResumeCounts()
    with pytest.raises(eo.InDoubt, match="sagas resolve"):
        saga.run("o-1", ORDER)
    assert [saga.log(record).id for record in saga.records("in_doubt")] == ["o-1"]

    saga.resolve("o-1", "retry")  # it still fails
    assert saga.resume() == ResumeCounts(in_doubt=1)
    shop.at.pop("refund")
    saga.resolve("o-1", "retry")
    assert saga.resume() == ResumeCounts(failed=1)
    assert shop.effects == ["reserve", "charge", "refund", "release"]


def test_f50_an_operator_has_refunded_by_hand(saga: eo.Saga[Order], shop: Shop) -> None:
    shop.at["ship"] = raising(Declined())
    shop.at["refund"] = raising(ConnectionError())
    with pytest.raises(eo.InDoubt):
        saga.run("o-1", ORDER)
    shop.at.pop("refund")
    with pytest.raises(eo.ConfigurationError, match="must be done"):
        saga.resolve("o-1", "not_done")
    saga.resolve("o-1", "done", who="ann")
    assert saga.resume() == ResumeCounts(failed=1)
    assert shop.effects == ["reserve", "charge", "release"]


def test_an_operator_gives_up(saga: eo.Saga[Order], shop: Shop) -> None:
    shop.at["ship"] = raising(Declined())
    shop.at["refund"] = raising(ConnectionError())
    with pytest.raises(eo.InDoubt):
        saga.run("o-1", ORDER)
    saga.resolve("o-1", "abandon")
    assert (state(saga), saga.resume()) == ("failed", ResumeCounts())
    with pytest.raises(eo.PermanentFailure, match="abandoned it"):
        saga.run("o-1", ORDER)


def test_an_operators_word_that_did_not_get_to_the_log_is_asked_for_again(saga: eo.Saga[Order], shop: Shop) -> None:
    shop.at["ship"] = raising(Declined())
    shop.at["refund"] = raising(ConnectionError())
    with pytest.raises(eo.InDoubt):
        saga.run("o-1", ORDER)
    saga.store.resolve(saga.scope, "o-1", "retry")  # and the process ends here
    assert saga.resume() == ResumeCounts(in_doubt=1)
    assert shop.calls.count("refund") == 2


@pytest.mark.parametrize("unknown", [eo.OutcomeUnknown("?", 0.0), eo.StoreUnavailable("?", 0.0)])
def test_what_is_not_known_is_no_failure(saga: eo.Saga[Order], shop: Shop, unknown: Exception) -> None:
    """An unknown outside effect is compensated only once its outcome is known: until then nothing is."""
    shop.after["charge"] = raising(unknown)
    with pytest.raises(type(unknown)):
        saga.run("o-1", ORDER)
    assert saga.resume() == ResumeCounts(later=1)
    assert "release" not in shop.calls
    shop.after.pop("charge")
    assert saga.resume() == ResumeCounts(done=1)
    assert shop.effects == ["reserve", "charge", "ship"]


def test_a_step_in_doubt_makes_the_saga_so(saga: eo.Saga[Order], shop: Shop) -> None:
    shop.at["charge"] = raising(eo.InDoubt("the intent is in doubt"))
    with pytest.raises(eo.InDoubt, match="at step charge"):
        saga.run("o-1", ORDER)
    with pytest.raises(eo.ConfigurationError, match="this is not a result of step charge"):
        saga.resolve("o-1", "done", result="x")
    assert state(saga) == "in_doubt"
    saga.resolve("o-1", "done", result={"charge": "ch_9", "amount": 4200})
    assert saga.resume() == ResumeCounts(done=1)
    assert saga.run("o-1", ORDER)[saga.steps["charge"]] == Receipt("ch_9", 4200)
    assert shop.calls == ["reserve", "charge", "ship"]


def test_a_result_that_cannot_be_is_refused_with_what_the_step_gives(saga: eo.Saga[Order], shop: Shop) -> None:
    shop.at["charge"] = raising(eo.InDoubt("?"))
    with pytest.raises(eo.InDoubt):
        saga.run("o-1", ORDER)
    with pytest.raises(
        eo.ConfigurationError, match=r'which gives Receipt, an object with "charge", "amount" \(.* `amount`'
    ):
        saga.resolve("o-1", "done", result={"charge": "ch"})
    with pytest.raises(eo.ConfigurationError, match="a result goes with 'done', not with 'retry'"):
        saga.resolve("o-1", "retry", result=7)
    assert state(saga) == "in_doubt"


def test_a_compensation_in_doubt_gives_nothing(saga: eo.Saga[Order], shop: Shop) -> None:
    shop.at["ship"] = raising(Declined())
    shop.at["refund"] = raising(Declined())
    with pytest.raises(eo.InDoubt):
        saga.run("o-1", ORDER)
    with pytest.raises(eo.ConfigurationError, match="the compensation of charge returns nothing"):
        saga.resolve("o-1", "done", result=7)
    assert state(saga) == "in_doubt"


def test_a_step_in_doubt_that_did_not_happen(saga: eo.Saga[Order], shop: Shop) -> None:
    shop.at["charge"] = raising(eo.InDoubt("the intent is in doubt"))
    with pytest.raises(eo.InDoubt):
        saga.run("o-1", ORDER)
    saga.resolve("o-1", "not_done")
    assert saga.resume() == ResumeCounts(failed=1)
    assert shop.effects == ["reserve", "release"]


def test_after_a_retry_by_an_operator_nothing_of_the_attempts_before_counts(saga: eo.Saga[Order], shop: Shop) -> None:
    """The operator has found that it did not happen: a refusal now is a failure, and not another doubt."""
    attempts: list[int] = []

    def refuse() -> None:
        attempts.append(eo.current().attempt)
        raise eo.InDoubt("?") if len(attempts) == 1 else Declined

    shop.at["charge"] = refuse
    with pytest.raises(eo.InDoubt):
        saga.run("o-1", ORDER)
    saga.resolve("o-1", "retry")
    assert saga.resume() == ResumeCounts(failed=1)
    assert attempts == [1, 1, 2], "as many as a new step has"
    assert shop.effects == ["reserve", "release"]


def test_a_retry_by_an_operator_has_a_new_provider_key(saga: eo.Saga[Order], shop: Shop) -> None:
    keys: list[str] = []

    def unsure() -> None:
        keys.append(eo.current().provider_key("stripe"))
        raise eo.InDoubt("?")

    shop.at["charge"] = unsure
    with pytest.raises(eo.InDoubt):
        saga.run("o-1", ORDER)
    saga.resolve("o-1", "retry")
    assert saga.resume() == ResumeCounts(in_doubt=1)
    assert len(set(keys)) == 2


def test_a_saga_is_turned_around_by_an_operator(saga: eo.Saga[Order], shop: Shop) -> None:
    saga.start("o-1", ORDER)
    saga.compensate("o-1")
    with pytest.raises(eo.SagaFailed, match="an operator asked for it; there was nothing to undo"):
        saga.run("o-1", ORDER)
    with pytest.raises(eo.ConfigurationError, match="there is no saga order with id"):
        saga.compensate("nobody")
    assert (shop.calls, saga.get("nobody")) == ([], None)


def test_what_was_begun_is_not_turned_around_blindly(saga: eo.Saga[Order], shop: Shop) -> None:
    shop.after["charge"] = raising(eo.OutcomeUnknown("?", 0.0))
    with pytest.raises(eo.OutcomeUnknown):
        saga.run("o-1", ORDER)
    with pytest.raises(eo.InDoubt, match="it was started, and whether it happened is not known"):
        saga.compensate("o-1")
    with pytest.raises(eo.ConfigurationError, match="did charge happen"):
        saga.resolve("o-1", "retry")
    saga.resolve("o-1", "done", result={"charge": "ch", "amount": 4200})
    assert saga.resume() == ResumeCounts(failed=1)
    assert shop.effects == ["reserve", "charge", "refund", "release"]


def test_a_done_saga_is_not_turned_around(saga: eo.Saga[Order]) -> None:
    saga.run("o-1", ORDER)
    with pytest.raises(eo.ConfigurationError, match="is done"):
        saga.compensate("o-1")
    with pytest.raises(eo.NotInDoubt, match="is done, not in doubt"):
        saga.resolve("o-1", "retry")
    with pytest.raises(eo.NotInDoubt, match="not known"):
        saga.resolve("nobody", "retry")
