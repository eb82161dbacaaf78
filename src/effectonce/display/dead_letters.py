"""What a redrive leads to, in words."""

from __future__ import annotations

from typing import Final

from effectonce.dead_letters.queue import Redrive
from effectonce.worker.redrive_preview import Fate

#: The result of each fate, and the state of a record whose colour it has.
RESULTS: Final[dict[Fate, tuple[str, str]]] = {
    "execute": ("runs for the first time", "done"),
    "resume": ("runs again, as its next attempt", "done"),
    "no-op": ("is done: acked, nothing happens", "free"),
    "in-progress": ("is running now: redelivered later", "claimed"),
    "in-doubt": ("stays: it is in doubt; decide it first, or start a new generation", "in_doubt"),
    "failed": ("stays: it failed for good; a new generation runs it again", "failed"),
    "mismatch": ("stays: its key was used with another payload; its sender must use a new key", "failed"),
    "unreadable": ("stays: it cannot be read", "failed"),
    "unknown": ("only its worker can tell", "free"),
}


def describe_redrive(redrive: Redrive) -> tuple[str, str]:
    """Return the result of the redrive, and the state of a record whose colour it has."""
    if redrive.new_generation:
        return "runs again, as a new generation", "done"
    return RESULTS[redrive.fate]
