"""What an operator searches for: which keys a term means."""

from __future__ import annotations

import pytest

from effectonce.errors import InvalidKey, MissingKey
from effectonce.values.key_term import KeyTerm, parse_key_term
from effectonce.values.scopes import kind_of_scope

KEYS = ["ORDER-4", "ORDER-42", "ORDER-42:refund", "ORDER-42;x", "ORDER-421", "order-42"]


@pytest.mark.parametrize(
    ("typed", "found"),
    [
        ("ORDER-42", ["ORDER-42", "ORDER-42:refund"]),
        (" ORDER-42 ", ["ORDER-42", "ORDER-42:refund"]),
        ("ORDER-42*", ["ORDER-42", "ORDER-42:refund", "ORDER-42;x", "ORDER-421"]),
        ("ORDER-42:refund", ["ORDER-42:refund"]),
        ("ORDER", []),
    ],
)
def test_a_term_means_a_key_or_its_first_part_and_with_a_star_what_it_begins_with(typed: str, found: list[str]) -> None:
    term = parse_key_term(typed)
    assert [key for key in KEYS if term.matches(key)] == found
    assert not term.matches(None), "a row that keeps no key"


@pytest.mark.parametrize("typed", ["", "  ", "*", " * "])
def test_a_term_that_would_mean_every_key_is_refused(typed: str) -> None:
    with pytest.raises(MissingKey):
        parse_key_term(typed)


def test_a_term_that_no_key_can_be_is_refused() -> None:
    with pytest.raises(InvalidKey):
        parse_key_term("a\0b")


def test_the_ranges_hold_the_highest_characters_too() -> None:
    assert KeyTerm("k", is_prefix=True).matches("k\U0010fffe")


@pytest.mark.parametrize(
    ("scope", "kind"),
    [
        ("saga/order", "saga"),
        ("intents/shop/stripe/charge", "intent"),
        ("intents/shop/eu/stripe/charge", "intent"),
        ("intents//stripe/charge", "intent"),
        ("intents/order.paid/billing", "guard"),  # a worker's handler for the queue "intents"
        ("sagas", "guard"),
        ("shop", "guard"),
    ],
)
def test_a_scope_says_what_writes_its_records(scope: str, kind: str) -> None:
    assert kind_of_scope(scope) == kind
