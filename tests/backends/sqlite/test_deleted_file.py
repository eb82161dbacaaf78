"""A SQLite file that is deleted or replaced while it is open: SQLite would go on with it, seen by no other process."""

from __future__ import annotations

import asyncio
import logging
import os
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

import effectonce as eo


def delete(path: Path) -> None:
    for file in path.parent.glob(f"{path.name}*"):  # and its log
        file.unlink()


@pytest.mark.parametrize("is_async", [False, True])
def test_a_deleted_file_is_not_used_any_more(tmp_path: Path, caplog: pytest.LogCaptureFixture, is_async: bool) -> None:
    path = tmp_path / "shop.db"
    runs: list[str] = []
    with eo.connect(f"sqlite:///{path}", sweep_every=None) as store, caplog.at_level(logging.ERROR):

        @eo.once(store, scope="charge", key="k")
        def charge(k: str) -> None:
            runs.append(k)

        @eo.once(store, scope="charge-async", key="k")
        async def charge_async(k: str) -> None:
            runs.append(k)

        async def call() -> None:
            await charge_async("p1")
            delete(path)
            await charge_async("p2")

        if is_async:
            asyncio.run(call())
        else:
            charge("p1")
            delete(path)
            charge("p2")
    assert runs == ["p1", "p2"]
    assert "was deleted or replaced while it was open" in caplog.text
    with closing(sqlite3.connect(path)) as other:
        rows = other.execute("SELECT key FROM effectonce_records").fetchall()
    assert rows == [("p2",)]


def test_a_claim_of_the_deleted_file_cannot_be_completed_in_the_new_one(tmp_path: Path) -> None:
    """Its record is gone: that is said, and not taken for recorded."""
    path = tmp_path / "shop.db"
    with eo.connect(f"sqlite:///{path}", sweep_every=None) as store:
        charge = eo.once(store, scope="charge", key="k")(lambda k: delete(path))
        with pytest.raises(eo.LeaseLost):
            charge("p1")


def test_a_file_that_a_backup_has_replaced_is_the_one_that_counts(tmp_path: Path) -> None:
    path, backup = tmp_path / "shop.db", tmp_path / "backup.db"
    runs: list[str] = []
    with eo.connect(f"sqlite:///{backup}", sweep_every=None) as store:
        eo.once(store, scope=eo.GLOBAL, key="k")(lambda k: None)("p1")
    with eo.connect(f"sqlite:///{path}", sweep_every=None) as store:
        charge = eo.once(store, scope=eo.GLOBAL, key="k", returns=None)(lambda k: runs.append(k))
        charge("p2")
        delete(path)
        os.rename(backup, path)
        charge("p1")
        charge("p2")
    assert runs == ["p2", "p2"]


def test_a_queue_whose_file_was_deleted_is_a_new_one(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / "queue.db"
    with eo.connect_broker(f"sqlite:///{path}") as broker, caplog.at_level(logging.ERROR):
        broker.declare("orders", group="billing")
        broker.publish("orders", [eo.Message(type="paid", data=1)])
        delete(path)
        broker.declare("orders", group="billing")
        broker.publish("orders", [eo.Message(type="paid", data=2)])
    assert "was deleted or replaced while it was open" in caplog.text
    assert path.exists()
