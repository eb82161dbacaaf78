"""Notes on a claim: how far it has come, for whoever goes on with it. Only where `Capabilities.notes`."""

from __future__ import annotations

from typing import Final

from effectonce.errors import LeaseLost, show
from effectonce.record import Note, Record

from .guarded_call.run import Run
from .privacy import Privacy
from .store_runtime import StoreClient

_BOUND: Final = -2  # what a private note is bound to instead of a generation, since it outlives those


def hidden(run: Run, text: bytes) -> bytes:
    """``text`` as the store may see it: what `Run.note` and a settlement's note take."""
    privacy = run.runtime.privacy
    return text if privacy is None else privacy.seal(text, run.scope, run.stored_key, _BOUND) or b""


def noted(run: Run) -> bytes | None:
    """The note of the record, as the claim of ``run`` found it, or brought it."""
    stored, privacy = run.answer.note, run.runtime.privacy
    return stored if privacy is None else privacy.open(stored, run.scope, run.stored_key, (_BOUND,))


def note_in(record: Record, privacy: Privacy | None) -> bytes | None:
    """The note of a record that was listed."""
    return record.note if privacy is None else privacy.open(record.note, record.scope, record.key, (_BOUND,))


async def note(run: Run, client: StoreClient, text: bytes) -> None:
    """Write down how far ``run`` has come. `LeaseLost` where another goes on with it: stop."""
    op = Note(scope=run.scope, key=run.stored_key, owner=run.owner, token=run.token, note=hidden(run, text))
    # Not protected: this is a forked child, and its parent goes on with it.
    applied = run.protected and await client.settle(op)
    if not applied:
        run.emit("fenced")
        raise LeaseLost(
            f"scope {show(run.scope)!r}, key {show(run.key)!r}: the lease ended and another goes on with it, or an "
            "operator settled it; this attempt has stopped"
        )
