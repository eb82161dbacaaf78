"""How the result of a redrive is worded, for the command line and the dashboard."""

from __future__ import annotations

from typing import Final, NamedTuple

from effectonce.dead_letters.queue import Redrive
from effectonce.errors import show
from effectonce.record import State
from effectonce.worker.redrive_records import Fate


class RedriveResult(NamedTuple):
    """What happens to a dead letter: ``text`` says it, in the colour of a record in the state ``tone``."""

    text: str
    tone: State


RESULTS: Final[dict[Fate, RedriveResult]] = {
    "execute": RedriveResult("runs for the first time", "done"),
    "resume": RedriveResult("runs again, as its next attempt", "done"),
    "no-op": RedriveResult("is done: acked, nothing happens", "free"),
    "in-progress": RedriveResult("is running now: redelivered later", "claimed"),
    "in-doubt": RedriveResult("stays: it is in doubt; decide it first, or --new-generation runs it again", "in_doubt"),
    "failed": RedriveResult("stays: it failed for good; --new-generation runs it again", "failed"),
    "mismatch": RedriveResult("stays: its key was used with another payload; its sender must use a new key", "failed"),
    "unreadable": RedriveResult("stays: it cannot be read", "failed"),
    "unknown": RedriveResult("only its worker can tell", "free"),
}


def describe_redrive(redrive: Redrive) -> RedriveResult:
    """Return the result of a redrive, or of its dry run."""
    if redrive.new_generation:
        return RedriveResult("runs again, as a new generation", "done")
    if redrive.was_in_doubt:
        doubt = show(redrive.dead.cause.text, 500)
        return RedriveResult(
            f"runs again; check whether what ended its last attempt was decided, or it comes back: {doubt}", "in_doubt"
        )
    return RESULTS[redrive.fate]
