"""`assert_idempotent` finds the handlers that double or lose, says where, and passes those that do not."""

from __future__ import annotations

import asyncio
import re
import sys
from typing import Any

import pytest

import effectonce as eo
from effectonce.testing import Trial, aassert_idempotent, assert_idempotent
from effectonce.testing.fault_points import MAX_STEPS_OF_LINE, FaultInjector
from effectonce.testing.idempotence import make_subject
from effectonce.testing.trials import IdempotenceTrials

STORE = eo.connect("memory://")
charges: list[str] = []
seen: set[str] = set()


def charged() -> int:
    return len(charges)


@pytest.fixture(autouse=True)
def clean() -> None:
    charges.clear()
    seen.clear()


def naive(payment_id: str) -> None:
    charges.append(payment_id)


def looks_then_acts(payment_id: str) -> None:
    if payment_id in seen:
        return
    charges.append(payment_id)
    seen.add(payment_id)


def marks_then_acts(payment_id: str) -> None:
    if payment_id in seen:
        return
    seen.add(payment_id)
    charges.append(payment_id)


def swallows(payment_id: str) -> None:
    try:
        if payment_id in charges:
            return
        charges.append(payment_id)
    except Exception:
        pass


def upserts(payment_id: str) -> None:
    if payment_id not in charges:
        charges.append(payment_id)


@eo.once(STORE, scope="kit-charge", key="payment_id")
def guarded(payment_id: str) -> str:
    receipt = f"r-{payment_id}"
    charges.append(payment_id)
    return receipt


@eo.once(STORE, scope="kit-acharge", key="payment_id")
async def aguarded(payment_id: str) -> str:
    await asyncio.sleep(0)
    charges.append(payment_id)
    await asyncio.sleep(0)
    return f"r-{payment_id}"


@eo.once(STORE, scope="kit-doubt", key="payment_id", on_error="doubt", on_lapse="doubt")
def doubtful(payment_id: str) -> None:
    charges.append(payment_id)


@eo.once(STORE, scope="kit-message")
def of_a_message(message: eo.Message[Any]) -> None:
    charges.append(message.key)


def failures(handler: Any, **options: Any) -> str:
    with pytest.raises(AssertionError) as caught:
        assert_idempotent(handler, "pay_1", effects=charged, **options)
    assert f"{handler.__name__} is not idempotent" in str(caught.value)
    return str(caught.value)


def verdicts(handler: Any, **options: Any) -> dict[tuple[str, str], Trial]:
    """Every trial, by its scenario and the line before which the first delivery ended."""
    report = IdempotenceTrials(make_subject(handler, ("pay_1",), {}), charged, **options).run_blocking()
    return {(trial.scenario, trial.step.partition("  ")[2]): trial for trial in report.trials}


def test_a_naive_handler_doubles_when_it_is_delivered_twice() -> None:
    assert "delivered twice: 2 effects instead of 1" in failures(naive)


def test_looking_and_then_acting_doubles_when_delivered_at_once() -> None:
    """F14: each looked before any had recorded."""
    assert re.search("5 times at once: [2-5] effects instead of 1", failures(looks_then_acts, reset=seen.clear))


def test_marking_before_the_effect_loses_it_in_a_crash() -> None:
    """Watermill's defect: the key is marked before the work, so a failure is dropped on redelivery."""
    trials = verdicts(marks_then_acts, reset=seen.clear)
    for end in ("killed", "raises"):
        trial = trials[end, "charges.append(payment_id)"]
        assert (trial.verdict, trial.effects) == ("lost", 0)
        assert trials[end, "seen.add(payment_id)"].verdict == "once"


def test_a_swallowed_error_is_a_loss() -> None:
    trials = verdicts(swallows, reset=charges.clear)
    assert trials["raises", "charges.append(payment_id)"].verdict == "lost"
    assert trials["killed", "charges.append(payment_id)"].verdict == "once", "a dead process swallows nothing"


def test_an_effect_that_is_idempotent_by_itself_passes_unless_two_look_at_once() -> None:
    assert "at once" in failures(upserts, reset=charges.clear)


def test_a_guarded_handler_loses_nothing_and_repeats_only_where_mode_l_says() -> None:
    report = assert_idempotent(guarded, "pay_1", effects=charged)

    assert report.failures == []
    ends = {(trial.scenario, trial.step.partition("  ")[2] or trial.step) for trial in report.windows}
    assert ends == {
        ("killed", "return receipt"),
        ("killed", "complete: sent to the store"),
        ("raises", "return receipt"),
        ("loses its store", "complete: sent to the store"),
    }
    assert {trial.verdict for trial in report.trials if trial.scenario.startswith("delivered")} == {"once"}


def test_strict_fails_where_the_mode_may_repeat() -> None:
    assert "The effect and the record of it are two steps" in failures(guarded, strict=True)


def test_an_async_handler_is_tried_in_a_loop_of_its_own() -> None:
    report = assert_idempotent(aguarded, "pay_1", effects=charged)
    assert report.failures == []
    assert report.windows


