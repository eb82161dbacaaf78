"""`effectonce dlq`: what a worker has given up. The commands take the worker, since it knows scopes and keys."""

from __future__ import annotations

import base64
import time
from collections.abc import Sequence
from typing import Annotated, Any

import typer
from msgspec import json

from effectonce.dead_letters.queue import DeadLetterDetails, DeadLetterQueue, Redrive, Select
from effectonce.errors import InvalidOption, show

from .options import (
    AuditFile,
    Cursor,
    DryRun,
    Json,
    Limit,
    Patience,
    Yes,
    audited,
    away,
    details,
    group,
    listing,
    moment,
    report,
)
from .terminal import Colour, Screen, bar, confirm
from .worker import WorkerName, find_worker

dlq = group("Dead letters: list, show, redrive, purge.")

Queue = Annotated[str, typer.Argument(metavar="QUEUE", help="The queue whose dead letters they are.")]
Why = Annotated[str, typer.Option(help="Only those given up for this reason, as in attempts-exhausted.")]
Kind = Annotated[str, typer.Option("--type", help="Only those of this type.")]
Key = Annotated[str, typer.Option(help="Only those with this key.")]
Ids = Annotated[list[str] | None, typer.Option("--id", help="Only this one; may be given several times.")]
Most = Annotated[
    int | None, typer.Option("--limit", "-n", min=1, help="At most so many, the oldest first.", show_default=False)
]

_BATCH = 500
_COLOURS: dict[str, Colour] = {"execute": "green", "resume": "green", "no-op": "dim", "in-progress": "yellow"}
_MEANING = {
    "execute": "runs for the first time",
    "resume": "runs again, as its next attempt",
    "no-op": "is done: acked, nothing happens",
    "in-progress": "runs just now: comes again later",
    "in-doubt": "is in doubt: resolve it, or --new-generation",
    "failed": "failed for good: --new-generation runs it again",
    "mismatch": "was done with another payload: its sender must use a new key",
    "unreadable": "cannot be read",
    "unknown": "only its worker can tell",
}


@dlq.command("list")
def list_(
    worker: WorkerName,
    queue: Queue,
    why: Why = "",
    type: Kind = "",
    key: Key = "",
    limit: Limit = 100,
    cursor: Cursor = None,
    as_json: Json = False,
) -> None:
    """List dead letters, oldest first. Nothing is changed."""
    with _Opened(worker, queue) as letters:
        found = letters.list(select=_select(why, type, key, None), limit=limit, after=cursor)
        count = letters.count()
    heads = ("id", "type", "key", "why", "attempts", "since", "error")
    rows, none = [_facts(dead) for dead in found], f"queue {show(queue)} has no such dead letters"
    following = found[-1].id if len(found) == limit < count else None
    listing(as_json, "dead_letters", rows, heads, none=none, cursor=following)
    if found and not as_json:
        print(f"{len(found)} of {count} dead letters")


@dlq.command("show")
def show_(
    worker: WorkerName, queue: Queue, id: Annotated[str, typer.Argument(metavar="ID")], as_json: Json = False
) -> None:
    """Show one dead letter: why, where, how often, and its exact bytes."""
    with _Opened(worker, queue) as letters:
        details(as_json, _facts(letters.show(id), whole=True))


@dlq.command()
def redrive(
    worker: WorkerName,
    queue: Queue,
    why: Why = "",
    type: Kind = "",
    key: Key = "",
    id: Ids = None,
    limit: Most = None,
    rate: Annotated[float | None, typer.Option(help="At most so many a second.", show_default=False)] = None,
    to: Annotated[str | None, typer.Option(help="Another queue.", show_default=False)] = None,
    new_generation: Annotated[
        bool, typer.Option("--new-generation", help="Run also what is done, failed or in doubt: its effects repeat.")
    ] = False,
    bypass_effects: Annotated[
        bool, typer.Option("--bypass-effects", help="Handlers skip what is under bypass_external_effects.")
    ] = False,
    dry_run: DryRun = False,
    yes: Yes = False,
    audit: AuditFile = None,
    as_json: Json = False,
) -> None:
    """Send dead letters to their queue again, and say for each what comes of it.

    A message that is done stays done. Exit code 1 where some were left, since they would only come back. Ctrl-C ends it
    after the one at hand.
    """
    select = _select(why, type, key, id)
    options: dict[str, Any] = {"select": select, "limit": limit, "to": to, "new_generation": new_generation}
    with _Opened(worker, queue) as letters:
        if dry_run:
            looked_at = letters.redrive(**options, dry_run=True)
            for each in looked_at:
                _say(each, True, as_json)
            if not as_json:
                print(f"{len(looked_at)} looked at, nothing changed")
            return
        some = f"those selected of {letters.count():,}" if select is not None else f"up to {limit or letters.count():,}"
        repeats = " The effects of those that are done, failed or in doubt repeat." if new_generation else ""
        confirm(f"Send {some} dead letters to {show(to or queue)} again?{repeats}", yes=yes)
        came: list[Redrive] = []
        sent = 0
        target = f"{letters.queue} of {letters.group}"
        about = _words(why, type, key, id, limit, new_generation)
        with audited(audit, "dlq redrive", target, about), Patience() as patience:
            with bar("redriving", min(limit or 2**62, letters.count()) if select is None else None) as advance:

                def told(each: Redrive, of: int) -> None:
                    came.append(each)
                    advance(1)
                    patience.leave()

                try:
                    letters.redrive(**options, rate=rate, bypass_effects=bypass_effects, on_each=told)
                except KeyboardInterrupt:
                    patience.over = True
            for each in came:
                _say(each, False, as_json)
            sent = sum(each.sent for each in came)
            if not as_json:
                print(f"{sent} of {len(came)} sent")
            patience.leave()
    if sent < len(came):
        raise typer.Exit(1)


