"""The mutants from the shell; exit code 1 where fewer are killed than should be."""

from __future__ import annotations

import argparse
import json
import queue
import random
import sys
import threading
import time
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.harness.shared import ServerRegistry

from .checkout_copy import PACKAGE, ROOT, CheckoutCopy
from .equivalents import EQUIVALENTS
from .mutations import Mutant, mutants_below
from .nearest_tests import PASSED, ROOMS, NearTests, room_of


@dataclass(frozen=True)
class Result:
    mutant: Mutant
    killed: bool
    by: str  # the first test that failed, or how else the run ended
    seconds: float

    def as_json(self) -> dict[str, Any]:
        mutant = self.mutant
        return {
            "room": room_of(mutant),
            "file": mutant.path,
            "line": mutant.line,
            "kind": mutant.kind,
            "before": mutant.before,
            "after": mutant.after,
            "killed": self.killed,
            "by": self.by,
            "seconds": round(self.seconds, 1),
        }


class Laboratory:
    """Some copies of the checkout, the servers that all test processes share, and what is known about the tests."""

    def __init__(self, copies: int) -> None:
        self._registry = ServerRegistry()
        self._servers = self._registry.listen()
        self._copies: queue.Queue[tuple[str, CheckoutCopy]] = queue.Queue()
        for number in range(copies):
            self._copies.put((f"gw{number}", CheckoutCopy()))
        self._near: dict[str, NearTests] = {}
        self._lock = threading.Lock()

    def close(self) -> None:
        while not self._copies.empty():
            self._copies.get()[1].close()
        self._registry.close()

    def try_out(self, mutant: Mutant) -> Result:
        """Put the mutant in place and run the tests near it."""
        name, copy = self._copies.get()
        try:
            near = self._near_tests(room_of(mutant), copy, name)
            with copy.mutated(mutant):
                run = near.try_out(mutant, copy, name)
        finally:
            self._copies.put((name, copy))
        ending = "it took too long" if run.code is None else f"pytest ended with {run.code}"
        return Result(mutant, run.code != PASSED, run.failed or ending, run.seconds)

    def _near_tests(self, room: str, copy: CheckoutCopy, name: str) -> NearTests:
        with self._lock:  # what else runs meanwhile would make them look slow
            if room not in self._near:
                self._near[room] = NearTests(room, copy, self._servers, name)
            return self._near[room]


def choose(options: argparse.Namespace) -> list[Mutant]:
    """The mutants that the options ask for, without the equivalent ones; a sample always in the same order."""
    if options.at:
        path, _, line = options.at.partition(":")
        mutants = [m for m in mutants_below(ROOT / PACKAGE, (path,)) if line in ("", str(m.line))]
    else:
        everything = mutants_below(ROOT / PACKAGE, options.rooms or ROOMS)
        mutants = random.Random(options.seed).sample(everything, len(everything))
    return [mutant for mutant in mutants if mutant.identity not in EQUIVALENTS][: None if options.at else options.n]


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.proof.sampled_mutants", description=__doc__)
    parser.add_argument("-n", type=int, default=200, help="how many mutants (%(default)s)")
    parser.add_argument("--seed", type=int, default=random.randrange(10_000), help="the same one, the same mutants")
    parser.add_argument("--rooms", nargs="+", choices=sorted(ROOMS), metavar="ROOM", help=", ".join(ROOMS))
    parser.add_argument("--at", metavar="FILE[:LINE]", help="every mutant there instead of a sample")
    parser.add_argument("--jobs", type=int, default=2, help="mutants at a time (%(default)s)")
    parser.add_argument("--least", type=float, default=90.0, help="the percentage that must be killed (%(default)s)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="the results as data")
    parser.add_argument("--list", action="store_true", help="show the mutants and run nothing")
    options = parser.parse_args(arguments)
    mutants = choose(options)
    if options.list:
        for mutant in mutants:
            print(mutant, mutant.diff, sep="\n")
        return 0
    print(f"{len(mutants)} mutants, seed {options.seed}", flush=True)
    results = run_all(mutants, options.jobs)
    if options.json:
        options.json.write_text(json.dumps([result.as_json() for result in results], indent=1))
    return 0 if report(results) >= options.least else 1


def run_all(mutants: Sequence[Mutant], jobs: int) -> list[Result]:
    """Every result as soon as it is there; in the end those that are there, where it is interrupted."""
    laboratory = Laboratory(jobs)
    pool = ThreadPoolExecutor(jobs)
    results: list[Result] = []
    started = time.monotonic()

    def try_out(mutant: Mutant) -> None:
        result = laboratory.try_out(mutant)
        results.append(result)
        show(result, results, len(mutants), started)

    try:
        for _ in pool.map(try_out, mutants):
            pass
    except KeyboardInterrupt:
        print("interrupted; these are the results so far", file=sys.stderr)
    finally:
        pool.shutdown(cancel_futures=True)
        laboratory.close()
    return results


def show(result: Result, results: Sequence[Result], total: int, started: float) -> None:
    """One line for a killed mutant, its change for one that survived, and how far we are."""
    lines = [f"{'killed  ' if result.killed else 'SURVIVED'} {result.mutant}  {result.seconds:.0f} s  {result.by}"]
    if not result.killed:
        lines.append(result.mutant.diff)
    left = (time.monotonic() - started) / len(results) * (total - len(results))
    print("\n".join(lines), flush=True)
    if sys.stderr.isatty():
        survivors = sum(not each.killed for each in results)
        progress = f"{len(results)}/{total}, {survivors} survived, {left / 60:.0f} min left"
        print(f"{progress:70}", end="\r", file=sys.stderr, flush=True)


def report(results: Sequence[Result]) -> float:
    """Print the rate of each room and of all; return that of all, in percent."""
    tried = Counter(room_of(result.mutant) for result in results)
    killed = Counter(room_of(result.mutant) for result in results if result.killed)
    for room, count in sorted(tried.items()):
        print(f"{room:20} {killed[room]:4} of {count:4} killed  {100 * killed[room] / count:5.1f} %")
    rate = 100 * killed.total() / max(1, tried.total())
    print(f"{'all':20} {killed.total():4} of {tried.total():4} killed  {rate:5.1f} %")
    return rate


if __name__ == "__main__":
    sys.exit(main())
