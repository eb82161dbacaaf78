"""`effectonce dlq`: the messages that a worker has given up.

The commands take the program's own ``module:worker``, since it knows the scopes and keys of its messages.
"""

from __future__ import annotations

import base64
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Annotated, Any, get_args

import typer
from msgspec import Struct, json

from effectonce.dead_letters.queue import DeadLetterDetails, DeadLetterQueue, Redrive, Select
from effectonce.display.formatting import format_ago, format_error, format_iso, format_when
from effectonce.display.redrives import describe_redrive
from effectonce.display.terminal import Screen, confirm
from effectonce.errors import InvalidOption, show
from effectonce.message import CAUSE_HEADER
from effectonce.worker.dead_letter_cause import CauseCode

from . import options
from .audit import audit_action
from .groups import command_group
from .interrupts import GracefulInterrupt
from .output import COLOURS, WHOLE, print_details, print_json, print_page, report
from .programs import close_program, load_worker
from .progress import Progress

dlq = command_group("Dead letters, the messages that a worker has given up: list, show, redrive, purge.")

Queue = Annotated[str, typer.Argument(metavar="QUEUE", help="The queue whose messages were given up.")]
Why = Annotated[
    str,
    typer.Option(
        "--why",
        metavar="CODE",
        help="Only those given up for this reason, as in attempts-exhausted or poison.",
        autocompletion=list(get_args(CauseCode)).copy,
    ),
]
Kind = Annotated[str, typer.Option("--type", metavar="TYPE", help="Only messages of this type.")]
Key = Annotated[str, typer.Option("--key", metavar="KEY", help="Only those with this key.")]
Ids = Annotated[
    list[str] | None, typer.Option("--id", metavar="ID", help="Only this one, as list shows it. Repeatable.")
]

_PURGE_BATCH_SIZE = 500


class Selection(Struct, frozen=True):
    """The dead letters that the options of a command select. A filter that is empty or None selects all."""

    why: str
    type: str
    key: str
    ids: Sequence[str] | None = None

    @property
    def select(self) -> Select | None:
        """The selection as `DeadLetterQueue` takes it; None where it selects all."""
        return self._accepts if self.why or self.type or self.key or self.ids else None

    def _accepts(self, dead: DeadLetterDetails) -> bool:
        return (
            (not self.why or dead.cause.why == self.why)
            and (not self.type or (dead.message is not None and dead.message.type == self.type))
            and (not self.key or dead.key == self.key)
            and (not self.ids or dead.id in self.ids)
        )

    def describe(self, limit: int | None) -> str:
        """Describe the selection for the audit log."""
        filters = {
            "why": self.why,
            "type": self.type,
            "key": self.key,
            "id": " ".join(self.ids or ()),
            "at most": limit,
        }
        return ", ".join(f"{name} {value}" for name, value in filters.items() if value) or "all"


@dlq.command("list")
def list_(
    worker_name: options.WorkerName,
    queue: Queue,
    why: Why = "",
    type: Kind = "",
    key: Key = "",
    limit: options.Limit = 100,
    cursor: options.Cursor = None,
    as_json: options.Json = False,
) -> None:
    """List dead letters, oldest first. Nothing is changed."""
    with _open_queue(worker_name, queue) as dead_letters:
        page = dead_letters.list(select=Selection(why, type, key).select, limit=limit, after=cursor)
        count = dead_letters.count()
    heads = ("id", "type", "key", "why", "attempts", "since", "error")
    rows = [_facts(dead) if as_json else _row(dead) for dead in page]
    for row in rows:
        row.pop("traceback", None)  # `show` has it
    none = f"queue {show(queue)} has no such dead letters"
    next_cursor = page[-1].id if len(page) == limit < count else None
    print_page(as_json, "dead_letters", rows, heads, none=none, cursor=next_cursor)
    if page and not as_json:
        print(f"{len(page)} of {count} dead letters")


