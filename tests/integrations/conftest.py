"""A store, and the list of effects: each framework delivers a message twice, and the list shows how often it ran."""

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
