"""`effectonce dlq`: what a worker has given up. The commands take the worker, since it knows scopes and keys."""

from __future__ import annotations

import base64
import sys
import time
from collections.abc import Sequence
from typing import Annotated, Any

import typer
from msgspec import json

from effectonce.dlq import Dead, DeadLetterQueue, Redrive, Select
from effectonce.errors import InvalidOption, show

from .terminal import Cell, Colour, Screen, table
from .worker import WorkerName, find_worker

dlq = typer.Typer(help="Dead letters: list, show, redrive, purge.", no_args_is_help=True)

Queue = Annotated[str, typer.Argument(metavar="QUEUE", help="The queue whose dead letters they are.")]
Why = Annotated[str, typer.Option(help="Only those given up for this reason, as in attempts-exhausted.")]
Kind = Annotated[str, typer.Option("--type", help="Only those of this type.")]
Key = Annotated[str, typer.Option(help="Only those with this key.")]
Ids = Annotated[list[str] | None, typer.Option("--id", help="Only this one; may be given several times.")]
Limit = Annotated[int | None, typer.Option(min=1, help="At most so many, the oldest first.", show_default=False)]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Only say what would be done.")]
Json = Annotated[bool, typer.Option("--json", help="Print JSON, one object a line.")]

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
    as_json: Json = False,
) -> None:
    """List dead letters, oldest first. Nothing is changed."""
    with _Opened(worker, queue) as letters:
        found = letters.list(select=_select(why, type, key, None), limit=limit)
        if as_json:
            for dead in found:
                _print(_facts(dead))
        elif found:
            rows = [[Cell(each) for each in _row(dead)] for dead in found]
            print("\n".join(table(Screen(), ("id", "type", "key", "why", "tries", "since", "error"), rows)))
            print(f"{len(found)} of {letters.count()} dead letters")
        else:
            print(f"queue {queue} has no such dead letters")


@dlq.command("show")
def show_(
    worker: WorkerName, queue: Queue, id: Annotated[str, typer.Argument(metavar="ID")], as_json: Json = False
) -> None:
    """Show one dead letter: why, where, how often, and its exact bytes."""
    with _Opened(worker, queue) as letters:
        facts = _facts(letters.show(id), whole=True)
        if as_json:
            _print(facts)
            return
        for name, value in facts.items():
            print(f"{name:12} {show(value if isinstance(value, str) else json.encode(value).decode(), 4000)}")


@dlq.command()
def redrive(
    worker: WorkerName,
    queue: Queue,
    why: Why = "",
    type: Kind = "",
    key: Key = "",
    id: Ids = None,
    limit: Limit = None,
    rate: Annotated[float | None, typer.Option(help="At most so many a second.", show_default=False)] = None,
    to: Annotated[str | None, typer.Option(help="Another queue.", show_default=False)] = None,
    new_generation: Annotated[
        bool, typer.Option("--new-generation", help="Run also what is done, failed or in doubt: its effects repeat.")
    ] = False,
    bypass_effects: Annotated[
        bool, typer.Option("--bypass-effects", help="Handlers skip what is under bypass_external_effects.")
    ] = False,
    dry_run: DryRun = False,
    as_json: Json = False,
) -> None:
    """Send dead letters to their queue again, and say for each what comes of it.

    A message that is done stays done. Exit code 1 where some were left, since they would only come back.
    """
    with _Opened(worker, queue) as letters:
        report = letters.redrive(
            select=_select(why, type, key, id),
            limit=limit,
            rate=rate,
            to=to,
            dry_run=dry_run,
            new_generation=new_generation,
            bypass_effects=bypass_effects,
        )
    for each in report:
        _say(each, dry_run, as_json)
    sent = sum(each.sent for each in report)
    if not as_json:
        print(f"{len(report)} looked at, nothing changed" if dry_run else f"{sent} of {len(report)} sent")
    if not dry_run and sent < len(report):
        raise typer.Exit(1)


def _say(each: Redrive, dry_run: bool, as_json: bool) -> None:
    if as_json:
        facts = {"id": each.dead.id, "key": _key(each.dead), "fate": each.fate, "sent": each.sent}
        _print({**facts, "new_generation": each.new_generation, "dry_run": dry_run, "error": each.error})
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
    limit: Limit = None,
    everything: Annotated[bool, typer.Option("--all", help="All of them.")] = False,
    dry_run: DryRun = False,
    as_json: Json = False,
) -> None:
    """Remove dead letters for good."""
    select = _select(why, type, key, id)
    if select is None and not everything:
        raise InvalidOption("purge removes for good: say which (--why, --type, --key, --id), or --all")
    with _Opened(worker, queue) as letters:
        removed = letters.purge(select=select, limit=limit, dry_run=dry_run)
    if as_json:
        _print({"queue": queue, "removed": [dead.id for dead in removed], "dry_run": dry_run})
    else:
        print(f"{len(removed)} {'would be' if dry_run else 'were'} removed")


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

    def select(dead: Dead) -> bool:
        return (
            (not why or dead.cause.why == why)
            and (not type or (dead.message is not None and dead.message.type == type))
            and (not key or key == _key(dead))
            and (not ids or dead.id in ids)
        )

    return select


def _key(dead: Dead) -> str:
    return dead.cause.key or (dead.message.key if dead.message is not None else "")


def _row(dead: Dead) -> tuple[str, ...]:
    cause = dead.cause
    since = time.strftime("%Y-%m-%d %H:%M:%S", time.gmtime(cause.last)) if cause.last else "?"
    kind = dead.message.type if dead.message is not None else ""
    plain = (dead.id, kind or "-", _key(dead) or "-", cause.why, str(cause.attempts), since, cause.text or "-")
    return tuple(show(each, 200) for each in plain)


def _facts(dead: Dead, whole: bool = False) -> dict[str, Any]:
    facts: dict[str, Any] = {"id": dead.id, "queue": dead.queue, **json.decode(json.encode(dead.cause))}
    if dead.message is not None:
        facts["type"], facts["key"] = dead.message.type, _key(dead)
    if whole:
        facts["headers"] = dict(dead.packet.headers)
        try:
            facts["body"] = dead.packet.body.decode()
        except UnicodeDecodeError:
            facts["body_base64"] = base64.b64encode(dead.packet.body).decode()
    return facts


def _print(facts: dict[str, Any]) -> None:
    sys.stdout.write(json.encode(facts).decode() + "\n")
