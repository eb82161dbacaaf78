from __future__ import annotations

import pytest

from .shop import Shop


@pytest.fixture(scope="session")
def shop() -> Shop:
    return Shop.read()
