"""Arguments that arrive as JSON objects, and the models that a function wants."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import msgspec
import pytest
from pydantic import BaseModel

import effectonce as eo
from effectonce.core.argument_models import model_reader


@dataclass
class Card:
    number: str


class Order(msgspec.Struct):
    id: int


class Customer(BaseModel):
    name: str


def pay(order: Order, card: Card, customer: Customer, amount: int = 0, note: Any = None) -> Order: ...


ARGUMENTS: Any = ({"id": 7}, {"number": "4242"})


def test_a_dict_becomes_the_model_that_its_parameter_names() -> None:
    args, kwargs = model_reader(pay)(ARGUMENTS, {"customer": {"name": "Ann"}})
    assert (*args, *kwargs.values()) == (Order(7), Card("4242"), Customer(name="Ann"))


def test_all_other_arguments_stay_as_they_are() -> None:
    ready = (Order(1), Card("1"), Customer(name="Bob"))
    args, kwargs = model_reader(pay)((*ready, 7), {"note": {"a": 1}})
    assert (args, kwargs) == ((*ready, 7, {"a": 1}), {})


@pytest.mark.parametrize("wrong", [{"id": "seven"}, {}])
def test_a_dict_that_does_not_fit_its_model_is_undecodable(wrong: dict[str, Any]) -> None:
    with pytest.raises(eo.Undecodable, match="the argument 'order' is not a Order"):
        model_reader(pay)((wrong, Card("1"), Customer(name="Ann")), {})


def test_a_function_without_models_gets_its_arguments_unread() -> None:
    def plain(order: dict[str, int], amount: int = 0) -> None: ...

    args: Any = (object(), object(), object())
    assert model_reader(plain)(args, {"x": 1}) == (args, {"x": 1})


def test_annotations_that_only_type_checkers_know_name_no_model() -> None:
    def later(order: Nowhere) -> None: ...  # type: ignore[name-defined]  # noqa: F821

    assert model_reader(later)(({"id": 7},), {}) == (({"id": 7},), {})
