"""`effectonce outbox`: what waits in an outbox, and what was parked there."""

from __future__ import annotations

from typing import Annotated, Any, get_args

import typer
from msgspec import json, structs

from effectonce.contracts.outbox import OutboxBacklog, OutboxEntry, OutboxState
from effectonce.errors import InvalidOption, show
from effectonce.relay.relay import ask_outbox, unpark
from effectonce.store import Store

from .options import (
    AuditFile,
    Cursor,
    DryRun,
    Json,
    Limit,
    StoreUrl,
    Url,
    Yes,
    audited,
    away,
    group,
    listing,
    opened,
    report,
)
from .terminal import Screen, bar, confirm

outbox = group("What waits in an outbox, and what was parked there.")

Table = Annotated[
    str | None, typer.Option(help="The outbox, where it is not the one that `migrate` made.", show_default=False)
]
Seqs = Annotated[
    list[str] | None,
    typer.Argument(metavar="URL SEQ…", show_default=False, help="The messages' numbers, as `list` shows them."),
]

STATES: tuple[str, ...] = get_args(OutboxState)
_MOST = 1000


@outbox.command()
def stats(url: Url = None, store: StoreUrl = None, table: Table = None, as_json: Json = False) -> None:
    """How many messages there are in each state, and how old the oldest is that has not left."""
    with opened(url, store) as found:
        told: OutboxBacklog = ask_outbox(found, table, lambda port: port.stats())
        now = found.now()
    if as_json:
        age = None if told.oldest is None else round((now - told.oldest) / 1e6, 3)
        print(json.encode({**told.counts, "oldest_seconds": age, "cleaned_at": told.cleaned_at}).decode())
        return
    for state, count in told.counts.items():
        line = f"{state:<16}{count:>10,}{'+' if count >= told.cap else ''}"
        print(Screen().paint(line, "dim" if not count else "yellow" if state == "parked" else ""))
    print(f"{'oldest':<16}{away(told.oldest, now):>10}")
    print(f"{'last clean-up':<16}{away(told.cleaned_at, now):>10}")


@outbox.command("list")
def list_(
    url: Url = None,
    store: StoreUrl = None,
    state: Annotated[str, typer.Option(help=f"Which: {', '.join(STATES)}.")] = "parked",
    limit: Limit = 100,
    cursor: Cursor = None,
    table: Table = None,
    as_json: Json = False,
) -> None:
    """The messages in one state, with the error of those that failed."""
    wanted: Any = state
    if wanted not in STATES:
        raise InvalidOption(f"--state is one of {', '.join(STATES)}, not {show(state)!r}")
    with opened(url, store) as found:
        page = ask_outbox(found, table, lambda port: port.list(wanted, limit, cursor))
        now = found.now()
    rows = [_row(entry, now) for entry in page.entries]
    heads = ("seq", "type", "id", "destination", "ordering_key", "attempts", "written", "error")
    listing(as_json, "messages", rows, heads, none=f"no message is {state}", cursor=page.cursor)


def _row(entry: OutboxEntry, now: int) -> dict[str, Any]:
    return {**structs.asdict(entry), "written": away(entry.created_at, now)}


@outbox.command("unpark")
def unpark_(
    seqs: Seqs = None,
    store: StoreUrl = None,
    every: Annotated[bool, typer.Option("--all", help="All that are parked.")] = False,
    table: Table = None,
    dry_run: DryRun = False,
    audit: AuditFile = None,
    as_json: Json = False,
) -> None:
    """Try parked messages again; those that wait behind them follow."""
    url, numbers = _split(seqs)
    if bool(numbers) == every:
        raise InvalidOption("name the messages by their numbers (`effectonce outbox list`), or say --all")
    with opened(url, store) as found:
        if dry_run:
            parked = _parked(found, table, numbers)
            report(as_json, f"would unpark {parked}", unparked=0, parked=parked, dry_run=True)
            return
        about = " ".join(map(str, numbers)) or "all"
        target = f"{found.engine.backend!r} {table or 'outbox'}"
        with audited(audit, "outbox unpark", target, about), bar("unparking"):
            count = unpark(found, table, numbers or None)
    report(as_json, f"{count} unparked", unparked=count)


@outbox.command()
def discard(
    seqs: Seqs = None,
    store: StoreUrl = None,
    table: Table = None,
    dry_run: DryRun = False,
    yes: Yes = False,
    audit: AuditFile = None,
    as_json: Json = False,
) -> None:
    """Delete parked messages, which then never leave; those that wait behind them follow."""
    url, numbers = _split(seqs)
    if not numbers:
        raise InvalidOption("name the messages by their numbers: `effectonce outbox list` has them")
    with opened(url, store) as found:
        parked = _parked(found, table, numbers)
        if dry_run:
            report(as_json, f"would discard {parked}", discarded=0, parked=parked, dry_run=True)
            return
        confirm(f"Delete {parked} parked messages, which then never leave?", yes=yes)
        about = " ".join(map(str, numbers))
        with audited(audit, "outbox discard", f"{found.engine.backend!r} {table or 'outbox'}", about):
            count = unpark(found, table, numbers, discard=True)
    report(as_json, f"{count} discarded", discarded=count)


def _split(words: list[str] | None) -> tuple[str | None, list[int]]:
    """The URL, where it stands first, and the numbers."""
    url, *rest = words if words and "://" in words[0] else [None, *(words or ())]
    try:
        return url, [int(word or "") for word in rest]
    except ValueError:
        raise InvalidOption("messages are named by their numbers: `effectonce outbox list` has them") from None


def _parked(store: Store, table: str | None, numbers: list[int]) -> int:
    """How many of ``numbers`` (none: of all) are parked."""
    if not numbers:
        return ask_outbox(store, table, lambda port: port.stats()).counts.get("parked", 0)
    wanted, found, cursor = set(numbers), 0, None
    while True:
        page = ask_outbox(store, table, lambda port: port.list("parked", _MOST, cursor))  # noqa: B023
        found += sum(entry.seq in wanted for entry in page.entries)
        cursor = page.cursor
        if cursor is None or found == len(wanted):
            return found
