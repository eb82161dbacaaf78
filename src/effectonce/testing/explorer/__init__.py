"""The crash explorer: every crash point, every lost reply, every race, on a schedule that one line replays.

    python -m effectonce.testing.explorer                        every scenario of the guard
    python -m effectonce.testing.explorer --replay guard-L:0,3   one schedule, step by step

The guard's own code runs unchanged, from the decorator down to group commit, with real tasks on a loop that only the
explorer turns, over the real memory store and a modelled queue: no thread, no sleep, no clock but the modelled one.
Everything that a worker does to the world is a request that stops before and after it is executed: those are the crash
points (``claim.before``, ``complete.after``, ``ack.before``, …). `explore` tries every order and every fault at each of
them, up to a number of faults; `sample` tries larger scenarios at random. The oracle counts what was lost and what was
doubled, and knows what each mode allows; a violation is made short, and told in words.

Read `scenario` for what is explored, `oracle` for what is promised, `moves` for what may happen next.
"""

from .oracle import CONTRACT, PROMISES, RULES
from .scenario import FAULTS, SCENARIOS, Scenario, scenario
from .search import Finding, Report, explore, replay, sample, shrink
from .workers import Stage
from .world import World

__all__ = [
    "CONTRACT",
    "FAULTS",
    "Finding",
    "PROMISES",
    "RULES",
    "Report",
    "SCENARIOS",
    "Scenario",
    "Stage",
    "World",
    "explore",
    "replay",
    "sample",
    "scenario",
    "shrink",
]
