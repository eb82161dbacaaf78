"""The command line. Exit code 1: fewer mutants were killed than ``--least``."""

from __future__ import annotations

import argparse
import json
import queue
import random
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.harness.shared import ServerRegistry

from .checkout_copy import PACKAGE, ROOT, CheckoutCopy
from .equivalents import is_explained
from .mutations import Mutant, mutants_below
from .nearest_tests import ROOMS, NearTests, files_near, room_of
from .pytest_process import PASSED
from .reach_cache import ReachCache


@dataclass(frozen=True)
class Result:
    mutant: Mutant
    killed: bool
    killed_by: str  # the first test that failed, or how else the run ended
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
            "killed_by": self.killed_by,
            "seconds": round(self.seconds, 1),
        }


class MutantRunner:
    """Runs mutants side by side, each in a copy of the checkout of its own, against servers that they share."""

    def __init__(self, copies: int) -> None:
        self._registry = ServerRegistry()
        self._servers = self._registry.listen()
        self._copies: queue.Queue[tuple[str, CheckoutCopy]] = queue.Queue()
        copies_of_checkout = [CheckoutCopy() for _ in range(copies)]
        for number, copy in enumerate(copies_of_checkout):
            self._copies.put((f"gw{number}", copy))
        self._cache = ReachCache(copies_of_checkout[0].root)
        self._near_tests_of: dict[str, NearTests] = {}
        self._lock = threading.Lock()

    def close(self) -> None:
        while not self._copies.empty():
            self._copies.get()[1].close()
        self._registry.close()

    def run(self, mutant: Mutant) -> Result:
        """Run the tests near ``mutant`` with it in place. Waits for a copy that is free."""
        name, copy = self._copies.get()
        try:
            near_tests = self._near_tests(room_of(mutant))
            with copy.mutated(mutant):
                run = near_tests.run(mutant, copy, name)
        finally:
            self._copies.put((name, copy))
        ending = "it took too long" if run.exit_code is None else f"pytest ended with {run.exit_code}"
        # A test that hangs fails by its own time limit. If the whole run takes too long, the machine is busy.
        is_killed = run.exit_code not in (PASSED, None)
        return Result(mutant, is_killed, run.first_failure or ending, run.seconds)

    def measure(self, test_files: Sequence[str]) -> None:
        """Learn what ``test_files`` reach. Waits for a copy that is free."""
        name, copy = self._copies.get()
        try:
            self._cache.measure(test_files, copy, self._servers, name)
        finally:
            self._copies.put((name, copy))

    def missing(self, rooms: Iterable[str]) -> list[list[str]]:
        """The files of tests to measure for ``rooms``, each once, those of a room together."""
        claimed: set[str] = set()
        groups = []
        for room in rooms:
            group = [file for file in self._cache.missing(files_near(room, self._cache.root)) if file not in claimed]
            claimed.update(group)
            groups.append(group)
        return sorted(filter(None, groups), key=len, reverse=True)

    def _near_tests(self, room: str) -> NearTests:
        with self._lock:
            if room not in self._near_tests_of:
                reach = self._cache.load(files_near(room, self._cache.root))
                self._near_tests_of[room] = NearTests(reach, self._servers)
            return self._near_tests_of[room]


def choose_mutants(options: argparse.Namespace) -> list[Mutant]:
    """Choose the mutants that the options ask for, without equivalent ones. The same seed gives the same, in order."""
    if options.at:
        path, _, line = options.at.partition(":")
        mutants = [m for m in mutants_below(ROOT / PACKAGE, (path,)) if line in ("", str(m.line))]
    else:
        all_mutants = mutants_below(ROOT / PACKAGE, options.rooms or ROOMS)
        mutants = random.Random(options.seed).sample(all_mutants, len(all_mutants))
    return [mutant for mutant in mutants if not is_explained(mutant)][: None if options.at else options.n]


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.proof.sampled_mutants", description=__doc__)
    parser.add_argument("-n", type=int, default=200, help="how many mutants (%(default)s)")
    parser.add_argument(
        "--seed", type=int, default=random.randrange(10_000), help="the same seed gives the same mutants"
    )
    parser.add_argument("--rooms", nargs="+", choices=sorted(ROOMS), metavar="ROOM", help=", ".join(ROOMS))
    parser.add_argument("--at", metavar="FILE[:LINE]", help="every mutant there instead of a sample")
    parser.add_argument("--jobs", type=int, default=2, help="mutants at a time (%(default)s)")
    parser.add_argument("--least", type=float, default=90.0, help="the percentage that must be killed (%(default)s)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="the results as data")
    parser.add_argument("--list", action="store_true", help="show the mutants and run nothing")
    options = parser.parse_args(arguments)
    mutants = choose_mutants(options)
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
    """Run ``mutants``, ``jobs`` at a time, and show each result as it comes. Interrupted, it returns those so far."""
    runner = MutantRunner(jobs)
    pool = ThreadPoolExecutor(jobs)
    results: list[Result] = []
    started = time.monotonic()

    def run_one(mutant: Mutant) -> None:
        result = runner.run(mutant)
        results.append(result)
        show(result, results, len(mutants), started)

    try:
        for _ in pool.map(runner.measure, runner.missing({room_of(mutant) for mutant in mutants})):
            pass
        for _ in pool.map(run_one, mutants):
            pass
    except KeyboardInterrupt:
        print("interrupted; these are the results so far", file=sys.stderr)
    finally:
        pool.shutdown(cancel_futures=True)
        runner.close()
    return results


def show(result: Result, results: Sequence[Result], total: int, started: float) -> None:
    """Print one line for a killed mutant, also the change for a survivor; on a terminal the progress, too."""
    lines = [
        f"{'killed  ' if result.killed else 'SURVIVED'} {result.mutant}  {result.seconds:.0f} s  {result.killed_by}"
    ]
    if not result.killed:
        lines.append(result.mutant.diff)
    seconds_left = (time.monotonic() - started) / len(results) * (total - len(results))
    print("\n".join(lines), flush=True)
    if sys.stderr.isatty():
        survivors = sum(not other.killed for other in results)
        progress = f"{len(results)}/{total}, {survivors} survived, {seconds_left / 60:.0f} min left"
        print(f"{progress:70}", end="\r", file=sys.stderr, flush=True)


def report(results: Sequence[Result]) -> float:
    """Print the rate of each room and of all rooms. Returns the latter, in percent."""
    tried = Counter(room_of(result.mutant) for result in results)
    killed = Counter(room_of(result.mutant) for result in results if result.killed)
    for room, count in sorted(tried.items()):
        print(f"{room:20} {killed[room]:4} of {count:4} killed  {100 * killed[room] / count:5.1f} %")
    rate = 100 * killed.total() / max(1, tried.total())
    print(f"{'all':20} {killed.total():4} of {tried.total():4} killed  {rate:5.1f} %")
    return rate


if __name__ == "__main__":
    sys.exit(main())
