"""`effectonce intents`: what is open, what is in doubt, and the operator's word on it.

The commands take the program's own ``module:intents``, since it knows the operations, their scopes and their types.
"""

from __future__ import annotations

import asyncio
from typing import Annotated, Any

import typer

from effectonce.core.registry import named
from effectonce.errors import ConfigurationError, CorruptRecord, NotInDoubt, show
from effectonce.intents.intents import Intents
from effectonce.record import Record, State

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
from .terminal import bar, confirm

intents = group("Calls to outside APIs: what is open, what is in doubt.")

Name = Annotated[
    str, typer.Argument(metavar="MODULE:INTENTS", help="The program's intents, as in shop.billing:intents.")
]


@intents.command("list")
def list_(
    name: Name,
    in_doubt: Annotated[bool, typer.Option("--in-doubt", help="Only those that wait for an operator.")] = False,
    limit: Limit = 100,
    cursor: Cursor = None,
    as_json: Json = False,
) -> None:
    """Intents that are not finished: open ones, and those in doubt, which come first.

    At the end, the same of operations that were renamed or removed: the program does not know them any more.
    """
    found = _found(name)
    states: list[State | None] = ["in_doubt"] if in_doubt else ["in_doubt", None]
    lists = [(scope, state) for scopes in (found.operations, found.orphaned()) for state in states for scope in scopes]
    records, following = paged(found.store, lists, limit, cursor)
    heads = ("id", "state", "operation", "key", "sent", "first_sent", "request", "remark")
    none = "nothing is in doubt" if in_doubt else "nothing is open, and nothing is in doubt"
    rows = [_facts(found, record) for record in records]
    listing(
        as_json,
        "intents",
        rows,
        heads,
        none=none,
        cursor=following,
        colours={"in doubt": "yellow", "unreadable": "red"},
    )


@intents.command()
def recover(
    name: Name,
    idle: Annotated[str, typer.Option(help="Only what nobody has touched for so long.")] = "1m",
    dry_run: DryRun = False,
    audit: AuditFile = None,
    as_json: Json = False,
) -> None:
    """Go on with everything that a dead process left. Safe to run several at once, and beside the workers.

    Ctrl-C ends it after what is on its way.
    """
    found = _found(name)
    left, _ = paged(found.store, [(scope, None) for scope in found.operations], COUNTED, None)
    if dry_run:
        report(as_json, f"{len(left):,} are open; nothing was done", open=len(left), dry_run=True)
        return
    with audited(audit, "intents recover", name, place=found.store.runtime.backend), Patience() as patience:
        with bar("recovering", len(left)) as advance:
            found.store.add_hook(
                lambda event: advance(1) if event.kind in ENDS and event.scope in found.operations else None
            )
            sync = found.recover(idle=idle, stop=patience.asked)
            later = asyncio.run(found.arecover(idle=idle, stop=patience.asked))
        tally(as_json, {field: getattr(sync, field) + getattr(later, field) for field in sync.__struct_fields__})
        patience.leave()


@intents.command()
def resolve(
    name: Name,
    id: Annotated[str, typer.Argument(help="The intent, as `list --in-doubt` shows it.")],
    done: Annotated[
        str | None,
        typer.Option("--done", metavar="RESULT", show_default=False, help="It happened; its result, as JSON."),
    ] = None,
    retry: Annotated[bool, typer.Option("--retry", help="Send it again, under a new key.")] = False,
    abandon: Annotated[bool, typer.Option("--abandon", help="Give it up: it counts as failed.")] = False,
    dry_run: DryRun = False,
    yes: Yes = False,
    audit: AuditFile = None,
    as_json: Json = False,
) -> None:
    """Decide what is in doubt, after you have looked it up at the provider. Who decided what is logged."""
    words = {"done": done is not None, "retry": retry, "abandon": abandon}
    word = chosen(words, "--done RESULT, --retry or --abandon")
    result: Any = json_value(done, "--done") if done is not None else ...
    found = _found(name)
    record = found.get(id)
    if record is None:
        raise NotInDoubt(
            f"no intent is known by {show(id)!r}; look at: effectonce intents list {show(name)} --in-doubt"
        )
    if dry_run:
        require_in_doubt(found.store, record.scope, id)
        text = f"{show(id)} is {record.state.replace('_', ' ')}: would resolve it as {word}"
        report(as_json, text, id=id, state=record.state, resolved=None, dry_run=True)
        return
    confirm(
        f"Resolve {show(id)} as {word}?" + (" It is sent again, under a new key." if retry else ""),
        yes=yes or record.state != "in_doubt",
    )
    target = f"{show(record.scope)} {show(id)}"
    with audited(audit, "intents resolve", target, word, place=found.store.runtime.backend):
        found.resolve(id, word, result=result, who=operator())
    report(as_json, f"{show(id)}: {word}", id=id, resolved=word)


def _found(name: str) -> Intents:
    found = named(name, "shop.billing:intents")
    if not isinstance(found, Intents):
        raise ConfigurationError(f"{show(name)!r} is a {type(found).__name__}, and not Intents")
    return found


def _facts(found: Intents, record: Record) -> dict[str, Any]:
    facts: dict[str, Any] = {
        "id": record.key,
        "state": "in doubt" if record.state == "in_doubt" else "open",
        "operation": record.scope.partition("/")[2],
    }
    try:
        about = found.log(record)
        facts["id"] = found.id_of(record)
    except CorruptRecord as error:  # the others are listed all the same
        unread = dict.fromkeys(("key", "sent", "first_sent", "request"))
        return {**facts, **unread, "state": "unreadable", "remark": f"{record.state.replace('_', ' ')}; {error}"}
    return {
        **facts,
        "key": show(about.key, 40),
        "sent": about.send_count,
        "first_sent": moment(about.first_sent_at) if about.first_sent_at else "never",
        "request": show(about.request[1:].decode("utf-8", "replace"), 120),
        "remark": "" if record.scope in found.operations else "its operation is not known any more",
    }
