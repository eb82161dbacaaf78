"""Celery: the guard below ``@app.task``, eagerly and through a worker on the memory broker.

``shared=False`` keeps the tasks of one test's app out of the others'.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from celery import Celery
from celery.contrib.testing.worker import start_worker

import effectonce as eo


@pytest.fixture
def app() -> Iterator[Celery]:
    app = Celery("shop", broker="memory://", backend="cache+memory://", set_as_current=False)
    app.conf.update(task_always_eager=True)
    yield app
    app.close()


@pytest.fixture
def charge(app: Celery, store: eo.Store, charges: list[str]) -> Any:
    @app.task(shared=False)
    @eo.once(store, scope="charge", key="payment_id")
    def charge(payment_id: str, amount: int = 1, *, currency: str = "EUR") -> str:
        """Charge a card."""
        charges.append(payment_id)
        return f"{amount} {currency}"

    return charge


def test_a_task_sent_twice_has_one_effect_and_one_result(charge: Any, charges: list[str]) -> None:
    results = [charge.delay("p1", 4200).get() for _ in range(2)]
    assert (results, charges) == (["4200 EUR", "4200 EUR"], ["p1"])


@pytest.mark.parametrize(
    "send",
    [
        lambda task: task("p1", 7),
        lambda task: task.run("p1", 7),
        lambda task: task.delay(payment_id="p1", amount=7).get(),
        lambda task: task.apply_async(("p1",), {"amount": 7}).get(),
        lambda task: task.s("p1", 7).delay().get(),
        lambda task: task.s(7, currency="EUR").clone(args=("p1",)).delay().get(),
        lambda task: task.signature(kwargs={"payment_id": "p1", "amount": 7}).apply().get(),
    ],
    ids=["call", "run", "delay by name", "apply_async", "s", "clone", "signature"],
)
def test_every_way_to_send_it_is_guarded(charge: Any, charges: list[str], send: Callable[[Any], str]) -> None:
    assert [send(charge), send(charge)] == ["7 EUR", "7 EUR"]
    assert charges == ["p1"]


@pytest.mark.parametrize("arguments", [{}, {"amount": 1}, {"payment_id": "p1", "colour": "red"}], ids=str)
def test_wrong_arguments_are_refused_when_it_is_sent(
    charge: Any, charges: list[str], arguments: dict[str, Any]
) -> None:
    with pytest.raises(TypeError, match=r"charge\(\)"):
        charge.delay(**arguments)
    assert charges == []


def test_the_task_has_the_functions_names(charge: Any) -> None:
    assert (charge.name, charge.__name__, charge.__doc__) == (f"{__name__}.charge", "charge", "Charge a card.")


def test_a_bound_task_has_its_request_and_a_key_that_is_not_self(
    app: Celery, store: eo.Store, charges: list[str]
) -> None:
    @app.task(bind=True, shared=False)
    @eo.once(store, scope="charge", key="payment_id")
    def charge(self: Any, payment_id: str) -> str:
        charges.append(f"{payment_id} in {self.request.id}")
        return str(self.name)

    for task_id in ("first", "second"):
        assert charge.apply_async(("p1",), task_id=task_id).get() == f"{__name__}.charge"
        assert charge.apply_async((), {"payment_id": "p1"}).get() == f"{__name__}.charge"
    assert charges == ["p1 in first"]


def test_a_bound_task_may_have_the_default_scope(app: Celery, store: eo.Store, charges: list[str]) -> None:
    @app.task(bind=True, shared=False)
    @eo.once(store, key="payment_id")
    def charge_by_name(self: Any, payment_id: str) -> None:
        charges.append(payment_id)

    for _ in range(2):
        charge_by_name.delay("p1").get()
    assert charges == ["p1"]


def test_a_task_that_raised_is_retried_and_runs_again(app: Celery, store: eo.Store, charges: list[str]) -> None:
    @app.task(autoretry_for=(RuntimeError,), default_retry_delay=0, shared=False)
    @eo.once(store, scope="charge", key="payment_id")
    def charge(payment_id: str) -> int:
        charges.append(payment_id)
        if len(charges) < 3:
            raise RuntimeError("card reader on fire")
        return eo.current().attempt

    assert [charge.delay("p1").get(), charge.delay("p1").get()] == [3, 3]
    assert charges == ["p1"] * 3


def test_a_worker_runs_a_redelivered_task_once(app: Celery, charge: Any, charges: list[str]) -> None:
    app.conf.update(task_always_eager=False)
    with start_worker(app, pool="solo", perform_ping_check=False, shutdown_timeout=30):
        results = [charge.apply_async(("p1", 7), task_id="one-and-the-same") for _ in range(2)]
        results.append(charge.delay("p2"))
        assert [result.get(timeout=30) for result in results] == ["7 EUR", "7 EUR", "1 EUR"]
    assert charges == ["p1", "p2"]
