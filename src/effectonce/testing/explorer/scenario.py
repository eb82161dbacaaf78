"""What is explored: who works on what, under which guard, and which faults may hit it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final

SECOND: Final = 1_000_000
LEASE: Final = 30 * SECOND
RETENTION: Final = 120 * SECOND

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
    "half": "half of a lease passes",
    "lapse": "a whole lease passes, to the microsecond, while nobody gets a turn",
    "age": "a lease and a retention pass",
    "jump": "the store's clock jumps, forward or back",
    "redeliver": "the broker delivers a message again that is still being worked on",
    "resolve": "the operator decides a record that is in doubt",
    "forget": "the operator makes the store forget a key",
    "beat-late": "a heartbeat's renewal is given up, and arrives later",
    "beat-mute": "a heartbeat's renewal is executed, and its reply lost",
    "beat-slow": "others go on while a heartbeat waits for its reply",
}


def _kinds(names: str) -> frozenset[str]:
    return frozenset(names.split())


BASIC: Final = _kinds(
    "lose late late-retry mute mute-retry crash crash-late crash-after cancel cancel-after raise lapse"
)


@dataclass(frozen=True)
class Scenario:
    """One configuration of the model. Its name begins the line that replays a schedule of it."""

    name: str
    about: str
    worker: str = "guard"  # or "block", or one of the naive arms
    options: Mapping[str, Any] = field(default_factory=dict)  # of `once`, beside lease and retention
    workers: int = 2
    tasks: int = 1  # deliveries at a time in one process
    keys: int = 1
    copies: int = 2  # of each message, sent by the producer
    faults: frozenset[str] = BASIC
    beats: bool = False  # heartbeats get their turn; without, a lease that passes is one that was not renewed
    slow_handlers: bool = False  # others go on, and time passes, while a handler runs
    fine: bool = False  # every request stops before and after it is executed, every handler before and after its effect

    @property
    def naive(self) -> bool:
        return self.worker not in ("guard", "block")

    @property
    def seen(self) -> bool:
        return self.options.get("mode") == "seen"

    @property
    def at_most_once(self) -> bool:
        return self.options.get("on_error") == "doubt" and self.options.get("on_lapse") == "doubt"


DOUBT: Final = {"on_error": "doubt", "on_lapse": "doubt"}
SEEN: Final = {"mode": "seen"}
FINE: Final = frozenset(FAULTS) - {"decline"}
NAIVE: Final = _kinds("crash crash-after raise")

SCENARIOS: Final = {
    each.name: each
    for each in (
        Scenario("guard-L", "mode L: a lapsed lease and a failed attempt run again"),
        Scenario(
            "guard-D", "mode L with on_lapse and on_error doubt: at most once, nothing silently lost", options=DOUBT
        ),
        Scenario("guard-S", "mode S: looked up, run, recorded", options=SEEN),
        Scenario("guard-K", "mode L, `block` instead of `once`", worker="block"),
        Scenario(
            "guard-B",
            "mode L with a heartbeat, records that age and a broker that redelivers",
            copies=1,
            beats=True,
            slow_handlers=True,
            faults=_kinds("crash crash-after raise half lapse age redeliver beat-late beat-mute"),
        ),
        Scenario(
            "guard-A",
            "mode L with two attempts and permanent errors",
            options={"max_attempts": 2},
            faults=_kinds("mute refuse crash crash-after cancel cancel-after raise decline lapse"),
        ),
        Scenario(
            "guard-G",
            "mode L, three deliveries of one key in one process: group commit",
            workers=1,
            tasks=3,
            copies=3,
            faults=_kinds("lose mute-retry crash crash-after cancel cancel-after raise lapse"),
        ),
        Scenario(
            "guard-G2",
            "mode L, deliveries of two keys in one process: batches, and settlements that wait for their turn",
            workers=1,
            tasks=2,
            keys=2,
            copies=1,
            faults=_kinds("lose mute-retry crash crash-after cancel cancel-after raise lapse"),
        ),
        Scenario(
            "guard-W",
            "mode L where a duplicate waits for the first, in one process",
            options={"wait": 0.02},
            workers=1,
            tasks=2,
            faults=_kinds("mute crash crash-after cancel cancel-after raise lapse"),
        ),
        Scenario(
            "guard-O",
            "doubt, and an operator who resolves and forgets while others work",
            options=DOUBT,
            slow_handlers=True,
            faults=_kinds("crash crash-after raise lapse resolve forget"),
        ),
        Scenario("guard-L-3x3", "mode L, step by step", workers=3, keys=3, fine=True, beats=True, faults=FINE),
        Scenario(
            "guard-D-3x3", "doubt, step by step", workers=3, keys=3, fine=True, beats=True, faults=FINE, options=DOUBT
        ),
        Scenario(
            "guard-S-3x3", "mode S, step by step", workers=3, keys=3, fine=True, beats=True, faults=FINE, options=SEEN
        ),
        Scenario(
            "guard-A-3x3",
            "three attempts, waiting, permanent errors, two tasks in each process, step by step",
            workers=3,
            tasks=2,
            keys=3,
            fine=True,
            beats=True,
            faults=FINE | {"decline"},
            options={"max_attempts": 3, "wait": 0.05},
        ),
        Scenario("naive-ack-first", "a control: acked, then run", worker="ack-first", faults=NAIVE),
        Scenario("naive-check-then-act", "a control: seen? run, then mark it", worker="check-then-act", faults=NAIVE),
        Scenario("naive-mark-first", "a control: marked, then run", worker="mark-first", faults=NAIVE),
    )
}


def scenario(name: str) -> Scenario:
    """The scenario of that name. ``guard-L+lapse+raise`` is guard-L with these faults and no others, ``guard-L+fine``
    is guard-L step by step."""
    base, *words = name.split("+")
    kinds = frozenset(words) - {"fine"}
    known = SCENARIOS.get(base)
    if known is None or not FAULTS.keys() >= kinds:
        raise LookupError(f"no scenario is called {name!r}; --list shows them")
    return replace(known, name=name, faults=kinds or known.faults, fine=known.fine or "fine" in words)
