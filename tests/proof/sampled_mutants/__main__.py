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
from itertools import islice
from pathlib import Path
from typing import Any

from tests.harness.shared import ServerRegistry

from .equivalents import EQUIVALENTS
from .mutations import Mutant, mutants_below
from .nearest_tests import FAILED, PASSED, ROOMS, Baseline, room_of, run_tests
from .source_copy import PACKAGE, SourceCopy


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
            "diff": diff_of(mutant),
            "killed": self.killed,
            "by": self.by,
            "seconds": round(self.seconds, 1),
        }


def diff_of(mutant: Mutant) -> tuple[str, ...]:
    return mutant.diff((PACKAGE / mutant.path).read_bytes())


def is_equivalent(mutant: Mutant) -> bool:
    return mutant.identity((PACKAGE / mutant.path).read_bytes()) in EQUIVALENTS


class Laboratory:
    """Some copies of the package beside each other, the servers that all test processes share, and the baselines."""

    def __init__(self, copies: int) -> None:
        self._registry = ServerRegistry()
        self._servers = self._registry.listen()
        self._copies: queue.Queue[tuple[str, SourceCopy]] = queue.Queue()
        for number in range(copies):
            self._copies.put((f"gw{number}", SourceCopy()))
        self._baselines: dict[str, Baseline] = {}
        self._lock = threading.Lock()

    def close(self) -> None:
        while not self._copies.empty():
            self._copies.get()[1].close()
        self._registry.close()

    def try_out(self, mutant: Mutant) -> Result:
        """Put the mutant in place and run the tests near it."""
        name, copy = self._copies.get()
        try:
            baseline = self._baseline(room_of(mutant), copy, name)
            tests = baseline.tests_for(mutant)
            with copy.mutated(mutant):
                run = run_tests(copy, tests, self._servers, name, baseline.limit)
                if run.code == FAILED and run.failed:
                    again = run_tests(copy, [run.failed], self._servers, name, baseline.limit)
                    if again.code == PASSED:  # an accident, not the mutant
                        run = run_tests(copy, tests, self._servers, name, baseline.limit)
        finally:
            self._copies.put((name, copy))
        ending = "it took too long" if run.code is None else f"pytest ended with {run.code}"
        return Result(mutant, run.code != PASSED, run.failed or ending, run.seconds)

    def _baseline(self, room: str, copy: SourceCopy, name: str) -> Baseline:
        with self._lock:  # what else runs meanwhile would make it look slow
            if room not in self._baselines:
                self._baselines[room] = Baseline(room, copy, self._servers, name)
            return self._baselines[room]


def choose(options: argparse.Namespace) -> list[Mutant]:
    """The mutants that the options ask for, without the equivalent ones; a sample always in the same order."""
    if options.at:
        path, _, line = options.at.partition(":")
        return [m for m in mutants_below(PACKAGE, (path,)) if line in ("", str(m.line)) and not is_equivalent(m)]
    everything = mutants_below(PACKAGE, tuple(options.rooms or ROOMS))
    shuffled = random.Random(options.seed).sample(everything, len(everything))
    return list(islice((mutant for mutant in shuffled if not is_equivalent(mutant)), options.n))


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
            print(mutant, *diff_of(mutant), sep="\n    ")
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
        lines += [f"    {line}" for line in diff_of(result.mutant)]
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
