"""What the progress of a long command shows, and that the commands count what they have done."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from types import SimpleNamespace
from typing import Any, ClassVar

import pytest
from msgspec.structs import replace

import effectonce as eo
from effectonce.cli import records
from effectonce.cli import relay as relay_command
from effectonce.cli.progress import FiguresColumn

from .conftest import Cli


@pytest.mark.parametrize(
    ("completed", "total", "elapsed", "shown"),
    [
        (0, None, 1.0, ""),
        (0, 600, 1.0, "0/600"),
        (50, None, 2.0, "50  25.0/s"),
        (1500, 6000, 2.0, "1,500/6,000  750.0/s  6 s left"),
        (7, 5, 1.0, "7/5  7.0/s  0 s left"),
        (1, 2, None, "1/2  1,000.0/s  0 s left"),
        (1, None, 0.0, "1  1,000.0/s"),
    ],
)
def test_progress_is_what_is_done_its_rate_and_the_time_left(
    completed: int, total: int | None, elapsed: float | None, shown: str
) -> None:
    task: Any = SimpleNamespace(completed=completed, total=total, elapsed=elapsed)
    assert FiguresColumn().render(task).plain == shown


class Counted:
    """Stands in for `Progress`: it keeps what it was told."""

    totals: ClassVar[list[int | None]] = []
    steps: ClassVar[list[int]] = []

    def __init__(self, title: str = "", total: int | None = None) -> None:
        self.totals.append(total)

    def __enter__(self) -> Counted:
        return self

    def __exit__(self, *_: object) -> None: ...

    def step(self, text: str = "", *, count: int = 1, total: int | None = None) -> None:
        self.steps.append(count)


@pytest.mark.parametrize(
    ("limit", "total", "steps"), [([], 3, [2, 1]), (["--limit", "1"], 1, [1]), (["--limit", "9"], 3, [2, 1])]
)
def test_a_purge_counts_what_it_deletes(
    inline: Cli, monkeypatch: pytest.MonkeyPatch, limit: list[str], total: int, steps: list[int]
) -> None:
    with eo.connect("sqlite:///shop.db", sweep_every=None) as store:
        for number in range(3):
            with eo.block(store, scope="old", key=f"k{number}", retention="1us") as block:
                assert block.first
    monkeypatch.setattr(records, "Progress", Counted)
    monkeypatch.setattr(records, "_PURGE_BATCH_SIZE", 2)
    monkeypatch.setattr(Counted, "totals", [])
    monkeypatch.setattr(Counted, "steps", [])
    done = inline("records", "purge", "--store", "sqlite:///shop.db", "--yes", *limit)
    assert done.out == f"{sum(steps)} deleted, 0 moved to in doubt\n"
    assert (Counted.totals, Counted.steps) == ([total], steps)


@pytest.mark.parametrize(("cap", "total"), [(100, 3), (3, None)])
def test_a_relay_that_sends_once_shows_how_far_it_is_where_it_knows_how_much_there_is(
    inline: Cli, monkeypatch: pytest.MonkeyPatch, cap: int, total: int | None
) -> None:
    with eo.connect("sqlite:///shop.db", sweep_every=None) as store:
        store.migrate()
    with closing(sqlite3.connect("shop.db")) as connection, connection:
        connection.execute("BEGIN")
        eo.Outbox(to="orders").send_many(connection, [eo.Message(data=number) for number in range(3)])
    stats = eo.Relay.stats
    monkeypatch.setattr(eo.Relay, "stats", lambda relay: replace(stats(relay), cap=cap))
    monkeypatch.setattr(relay_command, "Progress", Counted)
    monkeypatch.setattr(Counted, "totals", [])
    monkeypatch.setattr(Counted, "steps", [])
    inline("relay", "--store", "sqlite:///shop.db", "--broker", "sqlite:///queue.db", "--once")
    assert (Counted.totals, Counted.steps) == ([total], [1, 1, 1])
