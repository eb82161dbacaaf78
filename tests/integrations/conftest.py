"""A store and a list of effects: each framework delivers twice, and the list says how often it happened."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

import effectonce as eo


@pytest.fixture
def store() -> Iterator[eo.Store]:
    with eo.connect("memory://") as store:
        yield store


@pytest.fixture
def charges() -> list[str]:
    return []
