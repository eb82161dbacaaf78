"""`effectonce dlq`: the messages that a worker has given up. Commands take the worker: it knows scopes and keys."""

from __future__ import annotations

import base64
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Annotated, Any

import typer
from msgspec import json

from effectonce.dead_letters.queue import DeadLetterDetails, DeadLetterQueue, Redrive, Select
from effectonce.errors import InvalidOption, show

from .options import (
    AuditFile,
    Cursor,
    DryRun,
    GracefulInterrupt,
    Json,
    Limit,
    Yes,
    audit_action,
    command_group,
    format_age,
    format_time,
    print_details,
    print_page,
    report,
)
from .terminal import Colour, Screen, confirm, show_progress
from .worker import WorkerName, find_worker

dlq = command_group("Dead letters: list, show, redrive, purge.")

Queue = Annotated[str, typer.Argument(metavar="QUEUE", help="The queue whose dead letters they are.")]
Why = Annotated[str, typer.Option(help="Only those given up for this reason, as in attempts-exhausted.")]
Kind = Annotated[str, typer.Option("--type", help="Only those of this type.")]
Key = Annotated[str, typer.Option(help="Only those with this key.")]
Ids = Annotated[list[str] | None, typer.Option("--id", help="Only this one; may be given several times.")]
OptionalLimit = Annotated[
    int | None, typer.Option("--limit", "-n", min=1, help="How many at most, the oldest first.", show_default=False)
]

