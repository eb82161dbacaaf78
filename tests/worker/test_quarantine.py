"""The suspects of a worker: when each of them and the others may start."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from effectonce.worker import quarantine
from effectonce.worker.quarantine import Quarantine

from .bench import until


class Member:
    """An executor whose jobs are names."""

    def __init__(self, suspects: Quarantine) -> None:
        self.claimed_count = 0
        self.starts = 0
        self.alone: list[Any] = []
        self.refuses: Callable[[Any], bool] = lambda job: False
        suspects.register(self)

    def start(self) -> None:
        self.starts += 1

    def start_alone(self, job: Any) -> bool:
        if self.refuses(job):
            return False
        self.alone.append(job)
        return True


async def test_a_suspect_starts_when_nothing_else_runs_and_nothing_starts_beside_it() -> None:
    suspects: Any = Quarantine(asyncio.get_running_loop())
    member, other = Member(suspects), Member(suspects)
    other.claimed_count = 1
    suspects.add(member, "a")
    assert (member.alone, suspects.blocks_new_work) == ([], True)
    other.claimed_count = 0
    suspects.start_next_suspect()
    assert (member.alone, suspects.blocks_new_work) == (["a"], True)
    suspects.add(other, "b")
    assert other.alone == []
    suspects.release("a")
    assert (other.alone, member.starts) == (["b"], 0)
    suspects.release("b")
    assert (suspects.blocks_new_work, member.starts, other.starts) == (False, 1, 1)


async def test_neither_waits_for_the_other_without_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(quarantine, "LONGEST_WAIT_S", 0.05)
    suspects: Any = Quarantine(asyncio.get_running_loop())
    member = Member(suspects)
    member.claimed_count = 1
    suspects.add(member, "a")
    assert member.alone == []
    await until(lambda: member.alone)
    assert suspects.blocks_new_work, "the wait of the others begins anew with the suspect"
    await until(lambda: member.starts)
    assert not suspects.blocks_new_work
    suspects.add(member, "b")
    suspects.release("a")
    assert member.alone == ["a"], "the next suspect waits for the others again"
    await until(lambda: member.alone == ["a", "b"])


async def test_a_wait_that_nothing_is_left_of_does_not_shorten_the_next(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(quarantine, "LONGEST_WAIT_S", 0.05)
    suspects: Any = Quarantine(asyncio.get_running_loop())
    stopping, member = Member(suspects), Member(suspects)
    member.claimed_count = 1
    suspects.add(stopping, "a")
    suspects.unregister(stopping)
    await asyncio.sleep(0.1)
    suspects.add(member, "b")
    assert member.alone == []


async def test_a_suspect_that_another_consumer_got_leaves_the_next_one_alone() -> None:
    suspects: Any = Quarantine(asyncio.get_running_loop())
    member = Member(suspects)
    member.claimed_count = 1
    for job in ("stale", "b", "c"):
        suspects.add(member, job)

    def drop(job: Any) -> bool:
        if job == "stale":
            suspects.release(job)  # it leaves the worker at once
        return bool(job == "stale")

    member.refuses, member.claimed_count = drop, 0
    suspects.start_next_suspect()
    assert (member.alone, suspects.blocks_new_work, member.starts) == (["b"], True, 0)
    suspects.release("b")
    assert member.alone == ["b", "c"]
