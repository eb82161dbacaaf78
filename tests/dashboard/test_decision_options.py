"""Which outcomes the dashboard offers for a record in doubt, and what it says beside them."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from effectonce.dashboard.pages.records import decision_options
from effectonce.record import Record
from effectonce.sagas.log import LoggedStep, SagaLog, StepProgress

SAGA, INTENT = "saga/order", "intents/billing/stripe/charge"


def options(scope: str, *, private: bool = False, log: SagaLog | None = None, known: bool = True) -> dict[str, Any]:
    sources: Any = SimpleNamespace(
        privacy=object() if private else None,
        sagas={SAGA: object()} if known else {},
        intents={INTENT: object()} if known else {},
        log=lambda record: log,
    )
    record = Record(
        scope=scope, key="k", state="in_doubt", doubt_on_lapse=False, token=1, attempts=1, generation=0,
        created_at=1, changed_at=1,
    )  # fmt: skip
    return decision_options(sources, record)


def saga_log(phase: Any, step: Any = "running", undo: Any = "pending") -> SagaLog:
    entry = LoggedStep("charge", "charge", True, StepProgress(state=step), StepProgress(state=undo))
    return SagaLog("id", "1", b"{}", [entry], phase=phase, step_in_doubt="charge")


@pytest.mark.parametrize(("private", "takes_result"), [(False, True), (True, False)])
def test_only_the_program_of_a_private_store_can_seal_a_result(private: bool, takes_result: bool) -> None:
    shown = options("charge", private=private)
    assert shown["outcomes"] == ("done", "retry", "abandon")
    assert shown["takes_result"] is takes_result
    assert ("only its program can write" in shown["hint"]) is private


@pytest.mark.parametrize("known", [True, False])
def test_an_intent_takes_a_result_which_its_program_checks(known: bool) -> None:
    shown = options(INTENT, private=True, known=known)
    assert (shown["outcomes"], shown["takes_result"]) == (("done", "retry", "abandon"), True)
    assert ("--intents MODULE:INTENTS" in shown["hint"]) is not known


@pytest.mark.parametrize(
    ("log", "known", "outcomes", "takes_result", "undoing"),
    [
        (saga_log("running"), True, ("done", "not_done", "retry", "abandon"), True, False),
        (saga_log("compensating"), True, ("done", "not_done", "abandon"), True, False),
        (saga_log("compensating", "done", "failed"), True, ("done", "retry", "abandon"), False, True),
        (saga_log("running"), False, ("abandon",), False, False),
        (None, True, ("abandon",), False, False),
    ],
    ids=["a step", "a step of one that turned around", "a compensation", "without its program", "sealed"],
)
def test_a_sagas_step_is_decided_with_its_program(
    log: SagaLog | None, known: bool, outcomes: tuple[str, ...], takes_result: bool, undoing: bool
) -> None:
    shown = options(SAGA, log=log, known=known, private=True)
    assert (shown["outcomes"], shown["takes_result"], shown["undoing"]) == (outcomes, takes_result, undoing)
    assert ("--saga MODULE:SAGA" in shown["hint"]) == (outcomes == ("abandon",))
