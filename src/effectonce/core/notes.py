"""Notes on a claim: how far its work has come, for the process that resumes it. Only where `Capabilities.notes`."""

from __future__ import annotations

from typing import Any, Final

from effectonce.errors import LeaseLost, show
from effectonce.record import Note, Record

from .engine import Side
from .flow import Run
from .privacy import Privacy

#: Private values are bound to their record's generation; a note outlives generations and is bound to this instead.
_NOTE_GENERATION: Final = -2


def seal_note(run: Run, text: bytes) -> bytes:
    """Return ``text`` as the store may see it: encrypted where the store is private."""
    privacy = run.engine.privacy
    return text if privacy is None else privacy.seal(text, run.scope, run.stored_key, _NOTE_GENERATION) or b""


def read_note(run: Run) -> bytes | None:
    """Return the note that the record had, or got, when ``run`` claimed it."""
    stored, privacy = run.answer.note, run.engine.privacy
    return stored if privacy is None else privacy.open(stored, run.scope, run.stored_key, (_NOTE_GENERATION,))


def read_listed_note(record: Record, privacy: Privacy | None) -> bytes | None:
    """Return the note of a record that was listed."""
    return record.note if privacy is None else privacy.open(record.note, record.scope, record.key, (_NOTE_GENERATION,))


async def write_note(run: Run, side: Side, text: bytes) -> None:
    """Commit how far ``run`` has come. Raises `LeaseLost` where another process has taken over: stop then."""
    applied: Any = run.protected  # False in a forked child: its parent has the claim
    if applied:
        applied = side.settle(Note(run.scope, run.stored_key, run.owner, run.token, seal_note(run, text)))
    if type(applied) is not bool:
        applied = await applied
    if not applied:
        run.tell("fenced")
        raise LeaseLost(
            f"scope {show(run.scope)!r}, key {show(run.key)!r}: the lease ended and another process resumed it, or an "
            "operator settled it; this attempt has stopped"
        )
