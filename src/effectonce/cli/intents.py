"""`effectonce intents`: which are open or in doubt, the story of one, and the operator's decisions on them.

The commands take the program's own ``module:intents``, since it knows the operations, their scopes and their types.
"""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Callable
from typing import Annotated, Any

import typer
from msgspec import structs

from effectonce.core.shared_loop import shared_loop
from effectonce.display.formatting import (
    format_ago,
    format_error,
    format_failure,
    format_failure_place,
    format_iso,
    format_state,
    format_target,
    format_when,
)
from effectonce.display.terminal import Screen, confirm
from effectonce.display.timeline import record_timeline
from effectonce.errors import CorruptRecord, NotInDoubt, show
from effectonce.intents.intents import Intents
from effectonce.intents.logged_intent import LoggedIntent
from effectonce.record import Record, State

from . import options
from .audit import audit_action, operator_name
from .groups import command_group
from .output import (
    COLOURS,
    decode_stored,
    print_details,
    print_json,
    print_page,
    print_timeline,
    report,
    timeline_facts,
)
from .programs import MAX_COUNTED_RECORDS, list_page, load_program, require_in_doubt, run_recovery

intents = command_group("Calls to outside APIs: list, show, recover, resolve.")

Name = Annotated[
    str, typer.Argument(metavar="MODULE:INTENTS", help="The program's intents, as in shop.billing:intents.")
]
Id = Annotated[str, typer.Argument(metavar="ID", help="The intent, as list shows it.")]

_MAX_LISTED_REQUEST_CHARACTERS = 200


@intents.command("list")
def list_(
    name: Name,
    in_doubt: options.OnlyInDoubt = False,
    limit: options.Limit = 100,
    cursor: options.Cursor = None,
    as_json: options.Json = False,
) -> None:
    """List the intents that are not finished: those in doubt first, then open ones.

    Intents of operations that were renamed or removed come last: the program no longer knows these operations.
    """
    program = _load_intents(name)
    states: list[State | None] = ["in_doubt"] if in_doubt else ["in_doubt", None]
    lists = [
        (scope, state)
        for scopes in (program.operations, program.orphaned_scopes())
        for state in states
        for scope in scopes
    ]
    records, next_cursor = list_page(program.store, lists, limit, cursor)
    heads = ("id", "state", "operation", "key", "sent", "first_sent", "request", "remark")
    none = "nothing is in doubt" if in_doubt else "nothing is open, and nothing is in doubt"
    rows = [_row(program, record, as_json) for record in records]
    print_page(as_json, "intents", rows, heads, none=none, cursor=next_cursor)


@intents.command("show")
def show_(name: Name, id: Id, as_json: options.Json = False) -> None:
    """Show one intent: its provider, its sends, its provider key, its timeline, and what to do next. Exit code 1 if
    there is none.

    Example: effectonce intents show shop.billing:intents ID
    """
    program = _load_intents(name)
    record = program.get(id)
    if record is None:
        report(as_json, f"there is no intent {show(id)!r}: effectonce intents list {show(name)}", intent=None)
        raise typer.Exit(1)
    log, now = program.log(record), program.store.now()
    facts = _facts(program, record, log, id)
    moments, next_step = record_timeline(record, log), _next_step(program, record, log, name, id, now)
    if as_json:
        print_json({**facts, "timeline": timeline_facts(moments), "next_step": next_step})
        return
    screen = Screen()
    screen.print(f"{show(record.scope.partition('/')[2])} {show(log.key)}", "bold")
    state = format_state(record, now)
    screen.print(state, COLOURS.get(record.state, ""))
    times = {"first_sent_at": format_when(log.first_sent_at, now) or "never"}
    if facts["key_kept_until"]:
        times["key_kept_until"] = format_when(_key_kept_until(program, record, log), now)
    print_details({name: fact for name, fact in {**facts, **times}.items() if name != "state" and fact is not None})
    screen.print()
    print_timeline(moments, now)
    screen.print(f"\nnext: {next_step}")


@intents.command()
def recover(
    name: Name,
    idle: Annotated[str, typer.Option(metavar="SPAN", help="Resume only what has not changed for this long.")] = "1m",
    dry_run: options.DryRun = False,
    audit: options.AuditFile = None,
    as_json: options.Json = False,
) -> None:
    """Resume everything that a dead process left unfinished. Several may run at once, also beside workers.

    Ctrl-C ends it after the intents that are running.
    """
    program = _load_intents(name)
    unfinished, _ = list_page(program.store, [(scope, None) for scope in program.operations], MAX_COUNTED_RECORDS, None)
    if dry_run:
        report(as_json, f"{len(unfinished):,} are open; nothing was done", open=len(unfinished), dry_run=True)
        return

    def recover_all(stop: Callable[[], bool]) -> Counter[str]:
        counts = Counter(structs.asdict(program.recover(idle=idle, stop=stop)))
        counts.update(structs.asdict(shared_loop.run(program.arecover(idle=idle, stop=stop))))
        return counts

    run_recovery(
        recover_all,
        action="intents recover",
        target=name,
        store=program.store,
        scopes=program.operations,
        unfinished=len(unfinished),
        audit=audit,
        as_json=as_json,
    )


