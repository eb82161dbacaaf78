"""The names of queues and groups, which every broker must accept."""

from __future__ import annotations

import pytest

from effectonce.errors import InvalidOption
from effectonce.values.queue_names import require_name


@pytest.mark.parametrize("name", ["orders", "_", "7", "shop/orders.v2:eu-1_a", "x" * 200])
def test_a_name_of_letters_digits_and_a_few_signs_is_returned(name: str) -> None:
    assert require_name(name) == name


@pytest.mark.parametrize("name", ["", "x" * 201, ".hidden", "-x", "/x", ":x", "a b", "a\n", "ü", "a*", 7, None, b"a"])
def test_any_other_name_is_refused_with_what_a_name_is(name: object) -> None:
    with pytest.raises(InvalidOption, match=r"is not a name for a group: use a letter, digit or _.*up to 200 in all"):
        require_name(name, "group")  # type: ignore[arg-type]
