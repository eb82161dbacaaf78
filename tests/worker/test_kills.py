"""F58: kill -9 of workers at random while messages with duplicates flow: nothing lost; in mode T nothing doubled, in
mode L no more than was unrecorded at the kills. Ten thousand messages: ``python -m tests.worker.kills``."""

from __future__ import annotations

from pathlib import Path

import pytest

import effectonce as eo

from . import mortal
from .kills import Show, end


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


def test_one_kill_repeats_the_effects_of_the_handlers_that_ran(
    tmp_path: Path, unique_name: str, redis_url: str
) -> None:
    """The row *The attempt died* of docs/run-twice.md: up to ``concurrency`` effects."""
    show = Show("L", f"{redis_url}?ack_window=2s", redis_url, tmp_path, seed=7, queue=unique_name)
    messages = [eo.Message(type="paid", data={"n": number}) for number in range(5 * mortal.CONCURRENCY)]
    show.publish(messages)
    victim = show.start("halting")
    show.wait(lambda: show.done() == mortal.CONCURRENCY, 60)
    victim.kill()
    victim.wait()
    heir = show.start()
    show.wait(lambda: recorded(show) == len(messages), 60)
    end(heir)
    assert show.done() == len(messages)
    assert show.count("SELECT count(*) FROM effects") == len(messages) + mortal.CONCURRENCY
    show.close()


def recorded(show: Show) -> int:
    assert show.store is not None
    return len(show.store.list(scope=show.scope, state="done", limit=1000).records)
