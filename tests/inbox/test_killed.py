"""Real processes, killed with SIGKILL between every two steps: nothing is lost, and nothing is doubled."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest

from tests.inbox.conftest import Shop

pytestmark = [pytest.mark.chaos, pytest.mark.quick_on("postgresql")]


class Zygote:
    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.inbox.victim"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def deliver(self, shop: Shop, key: str, *deliveries: int | None, **more: Any) -> list[tuple[str, int]]:
        """The message to as many processes at once; what became of each."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        order = {"dialect": shop.place.dialect, "url": shop.place.url, "table": shop.place.table, "scope": shop.scope}
        print(json.dumps({**order, "key": key, "deliveries": deliveries, **more}), file=self._process.stdin, flush=True)
        return [(what, steps) for what, steps in json.loads(self._process.stdout.readline())]

    def close(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait(30)
        assert self._process.stdout is not None
        self._process.stdout.close()


@pytest.fixture(scope="module")
def zygote() -> Iterator[Zygote]:
    started = Zygote()
    yield started
    started.close()


async def test_killed_between_every_two_steps_the_effect_is_there_once(shop: Shop, zygote: Zygote) -> None:
    """F01, F03, F04: one process is killed at each of its steps in turn, beside another with the same message."""
    ((what, steps),) = zygote.deliver(shop, "unharmed", None)
    assert (what, steps > 10) == ("acked", True)
    keys = ["unharmed"]
    for at in range(1, steps + 1):
        keys.append(f"killed at {at:02}")
        one, other = zygote.deliver(shop, keys[-1], at, None)
        assert other[0] == "acked", other[0]
        assert one[0] in ("killed", "acked"), one[0]  # acked: it was the second, and had fewer steps
    assert shop.rows == shop.effects == sorted(keys)


async def test_killed_alone_it_is_there_once_after_the_next_delivery(shop: Shop, zygote: Zygote) -> None:
    """Killed before the commit, nothing is there; after it, the redelivery finds it done."""
    ((_, steps),) = zygote.deliver(shop, "unharmed", None)
    there = []
    for at in range(1, steps + 1):
        key = f"killed at {at:02}"
        assert zygote.deliver(shop, key, at) == [("killed", 0)]
        assert (key in shop.rows) is (key in shop.effects)
        there.append(key in shop.rows)
        assert zygote.deliver(shop, key, None)[0][0] == "acked"
    assert shop.rows == shop.effects
    assert len(shop.rows) == steps + 1
    assert there == sorted(there), "what was committed at one step is committed at the next"
    assert not there[0]
    assert there[-1]


async def test_a_message_that_ends_its_process_is_counted(shop: Shop, zygote: Zygote) -> None:
    """F20: it was counted before it ran, so that the next process knows."""
    ((_, steps),) = zygote.deliver(shop, "unharmed", None, max_attempts=2)
    for at in range(1, steps + 1):
        assert zygote.deliver(shop, f"probe {at}", at, max_attempts=2) == [("killed", 0)]
        if shop.attempts is not None:  # from this step on it is counted
            break
    for attempt in (1, 2):
        assert zygote.deliver(shop, "poison", at + 2, max_attempts=2) == [("killed", 0)]
        assert attempts_of(shop, "poison") == attempt
    ((what, _),) = zygote.deliver(shop, "poison", None, max_attempts=2)
    assert "AttemptsExhausted" in what
    assert "poison" not in shop.rows + shop.effects


def attempts_of(shop: Shop, key: str) -> int:
    column = "`key`" if shop.place.dialect == "mysql" else "key"
    table = f"{shop.place.table}_starts"
    ((attempts,),) = shop.place.query(
        f"SELECT unreported FROM {table} WHERE scope = '{shop.scope}' AND {column} = '{key}'"
    )
    return int(attempts)
