"""F58: kill -9 of workers at random while messages with duplicates flow: nothing lost; in mode T nothing doubled, in
mode L no more than was unrecorded at the kills. Ten thousand messages: ``python -m tests.worker.kills``."""

from __future__ import annotations

from pathlib import Path

import pytest

from .kills import Show


@pytest.mark.quick_on("redis-L", "rabbitmq-T")
@pytest.mark.parametrize(
    ("kind", "mode"),
    [
        ("sqlite", "L"),
        ("sqlite", "T"),
        ("redis", "L"),
        ("redis", "T-batch"),
        ("rabbitmq", "L"),
        ("rabbitmq", "T"),
    ],
)
def test_workers_are_killed_and_nothing_is_lost(
    kind: str, mode: str, tmp_path: Path, unique_name: str, request: pytest.FixtureRequest
) -> None:
    store = f"sqlite:///{tmp_path}/store.db"
    if kind == "sqlite":
        broker = f"sqlite:///{tmp_path}/queue.db?ack_window=2s"
    elif kind == "redis":
        store = request.getfixturevalue("redis_url")
        broker = f"{store}?ack_window=2s"
    else:
        store = request.getfixturevalue("redis_url")
        broker = request.getfixturevalue("rabbitmq_url")
    messages = 2000 if mode == "T-batch" else 400  # fewer would be done before the first kill
    count = Show(mode, broker, store, tmp_path, seed=7, queue=unique_name).run(messages, kills=3)
    print(f"{kind} {mode}: {count}")
    assert count.kills > 0
    assert (count.lost, count.dead) == (0, 0)
    if mode == "L":
        assert count.doubled <= count.unrecorded + count.fenced
    else:
        assert count.doubled == 0
