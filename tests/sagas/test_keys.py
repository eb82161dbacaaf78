"""By what steps are known to the outside, and by what an input is known again."""

from __future__ import annotations

import dataclasses
from typing import Any

import msgspec
import pytest

import effectonce as eo


@pytest.fixture
def store() -> eo.Store:
    return eo.connect("memory://", sweep_every=None)


# -- keys


def test_two_sagas_with_one_id_and_one_step_have_two_keys(store: eo.Store) -> None:
    """F24: else the second would be given the first one's charge, and none would happen."""
    intents = eo.Intents(store, scope="billing")
    charged: list[str] = []

    @intents.operation("stripe", "charge")
    def stripe(intent: eo.Intent[int]) -> str:
        charged.append(intent.key)
        return f"ch_{len(charged)}"

    for name in ("fulfil", "renew"):
        saga = eo.Saga(name, store, input=int)

        @saga.step()
        def charge(amount: int) -> str:
            return str(stripe(amount, key=eo.current().key))

        saga.run("o-1", 500)
    assert charged == ["fulfil/o-1/charge", "renew/o-1/charge"]


def test_f23_no_two_sagas_make_one_key(store: eo.Store) -> None:
    keys: list[str] = []
    named = [("a", "b/c"), ("a/b", "c"), ("a\\", "b/c"), ("a\\/b", "c"), ("a\\", "/b/c"), ("a", "b/c/one"), ("a", "b")]
    for name, id in named:
        saga = eo.Saga(name, store, input=int)

        def one(input: int) -> None:
            keys.append(eo.current().key)

        def undo(input: int) -> None:
            keys.append(eo.current().key)

        saga.step()(one).compensate(undo)
        saga.step(name="two")(lambda input: 1 / 0)
        with pytest.raises(eo.SagaFailed):
            saga.run(id, 1)
    assert len(set(keys)) == len(keys) == 2 * len(named)


@pytest.mark.parametrize("name", ["order", "a/b", "\\" * 250, "größe" * 30])
def test_f27_an_id_leaves_room_for_the_keys_of_all_that_it_does(store: eo.Store, name: str) -> None:
    """Else it could charge, and never refund."""
    saga = eo.Saga(name, store, input=str)
    intents = eo.Intents(store, scope="billing")
    done: list[str] = []

    @intents.operation("stripe", "charge")
    def stripe(intent: eo.Intent[str]) -> str:
        done.append(intent.request)
        return "ok"

    step = "x" * 80
    saga.step(name=step)(lambda input: stripe("charge", key=eo.current().key)).compensate(
        lambda input: stripe("refund", key=eo.current().key)
    )
    saga.step(name="ship")(lambda input: 1 / 0)
    with pytest.raises(eo.KeyTooLong, match=r"may have \d+ bytes, since the keys of its steps") as refused:
        saga.run("k" * 1010, "x")
    with pytest.raises(eo.KeyTooLong):
        saga.start("k" * 1010, "x")
    assert (done, store.list().records) == ([], [])
    longest = int(str(refused.value).partition(" may have ")[2].partition(" ")[0])
    assert longest >= 400
    with pytest.raises(eo.KeyTooLong):
        saga.run("k" * (longest + 1), "x")
    with pytest.raises(eo.SagaFailed):
        saga.run("k" * longest, "x")
    assert done == ["charge", "refund"]


# -- one input, written in several ways


class Basket(msgspec.Struct):
    tags: set[int]
    amount: float = 1


@dataclasses.dataclass(frozen=True)
class Item:
    """It has no order among others."""

    number: int

    def __hash__(self) -> int:
        return self.number


class Mixed(msgspec.Struct, rename="camel"):
    """Its sets have no order that msgspec could bring them into, or are behind names that are not text."""

    some_items: set[Item]
    by_number: dict[int, set[int]]
    none_or: set[int | None]


@pytest.mark.parametrize(
    ("first", "again"),
    [
        ({"a": 1, "b": {"c": 2, "d": 3}}, {"b": {"d": 3, "c": 2}, "a": 1}),
        ({"a": 1}, {"a": 1.0}),
        ({"a": [-0.0]}, {"a": [0]}),
        ({1: "names that are not text"}, {1: "names that are not text"}),
    ],
)
def test_f22_the_same_input_is_known_again_however_it_is_written(store: eo.Store, first: Any, again: Any) -> None:
    saga = eo.Saga("order", store, input=dict)
    calls: list[Any] = []
    saga.step(name="one")(calls.append)
    saga.run("o-1", first)
    saga.run("o-1", again)
    saga.start("o-1", again)
    assert len(calls) == 1
    with pytest.raises(eo.PayloadMismatch):
        saga.run("o-1", {**again, "more": 1})


def test_f22_a_set_is_the_same_in_any_order(store: eo.Store) -> None:
    """As it is in another process, whose strings have other hashes."""
    saga = eo.Saga("order", store, input=Basket)
    saga.step(name="one")(lambda basket: None)
    one, other = {0, 8}, {8, 0}
    assert list(one) != list(other)
    saga.run("o-1", Basket(one))
    saga.run("o-1", Basket(other, 1.0))


def test_f22_so_is_one_that_cannot_be_sorted(store: eo.Store) -> None:
    saga = eo.Saga("order", store, input=Mixed)
    saga.step(name="one")(lambda mixed: None)

    def mixed(*numbers: int) -> Mixed:
        return Mixed({Item(each) for each in numbers}, {1: set(numbers)}, {None, *numbers})

    saga.run("o-1", mixed(0, 8))
    saga.run("o-1", mixed(8, 0))
    with pytest.raises(eo.PayloadMismatch):
        saga.run("o-1", mixed(0, 9))
