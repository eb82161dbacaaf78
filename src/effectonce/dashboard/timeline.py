"""The timeline of one record, from its fields and the audit log: what happened, when, and by whom."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, Literal

from msgspec import Struct

from effectonce.core.notes import read_listed_note
from effectonce.errors import CorruptRecord, show
from effectonce.intents import log as intent_logs
from effectonce.record import Record
from effectonce.sagas import log as saga_logs
from effectonce.telemetry.audit_log import ASKED, AuditEntry

from .sources import Sources

Kind = Literal["guard", "intent", "saga"]

MAX_AUDIT_ENTRIES: Final = 1000
"""How many of the newest audit entries are searched for those of one record."""


class Moment(Struct, frozen=True):
    """Something that happened, or will. ``tone`` is the name of a state, whose colour it gets."""

    at: int
    what: str
    by: str = ""
    detail: str = ""
    tone: str = ""


def kind_of(scope: str) -> Kind:
    """Return what kind of program writes records of ``scope``."""
    if scope.startswith("intents/"):
        return "intent"
    return "saga" if scope.startswith("saga/") else "guard"


def intent_log(sources: Sources, record: Record) -> intent_logs.LoggedIntent | None:
    """Return the log in an intent's record; None where it is sealed, or written by a newer release."""
    intents = sources.intents.get(record.scope)
    try:
        return intent_logs.decode_log(
            read_listed_note(record, intents.store.runtime.privacy if intents is not None else None)
        )
    except CorruptRecord:
        return None


def saga_log(sources: Sources, record: Record) -> saga_logs.SagaLog | None:
    """Return the log in a saga's record; None where it is sealed, or written by a newer release."""
    saga = sources.sagas.get(record.scope)
    try:
        return saga_logs.decode_log(read_listed_note(record, saga.store.runtime.privacy if saga is not None else None))
    except CorruptRecord:
        return None


def target_of(scope: str, key: str) -> str:
    """Return the audit log's name of a record, the same here and on the command line."""
    return f"{show(scope)} {show(key)}"


def audit_entries(sources: Sources, record: Record) -> list[AuditEntry]:
    """Return what operators did to a record, newest first. Of an action that was asked and then ended, only its end is
    returned. The command line names a saga by its own name and id, so both names are looked for."""
    targets = {target_of(record.scope, record.key), target_of(record.scope.removeprefix("saga/"), record.key)}
    entries: list[AuditEntry] = []
    ended: set[tuple[str, ...]] = set()
    for entry in sources.audit.recent(MAX_AUDIT_ENTRIES):
        if entry.target in targets:
            action = (entry.action, entry.by, entry.detail, entry.place)
            if entry.outcome != ASKED:
                ended.add(action)
            elif action in ended:
                ended.remove(action)
                continue
            entries.append(entry)
    return entries


def timeline(sources: Sources, record: Record) -> list[Moment]:
    """Return the moments of a record, oldest first. A record keeps its last claim only; its attempts count them all."""
    moments = [Moment(record.created_at, "first seen", detail="the record was made")]
    moments += _claim(record)
    if record.note is not None and kind_of(record.scope) == "intent":
        moments += _sends(sources, record)
    if record.note is not None and kind_of(record.scope) == "saga":
        moments += _steps(sources, record)
    moments += _state(record)
    here = repr(sources.store.runtime.backend)
    moments += [
        Moment(entry.at, entry.action, entry.by, _describe_action(entry, here))
        for entry in audit_entries(sources, record)
    ]
    if record.expires_at is not None:
        moments.append(
            Moment(record.expires_at, "expires", detail="a duplicate after this would run again", tone="free")
        )
    return sorted(moments, key=lambda moment: moment.at)


def _describe_action(entry: AuditEntry, here: str) -> str:
    """Return what was done, and in which store where the log names another: or the same one by another address."""
    outcome = "asked, and no outcome was written" if entry.outcome == ASKED else entry.outcome
    where = "" if entry.place in ("", here) else f" (in {entry.place})"
    return f"{entry.detail}: {outcome}{where}" if entry.detail else f"{outcome}{where}"


def _claim(record: Record) -> Iterable[Moment]:
    """Yield the last claim. Its token is the store's time of the claim in µs, or next to it."""
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
        yield Moment(record.token, "owner fenced out", detail="an operator decided; its token is newer", tone="free")
    if record.state == "claimed" and record.lease_until is not None:
        means = "in doubt" if record.doubt_on_lapse else "the next delivery runs it again"
        yield Moment(record.lease_until, "lease ends", detail=f"if nothing renews it: {means}", tone="claimed")


def _state(record: Record) -> Iterable[Moment]:
    """Yield the state that the record is in, unless it is running."""
    words = {
        "done": "done",
        "failed": "failed for good",
        "in_doubt": "in doubt",
        "free": "released",
    }
    details = {
        "done": "result stored" if record.result is not None else "no result stored",
        "in_doubt": "it is not known whether the effect happened",
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
                yield Moment(part.began, f"{name}: started", detail=_tries(part), tone="claimed")


def _tries(part: saga_logs.StepProgress) -> str:
    return "first try" if part.attempts <= 1 else f"{part.attempts} tries"
