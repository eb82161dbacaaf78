"""A scenario: which workers use which tool on which messages, and which faults may hit them. `catalogue` lists them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

SECOND: Final = 1_000_000
LEASE: Final = 30 * SECOND
RETENTION: Final = 120 * SECOND
MAX_CRASHES: Final = 20  # attempts that ended without a release, after which a message is parked

#: Every kind of fault, and what it is. A scenario names those that it allows.
FAULTS: Final = {
    "lose": "a request to the store never arrives, and the caller is told that the store is unavailable",
    "lose-retry": "a request is lost with its connection, and sent again",
    "late": "a request is given up by its caller, and arrives later",
    "late-retry": "a request is sent again on a new connection, and the first one arrives later too",
    "mute": "a request is executed, and its reply lost: the store is unavailable",
    "mute-retry": "a request is executed, its reply lost with the connection, and it is sent again",
    "refuse": "the store cannot hold the result, and says so",
    "crash": "a process is killed, with all that it has in memory; what it had sent is lost",
    "crash-late": "a process is killed, and what it had sent arrives later",
    "crash-after": "a process is killed between the execution of its request and the reply",
    "cancel": "the task that runs the handler is cancelled",
    "cancel-after": "the task is cancelled in the very turn of the loop in which its reply has come",
    "raise": "the handler raises, before its effect or after it",
    "decline": "the handler raises an error that is declared permanent",
    "reject": "the receiver of a request rejects it, and nothing happens",
    "slow": "a reply takes longer than its caller waits for it",
    "half": "half of a lease passes",
    "lapse": "a whole lease passes, to the microsecond, while no process runs",
    "age": "a lease and a retention pass",
    "jump": "the store's clock jumps, forward or back",
    "redeliver": "the broker delivers a message again while its handler runs",
    "stop": "a process is stopped: it drains, gives back the messages that it has not begun, and ends",
    "sweep-fails": "the sweeper does not reach the store",
    "resolve": "the operator decides a record that is in doubt",
    "forget": "the operator makes the store forget a key",
    "beat-late": "a heartbeat's renewal is given up, and arrives later",
    "beat-mute": "a heartbeat's renewal is executed, and its reply lost",
    "beat-slow": "other processes run while a heartbeat waits for its reply",
}


def parse_faults(names: str) -> frozenset[str]:
    """Return the set of faults whose names ``names`` lists."""
    return frozenset(names.split())


BASIC: Final = parse_faults(
    "lose late late-retry mute mute-retry crash crash-late crash-after cancel cancel-after raise lapse"
)


@dataclass(frozen=True)
class Scenario:
    """One configuration of the model. Its name begins the line that replays a schedule of it."""

    name: str
    about: str
    part: str = "guard"  # the tool that is explored: see `systems`
    worker: str = "guard"  # how its user calls it: for the guard also "block", or one of the naive arms
    options: Mapping[str, Any] = field(default_factory=dict)  # of `once`, beside lease and retention
    workers: int = 2
    tasks: int = 1  # deliveries at a time in one process
    keys: int = 1
    copies: int = 2  # of each message, sent by the producer
    faults: frozenset[str] = BASIC
    beats: bool = False  # heartbeats run; without them, a lease that passes was not renewed
    slow_handlers: bool = False  # other processes run, and time passes, while a handler runs
    patient: bool = False  # a timer ends a wait only where nothing else can happen, or by the fault "slow"
    fine: bool = False  # every request stops before and after it is executed, every handler before and after its effect

    @property
    def naive(self) -> bool:
        return self.name.startswith("naive-")

    @property
    def seen(self) -> bool:
        return self.options.get("mode") == "seen"

    @property
    def at_most_once(self) -> bool:
        return self.options.get("on_error") == "doubt" and self.options.get("on_lapse") == "doubt"
