"""The reference says what the code says."""

from __future__ import annotations

import pytest

from .reference import PAGES, REFERENCE, undocumented


@pytest.mark.parametrize("name", PAGES)
def test_a_page_is_up_to_date(name: str) -> None:
    assert (REFERENCE / name).read_text() == PAGES[name](), "write it anew: python -m tests.docs.reference"


def test_every_public_name_is_there() -> None:
    assert not undocumented()
