"""The table of started attempts: what a worker writes to it, and the upgrade from the release without it."""

from __future__ import annotations

from typing import Any

import pytest

import effectonce as eo
from effectonce.core.run_sync import run_sync
from effectonce.inbox.table import InboxTable, StartCount
from effectonce.sessions import session_on

from .kinds import Place
from .test_inputs import opened

#: What counted attempts in the release before.
OLD_TABLE = "CREATE TABLE IF NOT EXISTS {table}_attempts (scope varchar(99), attempts int)"


class Starts:
    """The statements of one inbox, each committed."""

    def __init__(self, place: Place, table: str) -> None:
        self.inbox = eo.Inbox(scope="billing", table=table)
        self.connection: Any = opened(place)
        self.session = session_on(self.connection)
        self.table: InboxTable = self.inbox.table(self.session)
        self.key = self.inbox.key_for("order-1")

    def count(self) -> StartCount | None:
        return self._committed(self.table.count_attempt(self.session, self.key))

    def fail(self, error: str, *, uncounted: bool = False) -> None:
        self._committed(self.table.report_failure(self.session, self.key, error, uncounted=uncounted))

    def refund(self) -> None:
        self._committed(self.table.refund_attempt(self.session, self.key))

    def _committed(self, work: Any) -> Any:
        result = run_sync(work)
        self.connection.commit()
        return result


@pytest.fixture
def starts(place: Place, unique_name: str) -> Any:
    starts = Starts(place, unique_name)
    for _ in range(2):  # `migrate` may run again
        starts.inbox.migrate(starts.connection)
        starts.connection.commit()
    yield starts
    starts.connection.close()
    with place.connected() as run:
        for table in (unique_name, f"{unique_name}_starts"):
            run(f"DROP TABLE {table}")


def test_f20_starts_without_an_outcome_add_up_until_one_reports(starts: Starts) -> None:
    assert starts.count() == StartCount(1)
    assert starts.count() == StartCount(2)
    starts.fail("ValueError: no 'such' account \u2019 %s \\")
    assert starts.count() == StartCount(1, 2, "ValueError: no 'such' account \u2019 %s \\")
    starts.fail("KeyError")
    assert starts.count() == StartCount(1, 3, "KeyError")


def test_f74_the_failure_of_a_first_delivery_is_counted_when_it_is_reported(starts: Starts) -> None:
    starts.fail("ValueError", uncounted=True)
    assert starts.count() == StartCount(1, 1, "ValueError")
    starts.refund()
    starts.refund()
    assert starts.count() == StartCount(1, 1, "ValueError"), "no more is taken back than was counted"
    starts.fail("KeyError", uncounted=True)
    assert starts.count() == StartCount(1, 3, "KeyError")


def test_f38_the_table_of_the_release_before_is_left_alone(starts: Starts, place: Place) -> None:
    """Its programs may still run, and count there."""
    old = f"{starts.inbox.table_name}_attempts"
    with place.connected() as run:
        run(OLD_TABLE.format(table=starts.inbox.table_name))
        run(f"INSERT INTO {old} VALUES ('billing', 4)")
        assert starts.count() == StartCount(1)
        starts.inbox.migrate(starts.connection)
        starts.connection.commit()
        assert [tuple(row) for row in run(f"SELECT scope, attempts FROM {old}")] == [("billing", 4)]
        run(f"DROP TABLE {old}")
    assert starts.count() == StartCount(2)
