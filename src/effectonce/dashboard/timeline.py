"""The life of one effect, as far as its record and the audit log tell it: what happened, when, and by whom."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, Literal

from msgspec import Struct

from effectonce.core.notes import read_listed_note
from effectonce.errors import CorruptRecord, show
from effectonce.intents import log as intent_flow
from effectonce.record import Record
from effectonce.sagas import log as saga_flow
from effectonce.telemetry.audit_log import ASKED, Entry

from .sources import Sources

Kind = Literal["guard", "intent", "saga"]

AUDITED: Final = 1000
"""How far back the audit log is searched for one record."""


class Moment(Struct, frozen=True):
    """One thing that happened, or will. ``tone`` is a state's name, for its colour."""

    at: int
    what: str
    by: str = ""
    detail: str = ""
    tone: str = ""


def kind_of(scope: str) -> Kind:
    if scope.startswith("intents/"):
        return "intent"
    return "saga" if scope.startswith("saga/") else "guard"


def intent_log(sources: Sources, record: Record) -> intent_flow.LoggedIntent | None:
    """What an intent's record says; None where it is sealed, or not of this release."""
    known = sources.intents.get(record.scope)
    try:
        return intent_flow.decode_log(
            read_listed_note(record, known.store.engine.privacy if known is not None else None)
        )
    except CorruptRecord:
        return None


def saga_log(sources: Sources, record: Record) -> saga_flow.SagaLog | None:
    """What a saga's record says; None where it is sealed, or not of this release."""
    known = sources.sagas.get(record.scope)
    try:
        return saga_flow.decode_log(read_listed_note(record, known.store.engine.privacy if known is not None else None))
    except CorruptRecord:
        return None


def target_of(scope: str, key: str) -> str:
    """How the audit log names a record, here and on the command line."""
    return f"{show(scope)} {show(key)}"


def audited(sources: Sources, record: Record) -> list[Entry]:
    """What people did to a record, newest first, each once: what was asked and then done is done. A saga goes by its
    own name and id on the command line."""
    targets = {target_of(record.scope, record.key), target_of(record.scope.removeprefix("saga/"), record.key)}
    found: list[Entry] = []
    ended: set[tuple[str, ...]] = set()
    for entry in sources.audit.recent(AUDITED):
        if entry.target in targets:
            deed = (entry.action, entry.by, entry.detail, entry.place)
            if entry.outcome != ASKED:
                ended.add(deed)
            elif deed in ended:
                ended.remove(deed)
                continue
            found.append(entry)
    return found


def timeline(sources: Sources, record: Record) -> list[Moment]:
    """Oldest first. A record keeps its last claim, not each one: how many there were is the number of attempts."""
    moments = [Moment(record.created_at, "first seen", detail="the record was made")]
    moments += _claim(record)
    if record.note is not None and kind_of(record.scope) == "intent":
        moments += _sends(sources, record)
    if record.note is not None and kind_of(record.scope) == "saga":
        moments += _steps(sources, record)
    moments += _state(record)
    here = repr(sources.store.engine.backend)
    moments += [Moment(entry.at, entry.action, entry.by, _deed(entry, here)) for entry in audited(sources, record)]
    if record.expires_at is not None:
        moments.append(
            Moment(record.expires_at, "expires", detail="after that a duplicate would run again", tone="free")
        )
    return sorted(moments, key=lambda moment: moment.at)


def _deed(entry: Entry, here: str) -> str:
    """What was done, and where, if that goes by another name: another store, or this one by another way."""
    outcome = "asked, and no outcome was written down" if entry.outcome == ASKED else entry.outcome
    where = "" if entry.place in ("", here) else f" (in {entry.place})"
    return f"{entry.detail}: {outcome}{where}" if entry.detail else f"{outcome}{where}"


def _claim(record: Record) -> Iterable[Moment]:
    """A token is the store's time of the claim, in microseconds, unless two came within one."""
    if record.owner:
        nth = "first attempt" if record.attempts == 1 else f"attempt {record.attempts}"
        again = f", generation {record.generation}" if record.generation else ""
        yield Moment(
            record.token,
            "claimed",
            by=f"owner {record.owner.hex()[:8]}",
            detail=f"{nth}{again}, token {record.token}",
            tone="claimed",
        )
    elif record.attempts == 0 and record.state == "done":
        yield Moment(record.token, "remembered", detail="recorded after it had run, without a claim", tone="done")
    elif record.token > record.created_at:
        yield Moment(record.token, "owner fenced out", detail="an operator's word; its token is newer", tone="free")
    if record.state == "claimed" and record.lease_until is not None:
        means = "in doubt" if record.doubt_on_lapse else "the next delivery runs it again"
        yield Moment(record.lease_until, "lease ends", detail=f"if nothing renews it: {means}", tone="claimed")


def _state(record: Record) -> Iterable[Moment]:
    words = {
        "done": "done",
        "failed": "failed for good",
        "in_doubt": "in doubt",
        "free": "released",
    }
    details = {
        "done": "result stored" if record.result is not None else "no result stored",
        "in_doubt": "nobody knows whether the effect happened",
        "free": "the next delivery runs it",
        "failed": "duplicates get the same error",
    }
    if record.state in words:
        yield Moment(record.changed_at, words[record.state], detail=details[record.state], tone=record.state)


def _sends(sources: Sources, record: Record) -> Iterable[Moment]:
    log = intent_log(sources, record)
    if log is not None and log.first_sent_at:
        times = "once" if log.send_count == 1 else f"{log.send_count} times since"
        provider = record.scope.split("/")[-2] if record.scope.count("/") >= 3 else "the provider"
        yield Moment(log.first_sent_at, f"sent to {provider}", detail=times, tone="claimed")


def _steps(sources: Sources, record: Record) -> Iterable[Moment]:
    log = saga_log(sources, record)
    for entry in log.entries if log is not None else ():
        for part, name in ((entry.do, entry.name), (entry.undo, f"undo {entry.name}")):
            if part.began and part.state in ("done", "failed", "timed_out"):
                tone = "done" if part.state == "done" else "failed"
                yield Moment(part.ended, f"{name}: {part.state.replace('_', ' ')}", detail=_tries(part), tone=tone)
            elif part.began:
                yield Moment(part.began, f"{name}: begun", detail=_tries(part), tone="claimed")


def _tries(part: saga_flow.StepProgress) -> str:
    return "first try" if part.attempts <= 1 else f"{part.attempts} tries"
