"""Options in URLs of stores and brokers: durations, numbers, and what is left over."""

from __future__ import annotations

import pytest

from effectonce.errors import InvalidOption
from effectonce.values.urls import Address


@pytest.mark.parametrize(
    ("written", "seconds"), [("5", 5.0), ("0.25", 0.25), ("500ms", 0.5), ("2m", 120.0), ("1us", 1e-6)]
)
def test_a_duration_without_a_unit_is_in_seconds(written: str, seconds: float) -> None:
    assert Address(f"redis://h?timeout={written}").seconds("timeout", 9.0) == seconds
    assert Address("redis://h").seconds("timeout", 9.0) == 9.0


@pytest.mark.parametrize("written", ["0", "-1", "soon", "nan", "inf"])
def test_what_is_no_duration_is_refused_with_the_name_of_its_option(written: str) -> None:
    with pytest.raises(InvalidOption, match=r"option timeout of redis://h.* has a bad value"):
        Address(f"redis://h?timeout={written}").seconds("timeout", 9.0)


def test_options_that_nobody_has_taken_are_refused_with_those_that_there_are() -> None:
    address = Address("redis://h?db=1&colour=blue")
    assert address.take("db", int, 0) == 1
    with pytest.raises(InvalidOption, match=r"colour.*its options are.*db"):
        address.refuse_unknown_options()
    known = Address("redis://h?db=1")
    known.take("db", int, 0)
    known.refuse_unknown_options()


@pytest.mark.parametrize("option", ["ca_file", "cert_file", "key_file"])
def test_the_files_of_tls_are_refused_where_there_is_no_tls(option: str) -> None:
    with pytest.raises(InvalidOption, match="need rediss"):
        Address(f"redis://h?{option}=/a.pem").tls(False, "rediss://")
    assert Address("redis://h").tls(False) is None