@intents.command()
def resolve(
    name: Name,
    id: Id,
    done: Annotated[str | None, typer.Option(metavar="JSON", help="It happened, and this is its result.")] = None,
    retry: options.Retry = False,
    abandon: options.Abandon = False,
    dry_run: options.DryRun = False,
    yes: options.Yes = False,
    audit: options.AuditFile = None,
    as_json: options.Json = False,
) -> None:
    """Decide an intent that is in doubt, after you have looked it up at the provider. The audit log records who
    decided.

    Example: effectonce intents resolve shop.billing:intents ID --done '"ch_1"'
    """
    outcomes = {"done": done is not None, "retry": retry, "abandon": abandon}
    outcome = options.require_one(outcomes, "--done JSON, --retry or --abandon")
    result: Any = options.parse_json(done, "--done") if done is not None else ...
    program = _load_intents(name)
    record = program.get(id)
    if record is None:
        raise NotInDoubt(
            f"there is no intent {show(id)!r}; list them with: effectonce intents list {show(name)} --in-doubt"
        )
    if dry_run:
        require_in_doubt(program.store, record.scope, id)
        text = f"{show(id)} is {record.state.replace('_', ' ')}: would resolve it as {outcome}"
        report(as_json, text, id=id, state=record.state, resolved=None, dry_run=True)
        return
    warning = " It is sent again, under a new key." if retry else ""
    confirm(f"Resolve {show(id)} as {outcome}?{warning}", yes=yes or record.state != "in_doubt")
    target, place = format_target(record.scope, id), program.store.runtime.backend
    with audit_action(audit, "intents resolve", target, outcome, place=place):
        program.resolve(id, outcome, result=result, who=operator_name())
    report(as_json, f"{show(id)}: {outcome}", id=id, resolved=outcome)


def _load_intents(name: str) -> Intents:
    return load_program(name, "shop.billing:intents", Intents)


def _row(program: Intents, record: Record, as_json: bool) -> dict[str, Any]:
    """Return the row of an intent; for people with its age, and without a long request, which `show` prints."""
    facts: dict[str, Any] = {
        "id": record.key,
        "state": "in doubt" if record.state == "in_doubt" else "open",
        "operation": record.scope.partition("/")[2],
    }
    first_sent = "first_sent_at" if as_json else "first_sent"
    try:
        log = program.log(record)
        facts["id"] = program.id_of(record)
    except CorruptRecord as error:  # it must not hide the others
        unread = dict.fromkeys(("key", "sent", first_sent, "request"))
        return {**facts, **unread, "state": "unreadable", "remark": f"{record.state.replace('_', ' ')}; {error}"}
    request = log.request[1:].decode("utf-8", "replace")
    if not as_json and len(request) > _MAX_LISTED_REQUEST_CHARACTERS:
        request = f"{len(request):,} characters, see: effectonce intents show"
    return {
        **facts,
        "key": log.key,
        "sent": log.send_count,
        first_sent: format_iso(log.first_sent_at) if as_json else format_ago(log.first_sent_at) or "never",
        "request": request,
        "remark": "" if record.scope in program.operations else "its operation is no longer known",
    }


def _facts(program: Intents, record: Record, log: LoggedIntent, id: str) -> dict[str, Any]:
    operation = program.operations.get(record.scope)
    is_keyed = operation is not None and operation.rules.keyed
    return {
        "id": id,
        "state": record.state,
        "operation": record.scope.partition("/")[2],
        "provider": operation.provider.name if operation is not None else None,
        "key": log.key,
        "account": log.account or None,
        "step": log.step or None,
        "provider_key": operation.rules.provider_key(log) if operation is not None and is_keyed else None,
        "key_kept_until": format_iso(_key_kept_until(program, record, log)),
        "attempts": record.attempts,
        "sent": log.send_count,
        "first_sent_at": format_iso(log.first_sent_at),
        "generation": record.generation,
        "request": decode_stored(log.request),
        "result": decode_stored(record.result),
        "error": format_error(*format_failure(record)) if record.error is not None else None,
        "raised_at": format_failure_place(record) or None,
    }


def _key_kept_until(program: Intents, record: Record, log: LoggedIntent) -> int | None:
    """Return until when the intent may be sent again under its provider key, in microseconds since the epoch."""
    operation = program.operations.get(record.scope)
    if operation is None or not operation.rules.keyed or not log.first_sent_at:
        return None
    return log.first_sent_at + operation.rules.window_us - operation.rules.margin_us


def _next_step(program: Intents, record: Record, log: LoggedIntent, name: str, id: str, now: int) -> str:
    """Return what the operator can do about an intent, in one sentence."""
    operation = program.operations.get(record.scope)
    if record.state == "done":
        return "nothing to do: it is done, and duplicates get its result"
    if record.state == "failed":
        return "nothing to do: it failed for good, and duplicates get its error"
    if record.state == "in_doubt":
        provider = operation.provider.name if operation is not None else "the provider"
        words = f"{shlex.quote(show(name))} {shlex.quote(show(id))}"
        return f"look it up at {provider}, then: effectonce intents resolve {words} --done JSON | --retry | --abandon"
    if operation is None:
        return "deploy a program that has the operation under its old name: only that can resume it"
    if record.state == "claimed" and (record.lease_until or 0) > now:
        return f"wait: a process runs it; its lease ends {format_ago(record.lease_until, now)}"
    resume = f"its next delivery resumes it, or: effectonce intents recover {shlex.quote(show(name))}"
    if operation.rules.decide_next(log, now) == "send":
        return f"{resume}; it is sent {'again under the same key' if log.send_count else 'for the first time'}"
    if operation.reconciler is not None:
        return f"{resume}; the reconciler looks it up first"
    return f"{resume}; it becomes in doubt, since a resend might repeat its effect"
