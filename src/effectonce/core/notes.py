"""Notes on a claim: how far it has come, for whoever goes on with it. Only where `Capabilities.notes`."""

from __future__ import annotations

from typing import Any, Final

from effectonce.errors import LeaseLost, show
from effectonce.record import Note, Record

from .engine import Side
from .flow import Run
from .privacy import Privacy

_BOUND: Final = -2  # what a private note is bound to instead of a generation, since it outlives those


def hidden(run: Run, text: bytes) -> bytes:
    """``text`` as the store may see it: what `Run.note` and a settlement's note take."""
    privacy = run.engine.privacy
    return text if privacy is None else privacy.seal(text, run.scope, run.stored_key, _BOUND) or b""


def noted(run: Run) -> bytes | None:
    """The note of the record, as the claim of ``run`` found it, or brought it."""
    stored, privacy = run.answer.note, run.engine.privacy
    return stored if privacy is None else privacy.open(stored, run.scope, run.stored_key, (_BOUND,))


def note_in(record: Record, privacy: Privacy | None) -> bytes | None:
    """The note of a record that was listed."""
    return record.note if privacy is None else privacy.open(record.note, record.scope, record.key, (_BOUND,))


async def note(run: Run, side: Side, text: bytes) -> None:
    """Write down how far ``run`` has come. `LeaseLost` where another goes on with it: stop."""
    applied: Any = run.protected  # else this is a forked child, and its parent goes on with it
    if applied:
        applied = side.settle(Note(run.scope, run.stored_key, run.owner, run.token, hidden(run, text)))
    if type(applied) is not bool:
        applied = await applied
    if not applied:
        run.tell("fenced")
        raise LeaseLost(
            f"scope {show(run.scope)!r}, key {show(run.key)!r}: the lease ended and another goes on with it, or an "
            "operator settled it; this attempt has stopped"
        )