def _say(each: Redrive, dry_run: bool, as_json: bool) -> None:
    if as_json:
        facts = {"id": each.dead.id, "key": _key(each.dead), "fate": each.fate, "sent": each.sent}
        report(True, "", **facts, new_generation=each.new_generation, dry_run=dry_run, error=each.error)
        return
    meaning = "runs again, as a new generation" if each.new_generation else _MEANING[each.fate]
    ending = f": {each.error}" if each.error else "" if each.sent or dry_run else " (left here)"
    colour = _COLOURS.get(each.fate, "red")
    Screen().tell(each.fate, f"{show(each.dead.id, 40)} {show(_key(each.dead), 60)} {meaning}{ending}", colour)


@dlq.command()
def purge(
    worker: WorkerName,
    queue: Queue,
    why: Why = "",
    type: Kind = "",
    key: Key = "",
    id: Ids = None,
    limit: Most = None,
    everything: Annotated[bool, typer.Option("--all", help="All of them.")] = False,
    dry_run: DryRun = False,
    yes: Yes = False,
    audit: AuditFile = None,
    as_json: Json = False,
) -> None:
    """Remove dead letters for good. Ctrl-C ends it after the batch at hand."""
    select = _select(why, type, key, id)
    if select is None and not everything:
        raise InvalidOption("purge removes for good: say which (--why, --type, --key, --id), or --all")
    with _Opened(worker, queue) as letters:
        doomed = letters.purge(select=select, limit=limit, dry_run=True)
        if dry_run:
            _tell_removed(queue, doomed, True, as_json)
            return
        confirm(f"Remove {len(doomed):,} dead letters of {show(queue)} for good?", yes=yes or not doomed)
        target = f"{letters.queue} of {letters.group}"
        with audited(audit, "dlq purge", target, _words(why, type, key, id, limit)), Patience() as patience:
            _tell_removed(queue, _removed(letters, doomed, patience), False, as_json)
            patience.leave()


def _removed(
    letters: DeadLetterQueue, doomed: Sequence[DeadLetterDetails], patience: Patience
) -> Sequence[DeadLetterDetails]:
    """What was removed: those that were shown, and none that came since. In batches, each of which is whole."""
    removed: list[DeadLetterDetails] = []
    with bar("removing", len(doomed)) as advance:
        for start in range(0, len(doomed), _BATCH):
            ids = {dead.id for dead in doomed[start : start + _BATCH]}
            removed += letters.purge(select=lambda dead: dead.id in ids, limit=len(ids))  # noqa: B023
            advance(len(ids))
            if patience.over:
                break
    return removed


def _tell_removed(queue: str, doomed: Sequence[DeadLetterDetails], dry_run: bool, as_json: bool) -> None:
    text = f"{len(doomed)} {'would be' if dry_run else 'were'} removed"
    report(as_json, text, queue=queue, removed=[dead.id for dead in doomed], dry_run=dry_run)


class _Opened:
    """The dead letters of a worker's queue; its connections are closed at the end."""

    def __init__(self, worker: str, queue: str) -> None:
        self._worker = find_worker(worker)
        self._letters = DeadLetterQueue(self._worker, queue)

    def __enter__(self) -> DeadLetterQueue:
        return self._letters

    def __exit__(self, *_: object) -> None:
        self._worker.broker.close()
        if self._worker.store is not None:
            self._worker.store.close()


def _select(why: str, type: str, key: str, ids: Sequence[str] | None) -> Select | None:
    if not (why or type or key or ids):
        return None

    def select(dead: DeadLetterDetails) -> bool:
        return (
            (not why or dead.cause.why == why)
            and (not type or (dead.message is not None and dead.message.type == type))
            and (not key or key == _key(dead))
            and (not ids or dead.id in ids)
        )

    return select


def _words(
    why: str, type: str, key: str, ids: Sequence[str] | None, limit: int | None, new_generation: bool = False
) -> str:
    """What was chosen, for the audit log."""
    given = {"why": why, "type": type, "key": key, "id": " ".join(ids or ()), "at most": limit}
    which = ", ".join(f"{name} {value}" for name, value in given.items() if value) or "all"
    return f"{which}, as new generations" if new_generation else which


def _key(dead: DeadLetterDetails) -> str:
    return dead.cause.key or (dead.message.key if dead.message is not None else "")


def _facts(dead: DeadLetterDetails, whole: bool = False) -> dict[str, Any]:
    cause = dead.cause
    since = round(cause.last * 1e6) if cause.last else None
    facts: dict[str, Any] = {"id": dead.id, "queue": dead.queue, **json.decode(json.encode(cause))}
    facts["type"] = dead.message.type if dead.message is not None else ""
    facts["key"] = _key(dead)
    facts["since"] = moment(since) if whole else away(since, time.time_ns() // 1000)
    facts["error"] = cause.text
    if whole:
        facts["headers"] = dict(dead.packet.headers)
        try:
            facts["body"] = dead.packet.body.decode()
        except UnicodeDecodeError:
            facts["body_base64"] = base64.b64encode(dead.packet.body).decode()
    return facts
