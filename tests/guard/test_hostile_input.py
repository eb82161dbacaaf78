"""Hostile keys, passwords in messages, and rows that were tampered with."""

from __future__ import annotations

import pytest

import effectonce as eo
from effectonce.backends.memory.store import MemoryStoreBackend
from effectonce.testing import ManualClock

from .conftest import HandlerForm


def test_f65_hostile_keys_cannot_forge_log_lines_or_repaint_a_terminal(store: eo.Store, form: HandlerForm) -> None:
    hostile = "k\r\n2026 CRITICAL paid\x1b[2J<script>"
    charge = form.once(store, scope="charge", key="k", fingerprint="amount")(lambda k, amount: None)
    charge(hostile, 1)
    with pytest.raises(eo.PayloadMismatch) as caught:
        charge(hostile, 2)
    assert all(character.isprintable() for character in str(caught.value))


def test_f66_no_password_in_any_repr_or_message() -> None:
    from effectonce.values.urls import Address

    address = Address("redis://user:c4n4ry@127.0.0.1:1/0?password=c4n4ry&private_key=c4n4ry")
    assert "c4n4ry" not in f"{address} {address!r}"
    for url in ("nosuch://user:c4n4ry@host/db", "redis://u:c4n4ry@[bad/0", "sqlite:///x.db?nope=1&password=c4n4ry"):
        with pytest.raises(eo.ConfigurationError) as caught:
            eo.connect(url)
        assert "c4n4ry" not in f"{caught.value!r}"


def test_f60_a_poisoned_row_is_an_error_not_code(clock: ManualClock, form: HandlerForm) -> None:
    backend = MemoryStoreBackend(clock=clock)
    store = eo.Store(backend)

    @form.once(store, scope="charge", key="k")
    def charge(k: str) -> dict[str, int]:
        return {"amount": 1}

    charge("p1")
    for poison in (b"\x80\x04\x95", b'2{"amount":1}', b'1{"amount":"x"}', b"1{", b""):
        backend.scopes["charge"]["p1"].result = poison
        with pytest.raises(eo.CorruptRecord, match="forget"):
            charge("p1")