_PURGE_BATCH = 500
_COLOURS: dict[str, Colour] = {"execute": "green", "resume": "green", "no-op": "dim", "in-progress": "yellow"}
_RESULTS = {
    "execute": "runs for the first time",
    "resume": "runs again, as its next attempt",
    "no-op": "is done: acked, nothing happens",
    "in-progress": "is running now: redelivered later",
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
    with _open_queue(worker, queue) as dead_letters:
        page = dead_letters.list(select=_select(why, type, key, None), limit=limit, after=cursor)
        count = dead_letters.count()
    heads = ("id", "type", "key", "why", "attempts", "since", "error")
    rows, none = [_facts(dead) for dead in page], f"queue {show(queue)} has no such dead letters"
    next_cursor = page[-1].id if len(page) == limit < count else None
    print_page(as_json, "dead_letters", rows, heads, none=none, cursor=next_cursor)
    if page and not as_json:
        print(f"{len(page)} of {count} dead letters")


@dlq.command("show")
def show_(
    worker: WorkerName, queue: Queue, id: Annotated[str, typer.Argument(metavar="ID")], as_json: Json = False
) -> None:
    """Show one dead letter: why, where, how often, and its exact bytes."""
    with _open_queue(worker, queue) as dead_letters:
        print_details(as_json, _facts(dead_letters.show(id), whole=True))


@dlq.command()
def redrive(
    worker: WorkerName,
    queue: Queue,
    why: Why = "",
    type: Kind = "",
    key: Key = "",
    id: Ids = None,
    limit: OptionalLimit = None,
    rate: Annotated[float | None, typer.Option(help="How many a second at most.", show_default=False)] = None,
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
    """Send dead letters to their queue again, and show the result for each.

    A message that is done stays done. Exit code 1 where some were not sent, since they would only come back. Ctrl-C
    ends it after the current one.
    """
    select = _select(why, type, key, id)
    options: dict[str, Any] = {"select": select, "limit": limit, "to": to, "new_generation": new_generation}
    with _open_queue(worker, queue) as dead_letters:
        if dry_run:
            previews = dead_letters.redrive(**options, dry_run=True)
            for preview in previews:
                _print_redrive(preview, True, as_json)
            if not as_json:
                print(f"{len(previews)} checked, nothing changed")
            return
        some = (
            f"those selected of {dead_letters.count():,}"
            if select is not None
            else f"up to {limit or dead_letters.count():,}"
        )
        repeats = " The effects of those that are done, failed or in doubt repeat." if new_generation else ""
        confirm(f"Send {some} dead letters to {show(to or queue)} again?{repeats}", yes=yes)
        redrives: list[Redrive] = []
        target = f"{dead_letters.queue} of {dead_letters.group}"
        about = _describe_selection(why, type, key, id, limit, new_generation)
        with audit_action(audit, "dlq redrive", target, about), GracefulInterrupt() as interrupt:
            with show_progress(
                "redriving", min(limit or 2**62, dead_letters.count()) if select is None else None
            ) as advance:

                def count_redrive(redrive: Redrive, of: int) -> None:
                    redrives.append(redrive)
                    advance(1)
                    interrupt.raise_if_requested()

                try:
                    dead_letters.redrive(**options, rate=rate, bypass_effects=bypass_effects, on_each=count_redrive)
                except KeyboardInterrupt:
                    interrupt.requested = True
            for redrive in redrives:
                _print_redrive(redrive, False, as_json)
            sent = sum(redrive.sent for redrive in redrives)
            if not as_json:
                print(f"{sent} of {len(redrives)} sent")
            interrupt.raise_if_requested()
    if sent < len(redrives):
        raise typer.Exit(1)


def _print_redrive(redrive: Redrive, dry_run: bool, as_json: bool) -> None:
    if as_json:
        facts = {"id": redrive.dead.id, "key": _key(redrive.dead), "fate": redrive.fate, "sent": redrive.sent}
        report(True, "", **facts, new_generation=redrive.new_generation, dry_run=dry_run, error=redrive.error)
        return
    meaning = "runs again, as a new generation" if redrive.new_generation else _RESULTS[redrive.fate]
    ending = ""
    if redrive.error:
        ending = f": {redrive.error}"
    elif not (redrive.sent or dry_run):
        ending = " (not sent)"
    colour = _COLOURS.get(redrive.fate, "red")
    Screen().print_tagged(
        redrive.fate, f"{show(redrive.dead.id, 40)} {show(_key(redrive.dead), 60)} {meaning}{ending}", colour
    )


@dlq.command()
def purge(
    worker: WorkerName,
    queue: Queue,
    why: Why = "",
    type: Kind = "",
    key: Key = "",
    id: Ids = None,
    limit: OptionalLimit = None,
    everything: Annotated[bool, typer.Option("--all", help="All of them.")] = False,
    dry_run: DryRun = False,
    yes: Yes = False,
    audit: AuditFile = None,
    as_json: Json = False,
) -> None:
    """Remove dead letters for good. Ctrl-C ends it after the current batch."""
    select = _select(why, type, key, id)
    if select is None and not everything:
        raise InvalidOption("purge removes for good: choose which (--why, --type, --key, --id), or --all")
    with _open_queue(worker, queue) as dead_letters:
        doomed = dead_letters.purge(select=select, limit=limit, dry_run=True)
        if dry_run:
            _report_removed(queue, doomed, True, as_json)
            return
        confirm(f"Remove {len(doomed):,} dead letters of {show(queue)} for good?", yes=yes or not doomed)
        target = f"{dead_letters.queue} of {dead_letters.group}"
        with (
            audit_action(audit, "dlq purge", target, _describe_selection(why, type, key, id, limit)),
            GracefulInterrupt() as interrupt,
        ):
            _report_removed(queue, _remove(dead_letters, doomed, interrupt), False, as_json)
            interrupt.raise_if_requested()


def _remove(
    dead_letters: DeadLetterQueue, doomed: Sequence[DeadLetterDetails], interrupt: GracefulInterrupt
) -> Sequence[DeadLetterDetails]:
    """Remove the dead letters that were shown, and none that came since, in batches. Returns those it removed."""
    removed: list[DeadLetterDetails] = []
    with show_progress("removing", len(doomed)) as advance:
        for start in range(0, len(doomed), _PURGE_BATCH):
            ids = {dead.id for dead in doomed[start : start + _PURGE_BATCH]}
            removed += dead_letters.purge(select=lambda dead: dead.id in ids, limit=len(ids))  # noqa: B023
            advance(len(ids))
            if interrupt.requested:
                break
    return removed


def _report_removed(queue: str, doomed: Sequence[DeadLetterDetails], dry_run: bool, as_json: bool) -> None:
    text = f"{len(doomed)} {'would be' if dry_run else 'were'} removed"
    report(as_json, text, queue=queue, removed=[dead.id for dead in doomed], dry_run=dry_run)


@contextmanager
def _open_queue(name: str, queue: str) -> Iterator[DeadLetterQueue]:
    """Open the dead letters of a worker's queue, and close the worker's connections at the end."""
    worker = find_worker(name)
    try:
        yield DeadLetterQueue(worker, queue)
    finally:
        worker.broker.close()
        if worker.store is not None:
            worker.store.close()


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


def _describe_selection(
    why: str, type: str, key: str, ids: Sequence[str] | None, limit: int | None, new_generation: bool = False
) -> str:
    """Return what was selected, for the audit log."""
    filters = {"why": why, "type": type, "key": key, "id": " ".join(ids or ()), "at most": limit}
    which = ", ".join(f"{name} {value}" for name, value in filters.items() if value) or "all"
    return f"{which}, as new generations" if new_generation else which


def _key(dead: DeadLetterDetails) -> str:
    return dead.cause.key or (dead.message.key if dead.message is not None else "")


def _facts(dead: DeadLetterDetails, whole: bool = False) -> dict[str, Any]:
    cause = dead.cause
    since = round(cause.last * 1e6) if cause.last else None
    facts: dict[str, Any] = {"id": dead.id, "queue": dead.queue, **json.decode(json.encode(cause))}
    facts["type"] = dead.message.type if dead.message is not None else ""
    facts["key"] = _key(dead)
    facts["since"] = format_time(since) if whole else format_age(since, time.time_ns() // 1000)
    facts["error"] = cause.text
    if whole:
        facts["headers"] = dict(dead.packet.headers)
        try:
            facts["body"] = dead.packet.body.decode()
        except UnicodeDecodeError:
            facts["body_base64"] = base64.b64encode(dead.packet.body).decode()
    return facts
