"""What watching costs a guard."""

from __future__ import annotations

import functools
import io
import json
import logging
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

from prometheus_client import CollectorRegistry

import effectonce as eo
from effectonce.telemetry.logging import EventLogger
from effectonce.telemetry.prometheus import Metrics
from tests.harness import servers

from .guard import blocks_of, charge, guard
from .measure import Case, Table, in_turn

Open = Callable[[], Any]


def telemetry(scale: float) -> Iterator[Table]:
    with servers.redis() as redis:
        for name, url, blocks in (("memory", "memory://", 24), ("Redis", redis.url, 20)):
            count = max(3, int(blocks * scale))
            targets = {
                "telemetry off": {},
                "Prometheus and logging": {"telemetry off": 1 / 1.15} if name == "Redis" else {},
                "the same, and a line for each event": {},
            }
            rounds = functools.cache(functools.partial(_in_a_process, url, count))
            cases = [
                Case(each, lambda number, rounds=rounds, each=each: rounds(number)[each], goals, ours=bool(at))  # type: ignore[misc]
                for at, (each, goals) in enumerate(targets.items())
            ]
            yield Table(
                f"{name}, a guarded call, watched",
                "µs of CPU" if name == "memory" else "µs",
                "less",
                cases,
                note=f"the best of {count} blocks, taken in turn; each round is a process of its own, since by luck of "
                "memory layout one and the same code differs by 2 % from one to the next",
                rounds=13,
            )


def _in_a_process(url: str, count: int, number: int) -> dict[str, float]:
    """What `one_process` gives. The keys of all processes are the same, and none may meet another's."""
    url = url if url == "memory://" else f"{url}?namespace=eo{number}"
    command = [sys.executable, "-W", "ignore", "-m", __name__, url, str(count)]
    found: dict[str, float] = json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout)
    return found


def one_process(url: str, count: int) -> dict[str, float]:
    """Microseconds a call, by case."""
    log = io.StringIO()
    logger = logging.Logger("effectonce.benchmark")
    logger.addHandler(logging.StreamHandler(log))

    def connect() -> eo.Store:
        return eo.connect(url, sweep_every=None)

    def watched(level: int) -> eo.Store:
        store = connect()
        log.seek(0)
        log.truncate()
        Metrics(CollectorRegistry()).watch(store)
        EventLogger(logger, level=level).watch(store)
        return store

    stores: dict[str, Open] = {
        "telemetry off": connect,
        "Prometheus and logging": lambda: watched(logging.INFO),
        "the same, and a line for each event": lambda: watched(logging.DEBUG),
    }
    size, clock = (500, time.process_time_ns) if url == "memory://" else (100, time.perf_counter_ns)
    cases = {
        name: blocks_of(functools.partial(guarded, open_store), size, clock) for name, open_store in stores.items()
    }
    return {name: measure(0) for name, measure in in_turn(cases, count).items()}


def guarded(open_store: Open) -> Callable[..., Any]:
    """A guarded function on a new store."""
    return guard(open_store(), charge)


PARTS = {"watched": telemetry}

if __name__ == "__main__":
    print(json.dumps(one_process(sys.argv[1], int(sys.argv[2]))))