@dlq.command("show")
def show_(
    worker_name: options.WorkerName,
    queue: Queue,
    id: Annotated[str, typer.Argument(metavar="ID", help="The dead letter, as list shows it.")],
    as_json: options.Json = False,
) -> None:
    """Show one dead letter: why, where, how often, its exact bytes, and the end of the traceback."""
    with _open_queue(worker_name, queue) as dead_letters:
        dead = dead_letters.show(id)
    headers = {name: value for name, value in dead.packet.headers.items() if name != CAUSE_HEADER}
    facts = {**_facts(dead), "headers": headers}
    try:
        facts["body"] = dead.packet.body.decode()
    except UnicodeDecodeError:
        facts["body_base64"] = base64.b64encode(dead.packet.body).decode()
    if as_json:
        print_json(facts)
        return
    lines = str(facts.pop("traceback", "")).splitlines()
    facts["first"] = format_when(_to_micros(dead.cause.first_attempt_at))
    facts["last"] = format_when(_to_micros(dead.cause.given_up_at))
    print_details(_for_people(facts))
    print("".join(f"\n{show(line, WHOLE)}" for line in lines), end="\n" if lines else "")


@dlq.command()
def redrive(
    worker_name: options.WorkerName,
    queue: Queue,
    why: Why = "",
    type: Kind = "",
    key: Key = "",
    id: Ids = None,
    limit: Annotated[
        int | None,
        typer.Option(
            "--limit", "-n", metavar="N", min=1, help="Check this many at most, the oldest first; not all may be sent."
        ),
    ] = None,
    rate: Annotated[float | None, typer.Option(metavar="N", help="Send this many a second at most.")] = None,
    to: Annotated[str | None, typer.Option(metavar="QUEUE", help="Send them to this queue instead.")] = None,
    new_generation: Annotated[
        bool,
        typer.Option("--new-generation", help="Also rerun what is done, failed or in doubt: its effects repeat."),
    ] = False,
    bypass_effects: Annotated[
        bool, typer.Option("--bypass-effects", help="Skip functions marked `bypass_external_effects`.")
    ] = False,
    dry_run: options.DryRun = False,
    yes: options.Yes = False,
    audit: options.AuditFile = None,
    as_json: options.Json = False,
) -> None:
    """Send dead letters to their queue again, and show the result for each.

    A message that is done stays done. Exit code 1 if some were not sent, since they would become dead letters again.
    Ctrl-C ends it after the current one.

    Example: effectonce dlq redrive shop.worker:worker orders --dry-run
    """
    selection = Selection(why, type, key, id)
    choices: dict[str, Any] = {"select": selection.select, "limit": limit, "to": to, "new_generation": new_generation}
    with _open_queue(worker_name, queue) as dead_letters:
        if dry_run:
            previews = dead_letters.redrive(**choices, dry_run=True)
            _print_redrives(previews, dry_run, as_json)
            if not as_json:
                print(f"{len(previews)} checked, nothing changed")
            return
        count = dead_letters.count()
        selected = f"up to {limit or count:,}" if selection.select is None else f"the selected ones of {count:,}"
        repeats = " The effects of those that are done, failed or in doubt repeat." if new_generation else ""
        confirm(f"Send {selected} dead letters to {show(to or queue)} again?{repeats}", yes=yes)
        detail = selection.describe(limit) + (", as new generations" if new_generation else "")
        target = f"{dead_letters.queue} of {dead_letters.group}"
        with audit_action(audit, "dlq redrive", target, detail), GracefulInterrupt() as interrupt:
            redrives: list[Redrive] = []
            with Progress("redriving") as progress:

                def count_redrive(redrive: Redrive, total: int) -> None:
                    redrives.append(redrive)
                    progress.step(total=total)
                    interrupt.raise_if_requested()

                try:
                    dead_letters.redrive(**choices, rate=rate, bypass_effects=bypass_effects, on_each=count_redrive)
                except KeyboardInterrupt:
                    interrupt.requested = True
            _print_redrives(redrives, dry_run, as_json)
            sent = sum(redrive.sent for redrive in redrives)
            if not as_json:
                print(f"{sent} of {len(redrives)} checked were sent")
            interrupt.raise_if_requested()
    if sent < len(redrives):
        raise typer.Exit(1)


def _print_redrives(redrives: Sequence[Redrive], dry_run: bool, as_json: bool) -> None:
    for redrive in redrives:
        dead = redrive.dead
        if as_json:
            facts = {"id": dead.id, "key": dead.key, "fate": redrive.fate, "was_in_doubt": redrive.was_in_doubt}
            facts |= {"sent": redrive.sent, "new_generation": redrive.new_generation}
            print_json({**facts, "dry_run": dry_run, "error": redrive.error})
            continue
        result = describe_redrive(redrive)
        text = f"{show(dead.id, WHOLE)} {show(dead.key, WHOLE)} {result.text}"
        if redrive.error:
            text += f": {redrive.error}"
        elif not (redrive.sent or dry_run):
            text += " (not sent)"
        Screen().print_tagged(redrive.fate, text, COLOURS[result.tone])


