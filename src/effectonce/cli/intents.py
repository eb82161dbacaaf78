"""`effectonce intents`: what is open, what is in doubt, and the operator's word on it.

The commands take the program's own ``module:intents``, since it knows the operations, their scopes and their types.
"""

from __future__ import annotations

import asyncio
import getpass
import socket
from datetime import UTC, datetime
from typing import Annotated, Any, Literal

import typer
from msgspec import json

from effectonce.errors import ConfigurationError, show
from effectonce.intents import Intents
from effectonce.loading import named
from effectonce.record import Record

from .terminal import Cell, Screen, table

intents = typer.Typer(help="Calls to outside APIs: what is open, what is in doubt.", no_args_is_help=True)

Name = Annotated[
    str, typer.Argument(metavar="MODULE:INTENTS", help="The program's intents, as in shop.billing:intents.")
]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON object.")]


@intents.command("list")
def list_(
    name: Name,
    in_doubt: Annotated[bool, typer.Option("--in-doubt", help="Only those that wait for an operator.")] = False,
    limit: Annotated[int, typer.Option(min=1, max=1000)] = 100,
    as_json: Json = False,
) -> None:
    """Intents that are not finished: open ones, and those in doubt."""
    found = _found(name)
    records = found.in_doubt(limit)
    if not in_doubt:
        records += [record for operation in found.operations.values() for record in operation.unfinished()][:limit]
    rows = [_facts(found, record) for record in records]
    if as_json:
        print(json.encode({"intents": rows}).decode())
        return
    screen = Screen()
    if not rows:
        screen.say("nothing is in doubt" if in_doubt else "nothing is open, and nothing is in doubt")
        return
    heads = ("id", "state", "operation", "key", "sent", "request")
    for line in table(screen, heads, [[Cell(str(row[head])) for head in heads] for row in rows]):
        screen.say(line)


@intents.command()
def recover(
    name: Name,
    idle: Annotated[str, typer.Option(help="Only what nobody has touched for so long.")] = "1m",
    as_json: Json = False,
) -> None:
    """Go on with everything that a dead process left. Safe to run several at once, and beside the workers."""
    found = _found(name)
    sync, later = found.recover(idle=idle), asyncio.run(found.arecover(idle=idle))
    facts = {field: getattr(sync, field) + getattr(later, field) for field in sync.__struct_fields__}
    if as_json:
        print(json.encode(facts).decode())
    else:
        Screen().say(", ".join(f"{number} {field.replace('_', ' ')}" for field, number in facts.items()))


@intents.command()
def resolve(
    name: Name,
    id: Annotated[str, typer.Argument(help="The intent, as `list --in-doubt` shows it.")],
    done: Annotated[
        str | None, typer.Option("--done", metavar="RESULT", help="It happened; its result, as JSON.")
    ] = None,
    retry: Annotated[bool, typer.Option("--retry", help="Send it again, under a new key.")] = False,
    abandon: Annotated[bool, typer.Option("--abandon", help="Give it up: it counts as failed.")] = False,
    as_json: Json = False,
) -> None:
    """Decide what is in doubt, after you have looked it up at the provider. Who decided what is logged."""
    chosen: list[Literal["done", "retry", "abandon"]] = []
    if done is not None:
        chosen.append("done")
    if retry:
        chosen.append("retry")
    if abandon:
        chosen.append("abandon")
    if len(chosen) != 1:
        raise ConfigurationError("say one thing: --done RESULT, --retry or --abandon")
    result: Any = ...
    if done is not None:
        try:
            result = json.decode(done)
        except ValueError as error:
            raise ConfigurationError(f"--done takes JSON, and {show(done)!r} is none: {error}") from error
    found = _found(name)
    found.resolve(id, chosen[0], result=result, who=f"{getpass.getuser()}@{socket.gethostname()}")
    if as_json:
        print(json.encode({"id": id, "resolved": chosen[0]}).decode())
    else:
        Screen().say(f"{id}: {chosen[0]}")


def _found(name: str) -> Intents:
    found = named(name, "shop.billing:intents")
    if not isinstance(found, Intents):
        raise ConfigurationError(f"{show(name)!r} is a {type(found).__name__}, and not Intents")
    return found


def _facts(found: Intents, record: Record) -> dict[str, Any]:
    about = found.log(record)
    sent_at = about.first_sent_at
    return {
        "id": found.id_of(record),
        "state": "in doubt" if record.state == "in_doubt" else "open",
        "operation": record.scope.partition("/")[2],
        "key": show(about.key, 40),
        "sent": about.send_count,
        "first_sent": datetime.fromtimestamp(sent_at / 1e6, UTC).isoformat(" ", "seconds") if sent_at else "never",
        "request": show(about.request[1:].decode("utf-8", "replace"), 120),
    }
