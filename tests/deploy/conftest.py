from __future__ import annotations

import pytest

from .shop import Shop


@pytest.fixture
def shop(monkeypatch: pytest.MonkeyPatch) -> Shop:
    return Shop.load(monkeypatch)
