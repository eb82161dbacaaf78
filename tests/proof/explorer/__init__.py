"""The crash explorer: every crash point, every lost reply, every race, on a schedule that one line replays.

    python -m tests.proof.explorer                        every scenario
    python -m tests.proof.explorer --replay guard-L:0,3   one schedule, step by step

Our own code runs unchanged (the guard, the worker, inbox, intents, outbox and relay, sagas, recovery, redrive:
from the decorator down to group commit), with real tasks on a loop that only the explorer turns, over the real memory
store and a modelled queue, database and provider: no thread, no sleep, no clock but the modelled one. Everything that
a worker does to the world is a request that stops before and after it is executed: those are the crash points
(``claim.before``, ``commit.after``, ``ack.before``, …). `explore` tries every order and every fault at each of them, up
to a number of faults; `sample` tries larger scenarios at random; `explore_all` does both for every scenario, and
returns a table. The oracle counts what was lost and doubled, and knows what each mode allows; a violation is reported
with its shortest schedule, as a timeline in words.

Read `catalogue` for the scenarios, `oracle` for the promises, `moves` for what may happen next, and `tools` for how
each tool is used and how its end is judged.
"""

from .catalogue import SCENARIOS, scenario
from .oracle import CONTRACT, PROMISES, RULES
from .scenario import FAULTS, Scenario
from .search import Counterexample, SearchReport, explore, replay, sample, shrink
from .simulation import Simulation
from .system import SystemUnderTest
from .systems import system_for
from .table import SearchRow, explore_all

__all__ = [
    "CONTRACT",
    "FAULTS",
    "Counterexample",
    "PROMISES",
    "RULES",
    "SearchReport",
    "SearchRow",
    "SCENARIOS",
    "Scenario",
    "SystemUnderTest",
    "Simulation",
    "explore",
    "explore_all",
    "replay",
    "sample",
    "scenario",
    "shrink",
    "system_for",
]
