"""The scenarios, by name.

Two workers and one key are small enough to try every schedule; those that end in ``3x3`` have three of each, stop
before and after every request, and are tried at random.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from .scenario import FAULTS, Scenario, parse_faults

DOUBT: Final = {"on_error": "doubt", "on_lapse": "doubt"}
SEEN: Final = {"mode": "seen"}
FINE: Final = frozenset(FAULTS) - {"decline", "reject", "slow", "stop"}


def _large(small: Scenario, name: str, about: str, **more: object) -> Scenario:
    return replace(small, name=name, about=about, workers=3, keys=3, fine=True, **more)  # type: ignore[arg-type]


GUARD: Final = (
    Scenario("guard-L", "mode L: a lapsed lease and a failed attempt run again"),
    Scenario("guard-D", "mode L with on_lapse and on_error doubt: at most once, nothing silently lost", options=DOUBT),
    Scenario("guard-S", "mode S: looked up, run, recorded", options=SEEN),
    Scenario("guard-K", "mode L, `block` instead of `once`", worker="block"),
    Scenario(
        "guard-B",
        "mode L with a heartbeat, records that age and a broker that redelivers",
        copies=1,
        beats=True,
        slow_handlers=True,
        faults=parse_faults("crash crash-after raise half lapse age redeliver beat-late beat-mute"),
    ),
    Scenario(
        "guard-A",
        "mode L with two attempts and permanent errors",
        options={"max_attempts": 2},
        faults=parse_faults("mute refuse crash crash-after cancel cancel-after raise decline lapse"),
    ),
    Scenario(
        "guard-G",
        "mode L, three deliveries of one key in one process: group commit",
        workers=1,
        tasks=3,
        copies=3,
        faults=parse_faults("lose mute-retry crash crash-after cancel cancel-after raise lapse"),
    ),
    Scenario(
        "guard-G2",
        "mode L, deliveries of two keys in one process: batches, and settlements that wait for their turn",
        workers=1,
        tasks=2,
        keys=2,
        copies=1,
        faults=parse_faults("lose mute-retry crash crash-after cancel cancel-after raise lapse"),
    ),
    Scenario(
        "guard-W",
        "mode L where a duplicate waits for the first, in one process",
        options={"wait": 0.02},
        workers=1,
        tasks=2,
        faults=parse_faults("mute crash crash-after cancel cancel-after raise lapse"),
    ),
    Scenario(
        "guard-O",
        "doubt, and an operator who resolves and forgets while others work",
        options=DOUBT,
        slow_handlers=True,
        faults=parse_faults("crash crash-after raise lapse resolve forget"),
    ),
)
_L, _D, _S = GUARD[:3]
_A = GUARD[5]

INBOX: Final = Scenario(
    "inbox-T",
    "mode T, each message in a transaction of its own",
    part="inbox",
    worker="handler",
    faults=parse_faults("lose late mute crash crash-late crash-after cancel cancel-after raise redeliver"),
)
INTENTS: Final = Scenario(
    "intents-K",
    "mode K: the provider keeps keys for a while",
    part="intents",
    worker="keyed",
    faults=parse_faults(
        "lose late mute mute-retry crash crash-late crash-after cancel cancel-after lapse age reject decline"
    ),
)
JOINED: Final = replace(
    INTENTS,
    name="intents-K-joined",
    about="mode K: completed in the caller's own transaction, with its row and its message",
    part="joined",
)
OUTBOX: Final = Scenario(
    "outbox-relay",
    "two relays, two messages of one key",
    part="outbox",
    worker="relay",
    patient=True,
    faults=parse_faults(
        "lose lose-retry late late-retry mute mute-retry crash crash-late crash-after cancel cancel-after raise lapse "
        "reject slow"
    ),
)
SAGA: Final = Scenario(
    "saga-S",
    "two workers on one saga that may fail at any step",
    part="saga",
    worker="saga",
    patient=True,
    copies=1,
    faults=parse_faults(
        "lose late mute mute-retry crash crash-late crash-after cancel cancel-after lapse decline redeliver"
    ),
)
RECOVER: Final = replace(
    INTENTS,
    name="intents-K-recover",
    about="mode K: nothing is delivered again, and recoveries resume unfinished intents",
    part="intents-recovery",
    patient=True,
    copies=1,
)
RESUME: Final = replace(
    SAGA,
    name="saga-resume",
    about="a saga whose caller is gone, and two processes that resume it",
    part="saga-recovery",
    faults=parse_faults("lose mute mute-retry crash crash-after cancel cancel-after lapse age decline"),
)
WORKER: Final = Scenario(
    "worker-L",
    "the worker, mode L: two workers that fetch one message at a time",
    part="worker",
    worker="worker",
    patient=True,
    faults=parse_faults("lose late mute mute-retry crash crash-late crash-after raise decline lapse redeliver stop"),
)
WORKER_T: Final = replace(
    WORKER,
    name="worker-T",
    about="the worker, mode T: a transaction each",
    part="transactions",
    worker="each",
    faults=parse_faults("lose late mute crash crash-late crash-after raise decline stop"),
)
REDRIVE: Final = Scenario(
    "redrive",
    "dead letters go back to their queue, and are handled",
    part="redrive",
    patient=True,
    faults=parse_faults("lose late mute crash crash-late crash-after cancel cancel-after reject lapse"),
)

TOOLS: Final = (
    INBOX,
    replace(INBOX, name="inbox-first", about="mode T, in the caller's own transaction", worker="first"),
    replace(
        INBOX,
        name="inbox-A",
        about="mode T with two attempts, counted before they start",
        options={"max_attempts": 2},
    ),
    INTENTS,
    replace(INTENTS, name="intents-I", about="mode I: the provider keeps no keys", worker="keyless"),
    replace(
        INTENTS,
        name="intents-R",
        about="mode I with a reconciler, whose verdict is proof: no request lingers, and no process is paused",
        worker="asked",
        faults=parse_faults("lose mute crash crash-after cancel reject"),
    ),
    JOINED,
    replace(JOINED, name="intents-I-joined", about="mode I: the same", worker="keyless"),
    replace(
        JOINED,
        name="intents-K-joined-recover",
        about="mode K: the same, and a recovery that comes between",
        copies=1,
        options={"recover": True},
    ),
    OUTBOX,
    replace(
        OUTBOX,
        name="outbox-batch",
        about="two relays, at a broker that keeps the order within one publish",
        options={"batch": 4, "ordered_publish": True},
    ),
    replace(
        OUTBOX,
        name="outbox-send",
        about="a message handled in the inbox's transaction, which writes to the outbox, and relays",
        worker="handler",
        copies=1,
    ),
    SAGA,
    replace(
        SAGA,
        name="saga-T",
        about="a step that times out, and ends late or never",
        faults=parse_faults("crash crash-after cancel lapse decline slow mute"),
    ),
    WORKER,
    replace(
        WORKER, name="worker-B", about="two keys in one fetch and in one block", keys=2, copies=1, options={"batch": 2}
    ),
    replace(
        WORKER,
        name="worker-to",
        about="the message that a handler returns is published before the ack",
        options={"to": True},
    ),
    replace(
        WORKER,
        name="worker-E",
        about="handlers that outlast the ack window, one behind the other",
        workers=2,
        options={"batch": 2, "takes": 100},
        faults=parse_faults("crash raise stop"),
    ),
    replace(
        WORKER,
        name="worker-O",
        about="three messages of one ordering key, at a broker that gives them back in the worst order",
        workers=1,
        keys=3,
        copies=1,
        options={"ordered": True, "batch": 3},
        faults=parse_faults("raise decline"),
    ),
    WORKER_T,
    replace(
        WORKER_T,
        name="worker-TB",
        about="mode T, two keys in one fetch and in one transaction",
        worker="batch",
        keys=2,
        copies=1,
        options={"batch": 2},
        faults=WORKER_T.faults | {"redeliver"},
    ),
    replace(
        WORKER_T,
        name="worker-TO",
        about="mode T, three messages of one ordering key in one transaction, in the worst order again",
        worker="batch",
        workers=1,
        keys=3,
        copies=1,
        options={"ordered": True, "batch": 3},
        faults=parse_faults("raise decline"),
    ),
    RECOVER,
    replace(RECOVER, name="intents-I-recover", about="mode I: the same", worker="keyless"),
    RESUME,
    REDRIVE,
    replace(
        REDRIVE,
        name="redrive-G",
        about="the same, with a new generation for records that are done or in doubt",
        options={"new_generation": True},
    ),
)

LARGE: Final = (
    _large(_L, "guard-L-3x3", "mode L, step by step", beats=True, faults=FINE),
    _large(_D, "guard-D-3x3", "doubt, step by step", beats=True, faults=FINE),
    _large(_S, "guard-S-3x3", "mode S, step by step", beats=True, faults=FINE),
    _large(
        _A,
        "guard-A-3x3",
        "three attempts, waiting, permanent errors, two tasks in each process, step by step",
        tasks=2,
        beats=True,
        faults=FINE | {"decline"},
        options={"max_attempts": 3, "wait": 0.05},
    ),
    _large(INBOX, "inbox-T-3x3", "mode T, step by step"),
    _large(INBOX, "inbox-first-3x3", "mode T in the caller's transaction, step by step", worker="first"),
    _large(INTENTS, "intents-K-3x3", "mode K, step by step", beats=True),
    _large(INTENTS, "intents-I-3x3", "mode I, step by step", beats=True, worker="keyless"),
    _large(
        JOINED,
        "intents-K-joined-3x3",
        "mode K in the caller's transaction, and a recovery, step by step",
        beats=True,
        options={"recover": True},
    ),
    _large(OUTBOX, "outbox-relay-3x3", "three relays, two messages of each of three keys, step by step"),
    _large(OUTBOX, "outbox-send-3x3", "handlers and relays, step by step", worker="handler"),
    _large(SAGA, "saga-S-3x3", "three sagas, step by step", beats=True),
    _large(
        WORKER, "worker-3x3", "three workers of ours, step by step", beats=True, options={"batch": 2, "max_attempts": 5}
    ),
    _large(
        WORKER_T,
        "worker-T-3x3",
        "three workers of ours, two messages in one transaction, step by step",
        worker="batch",
        options={"batch": 2},
        faults=WORKER_T.faults | {"redeliver"},
    ),
    _large(RECOVER, "intents-K-recover-3x3", "mode K, three recoveries, step by step", beats=True),
    _large(RECOVER, "intents-I-recover-3x3", "mode I, three recoveries, step by step", beats=True, worker="keyless"),
    _large(RESUME, "saga-resume-3x3", "three sagas that are resumed, step by step"),
    _large(REDRIVE, "redrive-3x3", "three dead letters, an operator and workers, step by step"),
)

NAIVE: Final = (
    replace(_L, name="naive-ack-first", about="a control: acked, then run", worker="ack-first"),
    replace(_L, name="naive-check-then-act", about="a control: seen? run, then mark it", worker="check-then-act"),
    replace(_L, name="naive-mark-first", about="a control: marked, then run", worker="mark-first"),
    replace(INBOX, name="naive-row-first", about="a control: its row committed, then its effect", worker="row-first"),
    replace(
        INBOX, name="naive-effect-first", about="a control: its effect committed, then its row", worker="effect-first"
    ),
    replace(INTENTS, name="naive-new-key", about="a control: a new key for every attempt", worker="new-key"),
    replace(INTENTS, name="naive-mark-before", about="a control: recorded, then sent", worker="mark-before"),
    replace(OUTBOX, name="naive-publish-first", about="a control: sent, then committed", worker="publish-first"),
    replace(OUTBOX, name="naive-commit-first", about="a control: committed, then sent", worker="commit-first"),
    replace(SAGA, name="naive-undo-blindly", about="a control: no log; what raises is undone", worker="undo-blindly"),
    replace(REDRIVE, name="naive-remove-first", about="a control: removed, then sent", worker="remove-first"),
)

SCENARIOS: Final = {
    scenario.name: scenario
    for scenario in (
        *GUARD,
        *TOOLS,
        *LARGE,
        *(replace(arm, faults=arm.faults & parse_faults("crash crash-after raise mute")) for arm in NAIVE),
    )
}


def scenario(name: str) -> Scenario:
    """Return the scenario of that name. ``guard-L+lapse+raise`` is guard-L with these faults and no others,
    ``guard-L+fine`` is guard-L step by step."""
    base, *words = name.split("+")
    faults = frozenset(words) - {"fine"}
    known = SCENARIOS.get(base)
    if known is None or not FAULTS.keys() >= faults:
        raise LookupError(f"no scenario is called {name!r}; --list shows them")
    return replace(known, name=name, faults=faults or known.faults, fine=known.fine or "fine" in words)
