"""Notes on a claim: they say how far its work has come, for the process that resumes it. Needs `Capabilities.notes`.

A note is written by the process that holds the claim, and fenced like a settlement. It stays when the claim is released
or lapses, and the next claim gets it. So write it before the effect that it announces: after a crash it says what may
have happened.
"""

from __future__ import annotations

from typing import Final

from effectonce.errors import LeaseLost, show
from effectonce.record import Note, Record

from .guarded_call.run import StoreRun
from .privacy import Privacy
from .store_clients import StoreClient

#: The generation that notes are sealed with. Results are sealed with the generation of their record; a note outlives
#: generations.
_NOTE_GENERATION: Final = -2


def seal_note(run: StoreRun, text: bytes) -> bytes:
    """Encrypt ``text``, if the store is private."""
    privacy = run.runtime.privacy
    return text if privacy is None else privacy.seal(text, run.scope, run.stored_key, _NOTE_GENERATION) or b""


def read_note(run: StoreRun) -> bytes | None:
    """The note that the record had when ``run`` claimed it, or that the claim wrote."""
    stored, privacy = run.answer.note, run.runtime.privacy
    return stored if privacy is None else privacy.open(stored, run.scope, run.stored_key, (_NOTE_GENERATION,))


def read_listed_note(record: Record, privacy: Privacy | None) -> bytes | None:
    """The note of ``record``, which `Store.list` returned."""
    return record.note if privacy is None else privacy.open(record.note, record.scope, record.key, (_NOTE_GENERATION,))


async def write_note(run: StoreRun, client: StoreClient, text: bytes) -> None:
    """Commit ``text`` as the note of ``run``. Raises `LeaseLost` if another process took over: the caller must stop."""
    op = Note(scope=run.scope, key=run.stored_key, owner=run.owner, token=run.token, note=seal_note(run, text))
    # A forked child is not protected: its parent has the claim, and the child must not write to it.
    applied = run.protected and await client.settle(op)
    if not applied:
        run.emit("fenced")
        raise LeaseLost(
            f"scope {show(run.scope)!r}, key {show(run.key)!r}: the lease ended and another process resumed it, or an "
            "operator settled it; this attempt has stopped"
        )
