"""`effectonce sagas`: which are unfinished, the steps of one saga, and the operator's decisions on it.

The commands take the program's own ``module:saga``, since it knows the steps and their compensations.
"""

from __future__ import annotations

import asyncio
import shlex
import sys
from datetime import UTC, datetime
from itertools import islice
from typing import Annotated, Any

import typer
from msgspec import json, structs

from effectonce.core.registry import named
from effectonce.errors import ConfigurationError, CorruptRecord, show
from effectonce.record import Record, State
from effectonce.sagas.decisions import SagaDecision
from effectonce.sagas.log import LoggedStep, SagaLog, StepProgress
from effectonce.sagas.saga import Saga
from effectonce.values.durations import readable

from .options import (
    FINISHING_EVENTS,
    MAX_COUNTED,
    AuditFile,
    Cursor,
    DryRun,
    GracefulInterrupt,
    Json,
    Limit,
    Yes,
    audit_action,
    command_group,
    format_time,
    list_page,
    operator,
    parse_json,
    print_page,
    report,
    report_counts,
    require_one,
)
from .records import require_in_doubt
from .terminal import Cell, Colour, Screen, confirm, show_progress, table

sagas = command_group("Sagas: unfinished, in doubt, and the steps of one.")

Name = Annotated[str, typer.Argument(metavar="MODULE:SAGA", help="The program's saga, as in shop.orders:saga.")]
Id = Annotated[str, typer.Argument(help="The saga's id, as `list` shows it. One that begins with - comes after --.")]

_COLOURS: dict[str, Colour] = {"done": "green", "failed": "red", "timed_out": "red", "in doubt": "yellow"}
_BAR_COLUMNS = 24
_CELL_CHARACTERS = 300  # `print_page` cuts a cell after these


@sagas.command("list")
def list_(
    name: Name,
    in_doubt: Annotated[bool, typer.Option("--in-doubt", help="Only those that wait for an operator.")] = False,
    everything: Annotated[bool, typer.Option("--all", help="Finished ones as well, while they are kept.")] = False,
    limit: Limit = 100,
    cursor: Cursor = None,
    as_json: Json = False,
) -> None:
    """List the sagas that are not finished: those in doubt first, then those that run or wait."""
    saga = _load_saga(name)
    states: list[State | None] = ["in_doubt"] if in_doubt else ["in_doubt", None]
    if everything and not in_doubt:
        states += ["done", "failed"]
    records, next_cursor = list_page(saga.store, [(saga.scope, state) for state in states], limit, cursor)
    rows = [_row(saga, record) for record in records if record.note is not None]
    if not as_json:
        rows = [{**row, "id": _quoted(row["id"])} for row in rows]
        if any(len(row["id"]) > _CELL_CHARACTERS for row in rows):
            print("an id that ends in … is longer: --json prints it", file=sys.stderr)
    heads = ("id", "state", "phase", "done", "undone", "changed", "why")
    none = "nothing is in doubt" if in_doubt else "nothing is unfinished, and nothing is in doubt"
    print_page(as_json, "sagas", rows, heads, none=none, cursor=next_cursor, colours=_COLOURS)


@sagas.command("show")
def show_(name: Name, id: Id, as_json: Json = False) -> None:
    """Show one saga, step by step, on its timeline."""
    saga = _load_saga(name)
    record = _require_record(saga, id)
    log = saga.log(record)
    facts = {**_facts(record, log), "version": log.version, "input": json.decode(log.input)}
    parts = _parts(log)
    if as_json:
        print(json.encode({**facts, "timeline": [_part_facts(*part) for part in parts]}).decode())
        return
    screen = Screen()
    screen.print(f"{saga.name} {show(log.id)}: {facts['state']}{', ' + facts['why'] if facts['why'] else ''}", "bold")
    screen.print(f"input {show(log.input.decode('utf-8', 'replace'), screen.width - 7)}", "dim")
    started = [part for _, part, _ in parts if part.began]
    start, end = min((part.began for part in started), default=0), max((part.ended for part in started), default=0)
    rows = []
    for entry, part, undo in parts:
        label = f"undo {entry.name}" if undo else entry.name
        state = "in doubt" if record.state == "in_doubt" and part is log.find_doubtful()[1] else part.state
        took = readable(part.ended - part.began) if part.ended > part.began > 0 else "-"
        result = part.error
        if not result and not undo:
            result = (entry.result or b"")[1:].decode("utf-8", "replace")
        cells = [label, state, str(part.attempts), _clock(part.began), _draw_span(screen, part, start, end), took]
        rows.append([Cell(text, _COLOURS.get(state, "")) for text in cells] + [Cell(show(result or "-", 200))])
    for line in table(screen, ("step", "state", "tries", "began", "timeline", "took", "result"), rows):
        screen.print(line)


