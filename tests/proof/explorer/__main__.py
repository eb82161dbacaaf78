"""The explorer from the shell."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from .catalogue import SCENARIOS, scenario
from .oracle import RULES
from .search import SearchReport, explore, replay, sample
from .simulation import ENFORCED
from .systems import system_for
from .table import FULL, RANDOM, SHORT


def main(arguments: Sequence[str] | None = None) -> int:
    """Explore, or replay. Returns 1 where a promise is broken, as the control arms (naive-…) must."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.proof.explorer",
        description="Kill, cut off and delay workers at every point of every schedule; see what is lost or doubled.",
    )
    parser.add_argument("scenario", nargs="*", help="which to explore; without one, all but the large and the naive")
    parser.add_argument("--faults", type=int, help="the most faults in one schedule (as many as every test run has)")
    parser.add_argument("--random", type=int, metavar="N", help="N random schedules instead of all")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--limit", type=float, default=3600.0, metavar="S", help="seconds for each scenario")
    parser.add_argument("--replay", metavar="LINE", help="one schedule, like guard-L:0,3,1, step by step")
    parser.add_argument(
        "--also",
        action="append",
        default=[],
        choices=sorted(RULES.keys() - ENFORCED),
        help="look for this, too, which no page promises",
    )
    parser.add_argument("--list", action="store_true", help="the scenarios")
    options = parser.parse_args(arguments)
    if options.list:
        for listed in SCENARIOS.values():
            print(f"{listed.name:22} {listed.about}")
        return 0
    names = [options.replay.partition(":")[0]] if options.replay else options.scenario
    try:
        chosen = [scenario(name) for name in names or SHORT]
    except LookupError as error:
        parser.error(str(error))
    rules = ENFORCED.union(options.also)
    if options.replay:
        return _replay(options.replay, rules)
    broken = 0
    for searched in chosen:
        report: SearchReport
        if options.random or searched.fine:  # a fine one has too many schedules to try them all
            report = sample(
                searched, options.random or 2000, seed=options.seed, faults=options.faults or RANDOM, rules=rules
            )
        else:
            faults = {**FULL, **SHORT}.get(searched.name, 1) if options.faults is None else options.faults
            report = explore(searched, faults, limit=options.limit, rules=rules)
        print(report, flush=True)
        if report.finding is not None:
            broken = 1
            print(report.finding, flush=True)
    return broken


def _replay(line: str, rules: frozenset[str]) -> int:
    name, _, numbers = line.partition(":")
    story: list[str] = []
    schedule = [int(number) for number in numbers.split(",") if number]
    simulation = replay(system_for(scenario(name)), schedule, rules=rules, story=story)
    print("\n".join(story))
    if simulation.violation is None:
        print("no promise is broken")
        return 0
    return 1


if __name__ == "__main__":
    sys.exit(main())
