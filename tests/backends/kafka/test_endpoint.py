"""The cluster of a URL, without a server."""

from __future__ import annotations

import pytest

from effectonce.backends.common import drivers
from effectonce.backends.kafka.endpoint import parse_cluster
from effectonce.errors import MissingDriver
from effectonce.values.urls import Address


def test_a_missing_driver_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(drivers, "find_spec", lambda name: None)
    with pytest.raises(MissingDriver, match=r"effectonce\[kafka\]"):
        parse_cluster(Address("kafka://localhost"))