async def test_inside_a_running_loop_the_async_form_is_asked_for() -> None:
    with pytest.raises(eo.SyncAsyncMismatch, match="aassert_idempotent"):
        assert_idempotent(aguarded, "pay_1", effects=charged)
    assert (await aassert_idempotent(aguarded, "pay_1", effects=charged)).failures == []


def test_in_doubt_is_neither_lost_nor_doubled() -> None:
    """Every ambiguous end is where an operator finds it, so nothing is counted against it (F03)."""
    report = assert_idempotent(doubtful, "pay_1", effects=charged)
    assert report.failures == report.windows == []
    assert any("InDoubt" in line for trial in report.trials for line in trial.timeline)


def test_a_message_is_new_in_every_trial() -> None:
    report = assert_idempotent(of_a_message, eo.Message(data={"amount": 1}), effects=charged)
    assert report.failures == []
    assert len(set(charges)) > len(report.trials) // 2


def test_the_handlers_own_store_is_not_touched() -> None:
    assert_idempotent(guarded, "pay_untouched", effects=charged)
    assert STORE.get("kit-charge", "pay_untouched") is None


def test_a_store_inside_the_handler_is_replaced_when_it_is_named() -> None:
    def handler(payment_id: str) -> None:
        with eo.block(STORE, scope="kit-block", key=payment_id) as block:
            if block.first:
                charges.append(payment_id)

    report = assert_idempotent(handler, "pay_1", effects=charged, store=STORE)
    assert report.failures == []
    assert {trial.step for trial in report.windows} == {"complete: sent to the store"}
    assert STORE.get("kit-block", "pay_1") is None


def test_a_counter_that_counts_nothing_is_a_mistake_of_the_test() -> None:
    with pytest.raises(eo.ConfigurationError, match="effects\\(\\) did not grow"):
        assert_idempotent(naive, "pay_1", effects=lambda: 0)


def test_a_handler_that_remembers_needs_a_reset() -> None:
    with pytest.raises(eo.ConfigurationError, match="Pass reset="):
        assert_idempotent(looks_then_acts, "pay_1", effects=charged)


def test_a_handler_that_fails_by_itself_cannot_be_tried() -> None:
    def broken(payment_id: str) -> None:
        raise OSError("no gateway")

    with pytest.raises(eo.ConfigurationError, match="no gateway"):
        assert_idempotent(broken, "pay_1", effects=charged)


def exits(payment_id: str) -> None:
    charges.append(payment_id)
    sys.exit(0)


def exits_at_a_duplicate(payment_id: str) -> None:
    if payment_id in charges:
        sys.exit(0)
    charges.append(payment_id)


async def exits_at_a_duplicate_async(payment_id: str) -> None:
    exits_at_a_duplicate(payment_id)


def test_a_handler_that_exits_does_not_end_the_test() -> None:
    """`effectonce verify` would end with its exit code, which may be 0."""
    with pytest.raises(
        eo.ConfigurationError, match="exits was not done, so it cannot be tried: it raised SystemExit: 0"
    ):
        assert_idempotent(exits, "p1", effects=charged)
    for handler in (exits_at_a_duplicate, exits_at_a_duplicate_async):
        report = IdempotenceTrials(make_subject(handler, ("p1",), {}), charged, reset=charges.clear).run_blocking()
        assert "it raised SystemExit: 0" in report.trials[0].timeline[1]
        assert [trial.verdict for trial in report.trials if trial.scenario == "delivered twice"] == ["once"]


@pytest.mark.parametrize("counted", [lambda: charges, lambda: None, lambda: 1.5, lambda: asyncio.sleep(0)])
def test_effects_must_be_counted_with_a_whole_number(counted: Any) -> None:
    with pytest.raises(eo.ConfigurationError, match=r"returned a \w+, and must return a whole number"):
        assert_idempotent(naive, "p1", effects=counted)


def test_effects_must_be_a_function() -> None:
    with pytest.raises(eo.ConfigurationError, match=r"effects= is a function .* effects=lambda: len\(charges\)"):
        assert_idempotent(naive, "p1", effects=charges)  # type: ignore[arg-type]


def test_values_that_cannot_be_compared_are_not() -> None:
    class Frame:
        def __ne__(self, other: object) -> bool:
            raise ValueError("the truth value of a frame is ambiguous")

    def loads(payment_id: str) -> Frame:
        upserts(payment_id)
        return Frame()

    report = IdempotenceTrials(make_subject(loads, ("p1",), {}), charged, reset=charges.clear).run_blocking()
    assert [trial.verdict for trial in report.trials if trial.scenario == "delivered twice"] == ["once"]


def test_a_long_loop_has_few_steps_and_the_lines_behind_it_are_steps_all_the_same() -> None:
    def loops() -> None:
        total = 0
        for number in range(5000):
            total += number
        charges.append("looped")

    injector = FaultInjector()
    with injector.trace_steps():
        loops()
    assert len(injector.steps) < 3 * MAX_STEPS_OF_LINE
    assert injector.steps[-1].description.endswith('charges.append("looped")')
