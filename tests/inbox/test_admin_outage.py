"""What operators get of an inbox whose database breaks connections, or is away."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import effectonce as eo
from effectonce.contracts import ConnectionLost, Contention
from effectonce.inbox.admin import MAX_TRIES, InboxAdmin


@pytest.fixture
def admin(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """An admin whose ``failures`` are raised by its next statements, one by each."""
    store = eo.connect(f"sqlite:///{tmp_path}/shop.db", sweep_every=None)
    store.migrate()
    admin: Any = InboxAdmin(store)
    admin.failures, run = [], admin._port.rows

    async def fail_or_run(*args: Any) -> Any:
        if admin.failures:
            raise admin.failures.pop(0)
        return await run(*args)

    monkeypatch.setattr(admin._port, "rows", fail_or_run)
    return admin


def test_a_statement_that_met_a_broken_connection_or_a_deadlock_is_repeated(admin: Any) -> None:
    admin.failures = [ConnectionLost("it broke"), Contention("a deadlock"), ConnectionLost("it broke")]
    assert admin.list().entries == []
    assert admin.failures == []


def test_a_database_that_is_away_is_an_error_that_names_it_and_why(admin: Any) -> None:
    admin.failures = [ConnectionLost("it broke")] * (MAX_TRIES + 1)
    with pytest.raises(eo.StoreUnavailable, match=r"shop\.db.* did not answer: it broke"):
        admin.list()
    assert len(admin.failures) == 1, "it was asked a few times, and not for ever"


def test_the_name_of_an_inbox_is_its_database_and_its_table(admin: Any, tmp_path: Path) -> None:
    assert admin.name.endswith("shop.db inbox")
    store = eo.connect(f"sqlite:///{tmp_path}/shop.db", sweep_every=None)
    assert InboxAdmin(store, "billing_inbox").name.endswith(" billing_inbox")
