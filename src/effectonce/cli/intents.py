"""`effectonce intents`: which are open, which are in doubt, and the operator's decisions on them.

The commands take the program's own ``module:intents``, since it knows the operations, their scopes and their types.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from typing import Annotated, Any

import typer
from msgspec import structs

from effectonce.display.formatting import format_target, format_time
from effectonce.errors import CorruptRecord, NotInDoubt, show
from effectonce.intents.intents import Intents
from effectonce.record import Record, State

from . import options
from .audit import audit_action, operator_name
from .output import print_page, report
from .programs import MAX_COUNTED_RECORDS, list_page, load_program, require_in_doubt, run_recovery
from .terminal import confirm

intents = options.command_group("Calls to outside APIs: which are open, which are in doubt.")

Name = Annotated[
    str, typer.Argument(metavar="MODULE:INTENTS", help="The program's intents, as in shop.billing:intents.")
]


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
    rows = [_facts(program, record) for record in records]
    print_page(as_json, "intents", rows, heads, none=none, cursor=next_cursor)


@intents.command()
def recover(
    name: Name,
    idle: Annotated[str, typer.Option(help="Only what has not changed for this long.")] = "1m",
    dry_run: options.DryRun = False,
    audit: options.AuditFile = None,
    as_json: options.Json = False,
) -> None:
    """Resume everything that a dead process left unfinished. Safe to run several at once, and beside the workers.

    Ctrl-C ends it after the intents that are running.
    """
    program = _load_intents(name)
    unfinished, _ = list_page(program.store, [(scope, None) for scope in program.operations], MAX_COUNTED_RECORDS, None)
    if dry_run:
        report(as_json, f"{len(unfinished):,} are open; nothing was done", open=len(unfinished), dry_run=True)
        return

    def recover_all(stop: Callable[[], bool]) -> Counter[str]:
        counts = Counter(structs.asdict(program.recover(idle=idle, stop=stop)))
        counts.update(structs.asdict(asyncio.run(program.arecover(idle=idle, stop=stop))))
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
    id: Annotated[str, typer.Argument(help="The intent, as `list --in-doubt` shows it.")],
    done: Annotated[str | None, typer.Option(metavar="RESULT", help="It happened; its result, as JSON.")] = None,
    retry: Annotated[bool, typer.Option("--retry", help="Send it again, under a new key.")] = False,
    abandon: options.Abandon = False,
    dry_run: options.DryRun = False,
    yes: options.Yes = False,
    audit: options.AuditFile = None,
    as_json: options.Json = False,
) -> None:
    """Decide an intent that is in doubt, after you have looked it up at the provider. The audit log keeps who did."""
    outcomes = {"done": done is not None, "retry": retry, "abandon": abandon}
    outcome = options.require_one(outcomes, "--done RESULT, --retry or --abandon")
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


def _facts(program: Intents, record: Record) -> dict[str, Any]:
    facts: dict[str, Any] = {
        "id": record.key,
        "state": "in doubt" if record.state == "in_doubt" else "open",
        "operation": record.scope.partition("/")[2],
    }
    try:
        log = program.log(record)
        facts["id"] = program.id_of(record)
    except CorruptRecord as error:  # it must not hide the others
        unread = dict.fromkeys(("key", "sent", "first_sent", "request"))
        return {**facts, **unread, "state": "unreadable", "remark": f"{record.state.replace('_', ' ')}; {error}"}
    return {
        **facts,
        "key": show(log.key, 40),
        "sent": log.send_count,
        "first_sent": format_time(log.first_sent_at) or "never",
        "request": show(log.request[1:].decode("utf-8", "replace"), 120),
        "remark": "" if record.scope in program.operations else "its operation is no longer known",
    }