@sagas.command()
def resume(name: Name, dry_run: DryRun = False, audit: AuditFile = None, as_json: Json = False) -> None:
    """Resume every saga that was started, or left unfinished by a dead process. Safe to run several at once.

    Ctrl-C ends it after the sagas that are running.
    """
    saga = _load_saga(name)
    unfinished = sum(1 for _ in islice(saga.records("open"), MAX_COUNTED))
    if dry_run:
        report(as_json, f"{unfinished:,} are unfinished; nothing was done", open=unfinished, dry_run=True)
        return
    with (
        audit_action(audit, "sagas resume", show(name), place=saga.store.runtime.backend),
        GracefulInterrupt() as interrupt,
    ):
        with show_progress("resuming", unfinished) as advance:
            saga.store.add_hook(
                lambda event: advance(1) if event.kind in FINISHING_EVENTS and event.scope == saga.scope else None
            )
            stop = interrupt.is_requested
            outcomes = asyncio.run(saga.aresume(stop=stop)) if saga.is_async else saga.resume(stop=stop)
        report_counts(as_json, structs.asdict(outcomes))
        interrupt.raise_if_requested()


@sagas.command()
def compensate(
    name: Name, id: Id, dry_run: DryRun = False, yes: Yes = False, audit: AuditFile = None, as_json: Json = False
) -> None:
    """Turn around a saga that is not finished: undo its finished steps, in reverse order. Ctrl-C waits for that."""
    saga = _load_saga(name)
    record = _require_record(saga, id)
    log = saga.log(record)
    undo = [entry.name for entry in reversed(log.entries) if entry.do.state == "done"]
    unfinished = record.state in (
        "claimed",
        "free",
    )  # for the others the saga's own error says why they stay as they are
    if dry_run:
        running = record.state == "claimed" and (record.lease_until or 0) > saga.store.now()
        stays = running or not unfinished
        text = f"would undo, of {show(id)}: {', '.join(undo) or 'nothing'}"
        if stays:
            text = f"{show(id)} is {_facts(record, log)['state']}: it would stay as it is"
        report(as_json, text, id=id, compensated=False, undo=[] if stays else undo, dry_run=True)
        if stays:
            raise typer.Exit(1)
        return
    confirm(f"Undo {', '.join(undo) or 'what is done'} of {show(id)}?", yes=yes or not unfinished)
    target = f"{saga.name} {show(id)}"
    with audit_action(audit, "sagas compensate", target, place=saga.store.runtime.backend), GracefulInterrupt():
        if saga.is_async:
            asyncio.run(saga.acompensate(id))
        else:
            saga.compensate(id)
    report(as_json, f"{show(id)}: compensated", id=id, compensated=True)


@sagas.command()
def resolve(
    name: Name,
    id: Id,
    done: Annotated[bool, typer.Option("--done", help="It happened; or: the compensation was done by hand.")] = False,
    result: Annotated[
        str | None,
        typer.Option("--result", metavar="JSON", show_default=False, help="With --done: the step's result."),
    ] = None,
    not_done: Annotated[bool, typer.Option("--not-done", help="It did not happen: compensate the rest.")] = False,
    retry: Annotated[bool, typer.Option("--retry", help="Run it again, under a new provider key.")] = False,
    abandon: Annotated[bool, typer.Option("--abandon", help="Give the saga up: failed, nothing more undone.")] = False,
    dry_run: DryRun = False,
    yes: Yes = False,
    audit: AuditFile = None,
    as_json: Json = False,
) -> None:
    """Decide the step or compensation that is in doubt; the next resume continues. The audit log keeps who decided."""
    outcomes = {"done": done, "not_done": not_done, "retry": retry, "abandon": abandon}
    outcome: SagaDecision = require_one(outcomes, "--done [--result JSON], --not-done, --retry or --abandon")
    if result is not None and outcome != "done":
        raise ConfigurationError("--result goes with --done: it is the step's result; nothing was changed")
    value = None if result is None else parse_json(result, "--result")
    saga = _load_saga(name)
    record = _require_record(saga, id)
    outcome_text = outcome.replace("_", " ")
    if dry_run:
        require_in_doubt(saga.store, saga.scope, id)
        text = f"{show(id)} is {record.state.replace('_', ' ')}: would resolve it as {outcome_text}"
        report(as_json, text, id=id, state=record.state, resolved=None, dry_run=True)
        return
    confirm(f"Resolve {show(id)} as {outcome_text}?", yes=yes or record.state != "in_doubt")
    with audit_action(
        audit, "sagas resolve", f"{saga.name} {show(id)}", outcome_text, place=saga.store.runtime.backend
    ):
        saga.resolve(id, outcome, result=value, who=operator())
    report(as_json, f"{show(id)}: {outcome_text}", id=id, resolved=outcome)


