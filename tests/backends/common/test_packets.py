"""Ids that a broker deduplicates by, and the field in which an adapter writes what has no other place."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest

from effectonce.backends.common.packets import (
    deduplication_id,
    fit_id,
    raise_if_all_unavailable,
    random_id,
    read_own_field,
)
from effectonce.contracts import Packet
from effectonce.errors import BrokerUnavailable, ConfigurationError
from effectonce.message import REDRIVEN_HEADER

ALLOWED = re.compile("[a-z]{1,4}")


def test_a_packet_is_deduplicated_by_its_id() -> None:
    assert deduplication_id(Packet(body=b"", id="abcd"), ALLOWED) == "abcd"


@pytest.mark.parametrize("header", [REDRIVEN_HEADER, "eo-dead", "eo-dead-at"])
def test_a_redriven_packet_and_one_without_an_id_are_not_taken_for_another(header: str) -> None:
    for packet in (Packet(body=b"", id="abcd", headers={header: "x"}), Packet(body=b"")):
        ids = {deduplication_id(packet, ALLOWED) for _ in range(2)}
        assert len(ids) == 2
        assert "abcd" not in ids


def test_an_id_that_the_broker_does_not_take_is_hashed() -> None:
    assert fit_id("abcd", ALLOWED) == "abcd"
    assert len({fit_id("abcde", ALLOWED), fit_id("abcdf", ALLOWED), fit_id("abcde", ALLOWED)}) == 2
    assert re.fullmatch("[0-9a-f]{64}", fit_id("abcde", ALLOWED))


def test_random_ids_differ() -> None:
    assert len({random_id() for _ in range(9)}) == 9


@pytest.mark.parametrize("own", [{}, {"id": "a"}, {"key": "k", "headers": {"a": "b"}}, {"base64": True}])
def test_a_field_of_ours_is_read_as_it_was_written(own: dict[str, Any]) -> None:
    assert read_own_field(json.dumps(own)) == own


@pytest.mark.parametrize(
    "text", [None, "", "{", "[]", "3", '{"id": 3}', '{"key": null}', '{"headers": []}', '{"headers": {"a": 1}}']
)
def test_a_field_of_another_program_says_nothing(text: str | None) -> None:
    assert read_own_field(text) == {}


def test_an_error_of_the_whole_call_is_raised() -> None:
    first, second = BrokerUnavailable("first"), BrokerUnavailable("second")
    with pytest.raises(BrokerUnavailable, match="first"):
        raise_if_all_unavailable([first, second])


@pytest.mark.parametrize(
    "outcomes", [[], [None], [BrokerUnavailable("x"), None], [BrokerUnavailable("x"), ConfigurationError("y")]]
)
def test_where_something_is_known_the_outcomes_are_returned(outcomes: list[Exception | None]) -> None:
    raise_if_all_unavailable(outcomes)
