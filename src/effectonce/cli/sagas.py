"""`effectonce sagas`: which are unfinished, the steps of one saga, and the operator's decisions on it.

The commands take the program's own ``module:saga``, since it knows the steps and their compensations.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable
from itertools import islice
from typing import Annotated, Any

import typer
from msgspec import json, structs
from rich.text import Text

from effectonce.core.shared_loop import shared_loop
from effectonce.display.formatting import format_ago, format_iso, format_when
from effectonce.display.sagas import SagaPartView, format_saga_state, list_saga_part_views
from effectonce.display.terminal import Screen, confirm
from effectonce.errors import ConfigurationError, CorruptRecord, show
from effectonce.record import Record, State
from effectonce.sagas.decisions import SagaDecision
from effectonce.sagas.log import SagaLog, StepProgress
from effectonce.sagas.saga import Saga
from effectonce.values.durations import format_span

from . import options
from .audit import audit_action, operator_name
from .groups import command_group
from .interrupts import GracefulInterrupt
from .output import COLOURS, WHOLE, print_json, print_page, report
from .programs import MAX_COUNTED_RECORDS, list_page, load_program, require_in_doubt, run_recovery
from .tables import print_table

sagas = command_group("Sagas: list, show, resume, compensate, resolve.")

Name = Annotated[str, typer.Argument(metavar="MODULE:SAGA", help="The program's saga, as in shop.orders:saga.")]
Id = Annotated[
    str, typer.Argument(metavar="ID", help="The saga, as list shows it. An id that begins with - comes after --.")
]

_BAR_COLUMNS = 24
_NARROW_BAR_COLUMNS = 12
_NARROW_SCREEN_COLUMNS = 100


@sagas.command("list")
def list_(
    name: Name,
    in_doubt: options.OnlyInDoubt = False,
    everything: Annotated[bool, typer.Option("--all", help="Also list finished sagas that are still kept.")] = False,
    limit: options.Limit = 100,
    cursor: options.Cursor = None,
    as_json: options.Json = False,
) -> None:
    """List the sagas that are not finished: those in doubt first, then those that run or wait."""
    saga = _load_saga(name)
    states: list[State | None] = ["in_doubt"] if in_doubt else ["in_doubt", None]
    if everything and not in_doubt:
        states += ["done", "failed"]
    records, next_cursor = list_page(saga.store, [(saga.scope, state) for state in states], limit, cursor)
    rows = [_row(saga, record) for record in records if record.note is not None]
    if not as_json:
        ages = [format_ago(record.changed_at, saga.store.now()) for record in records if record.note is not None]
        rows = [{**row, "id": _quote_for_shell(row["id"]), "changed": age} for row, age in zip(rows, ages, strict=True)]
    heads = ("id", "state", "phase", "done", "undone", "changed", "why")
    none = "nothing is in doubt" if in_doubt else "nothing is unfinished, and nothing is in doubt"
    print_page(as_json, "sagas", rows, heads, none=none, cursor=next_cursor)


@sagas.command("show")
def show_(name: Name, id: Id, as_json: options.Json = False) -> None:
    """Show one saga, step by step, on its timeline.

    Example: effectonce sagas show shop.orders:saga order-42
    """
    saga = _load_saga(name)
    record = _require_record(saga, id)
    log = saga.log(record)
    facts = {**_facts(saga, record, log), "version": log.version, "input": json.decode(log.input)}
    parts = list_saga_part_views(log, record.state)
    if as_json:
        print_json({**facts, "timeline": [_part_facts(part) for part in parts]})
        return
    screen = Screen()
    screen.print(f"{saga.name} {show(log.id)}: {facts['state']}{', ' + facts['why'] if facts['why'] else ''}", "bold")
    screen.print(f"input    {show(log.input.decode('utf-8', 'replace'), WHOLE)}", "dim")
    started = [part.progress for part in parts if part.progress.began]
    start = min((progress.began for progress in started), default=0)
    end = max((progress.ended for progress in started), default=0)
    screen.print(f"started  {format_when(start, saga.store.now()) or 'not yet'}", "dim")
    heads = ("step", "state", "attempts", "began", "timeline", "took", "result")
    print_table(heads, [_part_cells(screen, part, start, end) for part in parts])


@sagas.command()
def resume(
    name: Name, dry_run: options.DryRun = False, audit: options.AuditFile = None, as_json: options.Json = False
) -> None:
    """Resume every unfinished saga, such as one whose process died. Safe to run several at once.

    Ctrl-C ends it after the sagas that are running.
    """
    saga = _load_saga(name)
    unfinished = sum(1 for _ in islice(saga.records("open"), MAX_COUNTED_RECORDS))
    if dry_run:
        report(as_json, f"{unfinished:,} are unfinished; nothing was done", open=unfinished, dry_run=True)
        return

    def resume_all(stop: Callable[[], bool]) -> dict[str, int]:
        return structs.asdict(shared_loop.run(saga.aresume(stop=stop)) if saga.is_async else saga.resume(stop=stop))

    run_recovery(
        resume_all,
        action="sagas resume",
        target=show(name),
        store=saga.store,
        scopes={saga.scope},
        unfinished=unfinished,
        audit=audit,
        as_json=as_json,
    )


@sagas.command()
def compensate(
    name: Name,
    id: Id,
    dry_run: options.DryRun = False,
    yes: options.Yes = False,
    audit: options.AuditFile = None,
    as_json: options.Json = False,
) -> None:
    """Turn around a saga that is not finished: undo its finished steps, in reverse order. Ctrl-C waits for that."""
    saga = _load_saga(name)
    record = _require_record(saga, id)
    log = saga.log(record)
    undo = [entry.name for entry in reversed(log.entries) if entry.do.state == "done"]
    # Of the others the saga's own error says why they stay as they are.
    unfinished = record.state in ("claimed", "free")
    if dry_run:
        running = record.state == "claimed" and (record.lease_until or 0) > saga.store.now()
        stays = running or not unfinished
        text = f"would undo, of {show(id)}: {', '.join(undo) or 'nothing'}"
        if stays:
            text = f"{show(id)} is {_facts(saga, record, log)['state']}: it would stay as it is"
        report(as_json, text, id=id, compensated=False, undo=[] if stays else undo, dry_run=True)
        if stays:
            raise typer.Exit(1)
        return
    confirm(f"Undo {', '.join(undo) or 'what is done'} of {show(id)}?", yes=yes or not unfinished)
    target = f"{saga.name} {show(id)}"
    with audit_action(audit, "sagas compensate", target, place=saga.store.runtime.backend), GracefulInterrupt():
        if saga.is_async:
            shared_loop.run(saga.acompensate(id))
        else:
            saga.compensate(id)
    report(as_json, f"{show(id)}: compensated", id=id, compensated=True)


@sagas.command()
def resolve(
    name: Name,
    id: Id,
    done: Annotated[bool, typer.Option("--done", help="It happened, or you have compensated it by hand.")] = False,
    result: options.Result = None,
    not_done: Annotated[
        bool, typer.Option("--not-done", help="It did not happen: compensate what was done before.")
    ] = False,
    retry: options.Retry = False,
    abandon: options.Abandon = False,
    dry_run: options.DryRun = False,
    yes: options.Yes = False,
    audit: options.AuditFile = None,
    as_json: options.Json = False,
) -> None:
    """Decide the step or compensation that is in doubt; the next resume continues. The audit log records who decided.

    With --abandon the saga has failed, and nothing more is undone.

    Example: effectonce sagas resolve shop.orders:saga order-42 --done
    """
    outcomes = {"done": done, "not_done": not_done, "retry": retry, "abandon": abandon}
    outcome: SagaDecision = options.require_one(outcomes, "--done [--result JSON], --not-done, --retry or --abandon")
    if result is not None and outcome != "done":
        raise ConfigurationError("--result goes with --done: it is the step's result; nothing was changed")
    value = None if result is None else options.parse_json(result, "--result")
    saga = _load_saga(name)
    record = _require_record(saga, id)
    outcome_text = outcome.replace("_", " ")
    if dry_run:
        require_in_doubt(saga.store, saga.scope, id)
        text = f"{show(id)} is {record.state.replace('_', ' ')}: would resolve it as {outcome_text}"
        report(as_json, text, id=id, state=record.state, resolved=None, dry_run=True)
        return
    confirm(f"Resolve {show(id)} as {outcome_text}?", yes=yes or record.state != "in_doubt")
    target, place = f"{saga.name} {show(id)}", saga.store.runtime.backend
    with audit_action(audit, "sagas resolve", target, outcome_text, place=place):
        saga.resolve(id, outcome, result=value, who=operator_name())
    report(as_json, f"{show(id)}: {outcome_text}", id=id, resolved=outcome)


def _require_record(saga: Saga[Any], id: str) -> Record:
    record = saga.get(id)
    if record is None:
        hint = "; `list --json` has the ids as they are" if "\\" in id else ""
        raise ConfigurationError(f"there is no saga {saga.name} with id {show(id)!r}{hint}")
    return record


def _load_saga(name: str) -> Saga[Any]:
    return load_program(name, "shop.orders:saga", Saga)


def _quote_for_shell(id: str) -> str:
    """Quote an id for the shell, so that it can be copied into another command."""
    if id.isprintable():
        return shlex.quote(id)
    text = id.replace("\\", "\\\\").replace("'", "\\'")
    # By code points, since \x means a byte to bash and zsh.
    return "$'" + "".join(c if c.isprintable() else f"\\U{ord(c):08x}" for c in text) + "'"


def _row(saga: Saga[Any], record: Record) -> dict[str, Any]:
    """Return the row of a saga. One that cannot be read is shown by its record's key, and does not hide the others."""
    try:
        return _facts(saga, record, saga.log(record))
    except CorruptRecord as error:
        unknown = {"phase": "unreadable", "done": None, "undone": None}
        return {"id": record.key, **_record_facts(saga, record), **unknown, "why": str(error)}