def _require_record(saga: Saga[Any], id: str) -> Record:
    record = saga.get(id)
    if record is None:
        hint = "; `list --json` has the ids as they are" if "\\" in id or id.endswith("…") else ""
        raise ConfigurationError(f"there is no saga {saga.name} with id {show(id)!r}{hint}")
    return record


def _load_saga(name: str) -> Saga[Any]:
    saga = named(name, "shop.orders:saga")
    if not isinstance(saga, Saga):
        raise ConfigurationError(f"{show(name)!r} is a {type(saga).__name__}, not a Saga")
    return saga


def _quoted(id: str) -> str:
    """Quote an id for the shell, so that it can be copied into another command."""
    if id.isprintable():
        return shlex.quote(id)
    text = id.replace("\\", "\\\\").replace("'", "\\'")
    return "$'" + "".join(c if c.isprintable() else _escaped(c) for c in text) + "'"


def _escaped(c: str) -> str:
    """Escape a character for bash and zsh: by its code point, since \\x means a byte to them."""
    return {"\n": "\\n", "\r": "\\r", "\t": "\\t"}.get(c) or f"\\U{ord(c):08x}"


def _row(saga: Saga[Any], record: Record) -> dict[str, Any]:
    """Return the row of a saga. One that cannot be read is shown by its record's key, and does not hide the others."""
    try:
        return _facts(record, saga.log(record))
    except CorruptRecord as error:
        unknown = {"phase": "unreadable", "done": None, "undone": None}
        return {"id": record.key, **_record_facts(record), **unknown, "why": str(error)}


def _record_facts(record: Record) -> dict[str, Any]:
    return {
        "state": {"in_doubt": "in doubt", "free": "waiting", "claimed": "running"}.get(record.state, record.state),
        "changed": format_time(record.changed_at),
    }


def _facts(record: Record, log: SagaLog) -> dict[str, Any]:
    return {
        "id": log.id,
        **_record_facts(record),
        "phase": log.phase,
        "done": sum(entry.do.state == "done" for entry in log.entries),
        "undone": sum(entry.undo.state == "done" for entry in log.entries),
        "why": log.doubt or log.why,
    }


def _parts(log: SagaLog) -> list[tuple[LoggedStep, StepProgress, bool]]:
    """Return the steps, then the compensations that ran, in the order in which they run."""
    undone = [(entry, entry.undo, True) for entry in reversed(log.entries) if entry.undo.attempts or entry.undo.rounds]
    return [*((entry, entry.do, False) for entry in log.entries), *undone]


def _part_facts(entry: LoggedStep, part: StepProgress, undo: bool) -> dict[str, Any]:
    return {
        "step": entry.name,
        "compensation": undo,
        "state": part.state,
        "attempts": part.attempts,
        "began_at": part.began or None,
        "ended_at": part.ended or None,
        "error": part.error,
        "result": json.Decoder().decode(entry.result[1:]) if entry.result is not None and not undo else None,
    }


def _clock(at: int) -> str:
    return datetime.fromtimestamp(at / 1e6, UTC).strftime("%H:%M:%S.%f")[:-3] if at else "-"


def _draw_span(screen: Screen, part: StepProgress, start: int, end: int) -> str:
    """Draw when a part ran, on a scale from the saga's first start to its last end."""
    empty, full = ("·", "█") if screen.boxes else (".", "#")
    if not part.began or end <= start:
        return empty * _BAR_COLUMNS
    left = (part.began - start) * (_BAR_COLUMNS - 1) // (end - start)
    right = max(left, (max(part.ended, part.began) - start) * (_BAR_COLUMNS - 1) // (end - start))
    return empty * left + full * (right - left + 1) + empty * (_BAR_COLUMNS - 1 - right)
