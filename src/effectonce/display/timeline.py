"""The timeline of one record: what happened to it, when, and by whom, from its fields, its log and the audit log."""

from __future__ import annotations

from collections.abc import Iterable

from msgspec import Struct

from effectonce.core.refusals import is_refused
from effectonce.intents.logged_intent import LoggedIntent
from effectonce.record import Record
from effectonce.sagas.log import SagaLog
from effectonce.telemetry.audit_log import ASKED_OUTCOME, AuditEntry

from .formatting import tone_of
from .sagas import ENDED_STATES, TONES


class Moment(Struct, frozen=True):
    """Something that happened, or will."""

    at: int  # µs since the epoch
    what: str
    by: str = ""
    detail: str = ""
    tone: str = ""


def record_timeline(
    record: Record, log: LoggedIntent | SagaLog | None = None, actions: Iterable[AuditEntry] = (), place: str = ""
) -> list[Moment]:
    """Return the moments of a record, oldest first. A record keeps its last claim only; its attempts count them all.

    ``log`` is the intent's or the saga's. ``actions`` are what operators did, and ``place`` the store that holds the
    record, since the audit log of several may be one file.
    """
    moments = [Moment(record.created_at, "first seen", detail="the record was created"), *_claim_moments(record)]
    if isinstance(log, LoggedIntent):
        moments += _intent_moments(record, log)
    elif log is not None:
        moments += _saga_moments(log)
    moments += _state_moments(record)
    moments += [Moment(entry.at, entry.action, entry.by, _describe_action(entry, place)) for entry in actions]
    if record.expires_at is not None:
        moments.append(Moment(record.expires_at, "expires", detail="a delivery after this runs again", tone="free"))
    return sorted(moments, key=lambda moment: moment.at)


def _describe_action(entry: AuditEntry, place: str) -> str:
    """Return what was done; and where, if the entry names another store (or this one by another address)."""
    outcome = "asked, and no outcome was written" if entry.outcome == ASKED_OUTCOME else entry.outcome
    where = "" if entry.place in ("", place) else f" (in {entry.place})"
    return f"{entry.detail}: {outcome}{where}" if entry.detail else f"{outcome}{where}"


def _claim_moments(record: Record) -> Iterable[Moment]:
    """Yield the last claim and the end of its lease. A token is the time of the claim in µs, or close to it."""
    if record.owner:
        attempt = "first attempt" if record.attempts == 1 else f"attempt {record.attempts}"
        generation = f", generation {record.generation}" if record.generation else ""
        detail = f"{attempt}{generation}, token {record.token}"
        yield Moment(record.token, "claimed", f"owner {record.owner.hex()[:8]}", detail, tone="claimed")
    elif record.attempts == 0 and record.state == "done":
        yield Moment(record.token, "remembered", detail="recorded after it had run, without a claim", tone="done")
    elif record.token > record.created_at:
        yield Moment(record.token, "owner fenced out", detail="an operator decided; its token is newer", tone="free")
    if record.state == "claimed" and record.lease_until is not None:
        means = "in doubt" if record.doubt_on_lapse else "the next delivery runs it again"
        yield Moment(record.lease_until, "lease ends", detail=f"if nothing renews it: {means}", tone="claimed")


def _state_moments(record: Record) -> Iterable[Moment]:
    """Yield how the record got into its state, unless it is running."""
    states = {
        "done": ("done", "result stored" if record.result is not None else "no result stored"),
        "failed": ("failed for good", "duplicates get the same error"),
        "in_doubt": ("in doubt", "it is not known whether the effect happened"),
        "free": ("released", "the next delivery runs it"),
    }
    if is_refused(record):
        states["failed"] = ("refused", "by a permanent error: duplicates get the same one")
    if record.state in states:
        what, detail = states[record.state]
        yield Moment(record.changed_at, what, detail=detail, tone=tone_of(record))


def _intent_moments(record: Record, log: LoggedIntent) -> Iterable[Moment]:
    if log.first_sent_at:
        times = "once" if log.send_count == 1 else f"{log.send_count} times since"
        provider = record.scope.split("/")[-2] if record.scope.count("/") >= 3 else "the provider"
        yield Moment(log.first_sent_at, f"sent to {provider}", detail=times, tone="claimed")


def _saga_moments(log: SagaLog) -> Iterable[Moment]:
    for step in log.entries:
        for title, progress in ((step.name, step.do), (f"undo {step.name}", step.undo)):
            attempts = "first attempt" if progress.attempts <= 1 else f"{progress.attempts} attempts"
            if progress.began and progress.state in ENDED_STATES:
                what = f"{title}: {progress.state.replace('_', ' ')}"
                yield Moment(progress.ended, what, detail=attempts, tone=TONES[progress.state])
            elif progress.began:
                yield Moment(progress.began, f"{title}: started", detail=attempts, tone="claimed")
