"""`effectonce sagas`: what is on its way, how one saga went, and the operator's word on it.

The commands take the program's own ``module:saga``, since it knows the steps and what undoes them.
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
    COUNTED,
    ENDS,
    AuditFile,
    Cursor,
    DryRun,
    Json,
    Limit,
    Patience,
    Yes,
    audited,
    chosen,
    group,
    json_value,
    listing,
    moment,
    operator,
    paged,
    report,
    tally,
)
from .records import require_in_doubt
from .terminal import Cell, Colour, Screen, bar, confirm, table

sagas = group("Sagas: what is on its way, what is in doubt, and how one went.")

Name = Annotated[str, typer.Argument(metavar="MODULE:SAGA", help="The program's saga, as in shop.orders:saga.")]
Id = Annotated[str, typer.Argument(help="The saga's id, as `list` shows it. One that begins with - comes after --.")]

_COLOURS: dict[str, Colour] = {"done": "green", "failed": "red", "timed_out": "red", "in doubt": "yellow"}
_BAR = 24
_LONGEST = 300  # characters that a cell of a table has


@sagas.command("list")
def list_(
    name: Name,
    in_doubt: Annotated[bool, typer.Option("--in-doubt", help="Only those that wait for an operator.")] = False,
    everything: Annotated[bool, typer.Option("--all", help="Finished ones as well, while they are kept.")] = False,
    limit: Limit = 100,
    cursor: Cursor = None,
    as_json: Json = False,
) -> None:
    """Sagas that are not finished: on their way, and in doubt, which come first."""
    found = _found(name)
    states: list[State | None] = ["in_doubt"] if in_doubt else ["in_doubt", None]
    if everything and not in_doubt:
        states += ["done", "failed"]
    records, following = paged(found.store, [(found.scope, state) for state in states], limit, cursor)
    rows = [_row(found, record) for record in records if record.note is not None]
    if not as_json:
        rows = [{**row, "id": _quoted(row["id"])} for row in rows]
        if any(len(row["id"]) > _LONGEST for row in rows):
            print("an id that ends in … is longer: --json tells it", file=sys.stderr)
    heads = ("id", "state", "phase", "done", "undone", "changed", "why")
    none = "nothing is in doubt" if in_doubt else "nothing is on its way, and nothing is in doubt"
    listing(as_json, "sagas", rows, heads, none=none, cursor=following, colours=_COLOURS)


@sagas.command("show")
def show_(name: Name, id: Id, as_json: Json = False) -> None:
    """One saga, step by step, on its timeline."""
    found = _found(name)
    record = _known(found, id)
    log = found.log(record)
    facts = {**_facts(record, log), "version": log.version, "input": json.decode(log.input)}
    parts = _parts(log)
    if as_json:
        print(json.encode({**facts, "timeline": [_part_facts(*each) for each in parts]}).decode())
        return
    screen = Screen()
    screen.say(f"{found.name} {show(log.id)}: {facts['state']}{', ' + facts['why'] if facts['why'] else ''}", "bold")
    screen.say(f"input {show(log.input.decode('utf-8', 'replace'), screen.width - 7)}", "dim")
    begun = [part for _, part, _ in parts if part.began]
    start, end = min((part.began for part in begun), default=0), max((part.ended for part in begun), default=0)
    rows = []
    for entry, part, undo in parts:
        label = f"undo {entry.name}" if undo else entry.name
        state = "in doubt" if record.state == "in_doubt" and part is log.find_doubtful()[1] else part.state
        took = readable(part.ended - part.began) if part.ended > part.began > 0 else "-"
        told = part.error or (entry.result or b"")[1:].decode("utf-8", "replace") if not undo else part.error
        cells = [label, state, str(part.attempts), _clock(part.began), _bar(screen, part, start, end), took]
        rows.append([Cell(text, _COLOURS.get(state, "")) for text in cells] + [Cell(show(told or "-", 200))])
    for line in table(screen, ("step", "state", "tries", "began", "timeline", "took", "what came of it"), rows):
        screen.say(line)


@sagas.command()
def resume(name: Name, dry_run: DryRun = False, audit: AuditFile = None, as_json: Json = False) -> None:
    """Go on with everything that was started, or left by a dead process. Safe to run several at once.

    Ctrl-C ends it after what is on its way.
    """
    found = _found(name)
    left = sum(1 for _ in islice(found.records("open"), COUNTED))
    if dry_run:
        report(as_json, f"{left:,} are on their way; nothing was done", open=left, dry_run=True)
        return
    with audited(audit, "sagas resume", show(name), place=found.store.engine.backend), Patience() as patience:
        with bar("resuming", left) as advance:
            found.store.add_hook(
                lambda event: advance(1) if event.kind in ENDS and event.scope == found.scope else None
            )
            stop = patience.asked
            came = asyncio.run(found.aresume(stop=stop)) if found.is_async else found.resume(stop=stop)
        tally(as_json, structs.asdict(came))
        patience.leave()


@sagas.command()
def compensate(
    name: Name, id: Id, dry_run: DryRun = False, yes: Yes = False, audit: AuditFile = None, as_json: Json = False
) -> None:
    """Turn a saga around that is not finished: undo what is done, in reverse order. Ctrl-C waits for that."""
    found = _found(name)
    record = _known(found, id)
    log = found.log(record)
    undo = [entry.name for entry in reversed(log.entries) if entry.do.state == "done"]
    unfinished = record.state in ("claimed", "free")  # of others the saga itself says why they stay as they are
    if dry_run:
        running = record.state == "claimed" and (record.lease_until or 0) > found.store.now()
        stays = running or not unfinished
        text = f"would undo, of {show(id)}: {', '.join(undo) or 'nothing'}"
        if stays:
            text = f"{show(id)} is {_facts(record, log)['state']}: it would stay as it is"
        report(as_json, text, id=id, compensated=False, undo=[] if stays else undo, dry_run=True)
        if stays:
            raise typer.Exit(1)
        return
    confirm(f"Undo {', '.join(undo) or 'what is done'} of {show(id)}?", yes=yes or not unfinished)
    target = f"{found.name} {show(id)}"
    with audited(audit, "sagas compensate", target, place=found.store.engine.backend), Patience():
        if found.is_async:
            asyncio.run(found.acompensate(id))
        else:
            found.compensate(id)
    report(as_json, f"{show(id)}: compensated", id=id, compensated=True)


@sagas.command()
def resolve(
    name: Name,
    id: Id,
    done: Annotated[bool, typer.Option("--done", help="It happened; or: the compensation was done by hand.")] = False,
    result: Annotated[
        str | None,
        typer.Option("--result", metavar="JSON", show_default=False, help="With --done: what the step gave."),
    ] = None,
    not_done: Annotated[bool, typer.Option("--not-done", help="It did not happen: compensate the rest.")] = False,
    retry: Annotated[bool, typer.Option("--retry", help="Run it again, under a new provider key.")] = False,
    abandon: Annotated[bool, typer.Option("--abandon", help="Give the saga up: failed, nothing more undone.")] = False,
    dry_run: DryRun = False,
    yes: Yes = False,
    audit: AuditFile = None,
    as_json: Json = False,
) -> None:
    """Decide the step or compensation that is in doubt. The next resume goes on. Who decided what is logged."""
    words = {"done": done, "not_done": not_done, "retry": retry, "abandon": abandon}
    word: SagaDecision = chosen(words, "--done [--result JSON], --not-done, --retry or --abandon")
    if result is not None and word != "done":
        raise ConfigurationError("--result goes with --done: it is what the step gave; nothing was changed")
    value = None if result is None else json_value(result, "--result")
    found = _found(name)
    record = _known(found, id)
    said = word.replace("_", " ")
    if dry_run:
        require_in_doubt(found.store, found.scope, id)
        text = f"{show(id)} is {record.state.replace('_', ' ')}: would resolve it as {said}"
        report(as_json, text, id=id, state=record.state, resolved=None, dry_run=True)
        return
    confirm(f"Resolve {show(id)} as {said}?", yes=yes or record.state != "in_doubt")
    with audited(audit, "sagas resolve", f"{found.name} {show(id)}", said, place=found.store.engine.backend):
        found.resolve(id, word, result=value, who=operator())
    report(as_json, f"{show(id)}: {said}", id=id, resolved=word)


def _known(found: Saga[Any], id: str) -> Record:
    record = found.get(id)
    if record is None:
        hint = "; `list --json` has the ids as they are" if "\\" in id or id.endswith("…") else ""
        raise ConfigurationError(f"no saga {found.name} is known by {show(id)!r}{hint}")
    return record


def _found(name: str) -> Saga[Any]:
    found = named(name, "shop.orders:saga")
    if not isinstance(found, Saga):
        raise ConfigurationError(f"{show(name)!r} is a {type(found).__name__}, and not a Saga")
    return found


def _quoted(id: str) -> str:
    """An id as a shell takes it, so that the other commands know what was copied from here."""
    if id.isprintable():
        return shlex.quote(id)
    text = id.replace("\\", "\\\\").replace("'", "\\'")
    return "$'" + "".join(c if c.isprintable() else _escaped(c) for c in text) + "'"


def _escaped(c: str) -> str:
    """As bash and zsh read it; by its number, since \\x means a byte to them."""
    return {"\n": "\\n", "\r": "\\r", "\t": "\\t"}.get(c) or f"\\U{ord(c):08x}"


def _row(found: Saga[Any], record: Record) -> dict[str, Any]:
    """One that cannot be read hides no other. With ``private=`` its id is not known then: its record's key is shown."""
    try:
        return _facts(record, found.log(record))
    except CorruptRecord as error:
        unknown = {"phase": "unreadable", "done": None, "undone": None}
        return {"id": record.key, **_outside(record), **unknown, "why": str(error)}


def _outside(record: Record) -> dict[str, Any]:
    return {
        "state": {"in_doubt": "in doubt", "free": "waiting", "claimed": "running"}.get(record.state, record.state),
        "changed": moment(record.changed_at),
    }


def _facts(record: Record, log: SagaLog) -> dict[str, Any]:
    return {
        "id": log.id,
        **_outside(record),
        "phase": log.phase,
        "done": sum(entry.do.state == "done" for entry in log.entries),
        "undone": sum(entry.undo.state == "done" for entry in log.entries),
        "why": log.doubt or log.why,
    }


def _parts(log: SagaLog) -> list[tuple[LoggedStep, StepProgress, bool]]:
    """Steps, then compensations, in the order in which they run."""
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


def _bar(screen: Screen, part: StepProgress, start: int, end: int) -> str:
    """When it ran, between the first thing that began and the last that ended."""
    empty, full = ("·", "█") if screen.boxes else (".", "#")
    if not part.began or end <= start:
        return empty * _BAR
    left = (part.began - start) * (_BAR - 1) // (end - start)
    right = max(left, (max(part.ended, part.began) - start) * (_BAR - 1) // (end - start))
    return empty * left + full * (right - left + 1) + empty * (_BAR - 1 - right)