def _record_facts(saga: Saga[Any], record: Record) -> dict[str, Any]:
    return {"state": format_saga_state(record, saga.store.now()), "changed_at": format_iso(record.changed_at)}


def _facts(saga: Saga[Any], record: Record, log: SagaLog) -> dict[str, Any]:
    return {
        "id": log.id,
        **_record_facts(saga, record),
        "phase": log.phase,
        "done": sum(step.do.state == "done" for step in log.entries),
        "undone": sum(step.undo.state == "done" for step in log.entries),
        "why": log.doubt_reason or log.failure_text,
    }


def _part_facts(part: SagaPartView) -> dict[str, Any]:
    return {
        "step": part.step.name,
        "compensation": part.undoes,
        "state": part.progress.state,
        "attempts": part.progress.attempts,
        "began_at": format_iso(part.progress.began),
        "ended_at": format_iso(part.progress.ended),
        "error": part.progress.error,
        "result": json.decode(part.step.result[1:]) if part.step.result is not None and not part.undoes else None,
    }


def _part_cells(screen: Screen, part: SagaPartView, start: int, end: int) -> list[Text]:
    progress = part.progress
    texts = (
        part.title,
        part.state_word,
        str(progress.attempts),
        _began(screen, progress),
        _draw_span(screen, progress, start, end),
        format_span(progress.ended - progress.began) if progress.ended > progress.began > 0 else "-",
    )
    return [*(Text(text, COLOURS.get(part.tone, "")) for text in texts), Text(part.outcome or "-")]


def _began(screen: Screen, progress: StepProgress) -> str:
    """Return when a part began: the whole time in a pipe, the time of day in a terminal, where the date is above."""
    began = format_iso(progress.began)
    if began is None:
        return "-"
    return began.partition("T")[2] if screen.live else began


def _draw_span(screen: Screen, progress: StepProgress, start: int, end: int) -> str:
    """Draw when a part ran, on a scale from the saga's first start to its last end."""
    empty, full = ("·", "█") if screen.boxes else (".", "#")
    columns = _BAR_COLUMNS if screen.width >= _NARROW_SCREEN_COLUMNS else _NARROW_BAR_COLUMNS
    if not progress.began or end <= start:
        return empty * columns
    left = (progress.began - start) * (columns - 1) // (end - start)
    right = max(left, (max(progress.ended, progress.began) - start) * (columns - 1) // (end - start))
    return empty * left + full * (right - left + 1) + empty * (columns - 1 - right)
