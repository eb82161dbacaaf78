"""``done``: the results of the steps before, as a step asks for them."""

from __future__ import annotations

from pathlib import Path

import pytest

import effectonce as eo
from effectonce.sagas.steps import Done


@pytest.fixture
def saga(tmp_path: Path) -> eo.Saga[int]:
    saga = eo.Saga("trip", eo.connect(f"sqlite:///{tmp_path}/shop.db", sweep_every=None), input=int)

    @saga.step()
    def hotel(nights: int) -> int:
        return nights

    @saga.step()
    def mail(nights: int) -> None: ...

    @saga.step()
    def flight(nights: int) -> str:
        return "LH1"

    return saga


@pytest.fixture
def done(saga: eo.Saga[int]) -> Done:
    return Done(saga.steps, {"hotel", "mail"}, {"hotel": saga.steps["hotel"].codec.encode(7)})


def test_the_result_of_a_step_is_what_it_returned(saga: eo.Saga[int], done: Done) -> None:
    assert done[saga.steps["hotel"]] == 7
    assert done[saga.steps["mail"]] is None


def test_a_step_that_is_not_done_has_no_result_yet(saga: eo.Saga[int], done: Done) -> None:
    with pytest.raises(eo.ConfigurationError, match="step flight is not done"):
        done[saga.steps["flight"]]
    assert saga.steps["flight"] not in done
    assert saga.steps["hotel"] in done


def test_a_result_that_was_not_stored_is_missed_only_by_who_asks_for_it(saga: eo.Saga[int]) -> None:
    done = Done(saga.steps, {"hotel"}, {})
    assert saga.steps["hotel"] in done
    with pytest.raises(eo.ResultNotStored, match="step hotel is done, but its result was not stored"):
        done[saga.steps["hotel"]]


@pytest.mark.parametrize("wrong", ["hotel", None, len])
def test_a_step_is_asked_for_by_its_function(done: Done, wrong: object) -> None:
    with pytest.raises(eo.ConfigurationError, match=r"is not a step of this saga; ask by the decorated function"):
        done[wrong]  # type: ignore[index]


def test_a_step_of_another_saga_is_none_of_this_one(done: Done, tmp_path: Path) -> None:
    other = eo.Saga("other trip", eo.connect(f"sqlite:///{tmp_path}/shop.db", sweep_every=None), input=int)

    @other.step()
    def hotel(nights: int) -> int:
        return nights

    assert hotel not in done
    with pytest.raises(eo.ConfigurationError, match="is not a step of this saga"):
        done[hotel]


def test_what_is_done_is_shown_in_the_order_of_the_steps(saga: eo.Saga[int], done: Done) -> None:
    assert repr(done) == "<done: hotel, mail>"
    assert repr(Done(saga.steps, set(), {})) == "<done: nothing>"