@dlq.command()
def purge(
    worker_name: options.WorkerName,
    queue: Queue,
    why: Why = "",
    type: Kind = "",
    key: Key = "",
    id: Ids = None,
    limit: options.WorkLimit = None,
    everything: Annotated[bool, typer.Option("--all", help="Remove all of them.")] = False,
    dry_run: options.DryRun = False,
    yes: options.Yes = False,
    audit: options.AuditFile = None,
    as_json: options.Json = False,
) -> None:
    """Remove dead letters for good. Ctrl-C ends it after the current batch.

    Example: effectonce dlq purge shop.worker:worker orders --why undecodable
    """
    selection = Selection(why, type, key, id)
    if selection.select is None and not everything:
        raise InvalidOption("purge deletes for good: say which (--why, --type, --key, --id), or --all")
    with _open_queue(worker_name, queue) as dead_letters:
        selected = dead_letters.purge(select=selection.select, limit=limit, dry_run=True)
        if dry_run:
            _report_removed(queue, selected, True, as_json)
            return
        confirm(f"Remove {len(selected):,} dead letters of {show(queue)} for good?", yes=yes or not selected)
        target = f"{dead_letters.queue} of {dead_letters.group}"
        with audit_action(audit, "dlq purge", target, selection.describe(limit)), GracefulInterrupt() as interrupt:
            _report_removed(queue, _remove(dead_letters, selected, interrupt), False, as_json)
            interrupt.raise_if_requested()


def _remove(
    dead_letters: DeadLetterQueue, selected: Sequence[DeadLetterDetails], interrupt: GracefulInterrupt
) -> Sequence[DeadLetterDetails]:
    """Remove the selected dead letters, and none that came since, in batches. Returns those it removed."""
    removed: list[DeadLetterDetails] = []
    with Progress("removing", len(selected)) as progress:
        for start in range(0, len(selected), _PURGE_BATCH_SIZE):
            ids = {dead.id for dead in selected[start : start + _PURGE_BATCH_SIZE]}
            removed += dead_letters.purge(select=lambda dead: dead.id in ids, limit=len(ids))  # noqa: B023
            progress.step(count=len(ids))
            if interrupt.requested:
                break
    return removed


def _report_removed(queue: str, selected: Sequence[DeadLetterDetails], dry_run: bool, as_json: bool) -> None:
    text = f"{len(selected):,} {'would be ' if dry_run else ''}removed"
    report(as_json, text, queue=queue, removed=[dead.id for dead in selected], dry_run=dry_run)


@contextmanager
def _open_queue(name: str, queue: str) -> Iterator[DeadLetterQueue]:
    """Open the dead letters of a worker's queue, and close the worker's connections at the end."""
    worker = load_worker(name)
    try:
        yield DeadLetterQueue(worker, queue)
    finally:
        close_program(worker)


def _given_up_at(dead: DeadLetterDetails) -> int:
    """Return when the message was given up, in microseconds since the epoch; 0 if its cause does not say."""
    return _to_micros(dead.cause.given_up_at)


def _to_micros(seconds: float) -> int:
    return round(seconds * 1e6)


def _facts(dead: DeadLetterDetails) -> dict[str, Any]:
    return {
        "id": dead.id,
        "queue": dead.queue,
        **json.decode(json.encode(dead.cause)),
        "type": dead.message.type if dead.message is not None else "",
        "key": dead.key,
        "first": format_iso(_to_micros(dead.cause.first_attempt_at)),
        "last": format_iso(_given_up_at(dead)),
        "error_class": dead.cause.error,
        "error": dead.cause.text,
    }


def _row(dead: DeadLetterDetails) -> dict[str, Any]:
    return {**_for_people(_facts(dead)), "since": format_ago(_given_up_at(dead))}


def _for_people(facts: dict[str, Any]) -> dict[str, Any]:
    """Return ``facts`` with the error once, on one line."""
    shown = {name: fact for name, fact in facts.items() if name not in ("text", "error_class")}
    return {**shown, "error": format_error(facts["error_class"], facts["error"])}
