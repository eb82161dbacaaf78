"""`effectonce outbox`: the messages that wait in an outbox, and those that are parked."""

from __future__ import annotations

from typing import Annotated, Any, get_args

import typer
from msgspec import structs

from effectonce.contracts.outbox import OutboxBacklog, OutboxEntry, OutboxState
from effectonce.display.formatting import format_ago, format_count, format_iso, format_when
from effectonce.display.terminal import confirm
from effectonce.errors import InvalidOption, show
from effectonce.relay.relay import ask_outbox, unpark
from effectonce.store import Store

from . import options
from .audit import audit_action
from .groups import command_group
from .output import COLOURS, print_figure, print_json, print_page, report
from .progress import Progress

outbox = command_group("An outbox's messages: those that wait, and those that are parked.")

Seqs = Annotated[list[int] | None, typer.Argument(metavar="SEQ", help="The messages' numbers, as list shows them.")]

STATES: tuple[str, ...] = get_args(OutboxState)
_PAGE_SIZE = 1000


@outbox.command()
def stats(
    store_url: options.StoreUrl = None,
    table: options.Table = None,
    as_json: options.Json = False,
) -> None:
    """Count the messages in each state, and show the age of the oldest unpublished one."""
    with options.open_store(store_url) as store:
        backlog: OutboxBacklog = ask_outbox(store, table, lambda port: port.stats())
        now = store.now()
    if as_json:
        age = None if backlog.oldest is None else round((now - backlog.oldest) / 1e6, 3)
        times = {"oldest_at": format_iso(backlog.oldest), "cleaned_at": format_iso(backlog.cleaned_at)}
        print_json({**backlog.counts, "oldest_seconds": age, **times})
        return
    for state, count in backlog.counts.items():
        print_figure(state, format_count(count, backlog.cap), COLOURS.get(state, "") if count else "dim")
    print_figure("oldest", format_when(backlog.oldest, now))
    print_figure("last clean-up", format_when(backlog.cleaned_at, now))


@outbox.command("list")
def list_(
    store_url: options.StoreUrl = None,
    state: Annotated[
        str,
        typer.Option(
            metavar="STATE",
            help=f"List those in this state: {', '.join(STATES)}.",
            autocompletion=list(STATES).copy,
        ),
    ] = "parked",
    limit: options.Limit = 100,
    cursor: options.Cursor = None,
    table: options.Table = None,
    as_json: options.Json = False,
) -> None:
    """List the messages in one state, with the error of those that failed."""
    wanted: Any = state
    if wanted not in STATES:
        raise InvalidOption(f"--state is one of {', '.join(STATES)}, not {show(state)!r}")
    with options.open_store(store_url) as store:
        page = ask_outbox(store, table, lambda port: port.list(wanted, limit, cursor))
        now = store.now()
    rows = [_facts(entry) if as_json else _row(entry, now) for entry in page.entries]
    heads = ("seq", "type", "id", "destination", "ordering_key", "attempts", "written", "error")
    print_page(as_json, "messages", rows, heads, none=f"no message is {state}", cursor=page.cursor)


@outbox.command("unpark")
def unpark_(
    seqs: Seqs = None,
    store_url: options.StoreUrl = None,
    every: Annotated[bool, typer.Option("--all", help="Unpark all that are parked.")] = False,
    table: options.Table = None,
    dry_run: options.DryRun = False,
    audit: options.AuditFile = None,
    as_json: options.Json = False,
) -> None:
    """Publish parked messages again, and then those that wait behind them.

    Example: effectonce outbox unpark 17 18
    """
    numbers = seqs or []
    if bool(numbers) == every:
        raise InvalidOption("name the messages by their numbers (`effectonce outbox list`), or give --all")
    with options.open_store(store_url) as store:
        if dry_run:
            parked = _count_parked(store, table, numbers)
            report(as_json, f"would unpark {parked}", unparked=0, parked=parked, dry_run=True)
            return
        about = " ".join(map(str, numbers)) or "all"
        target = f"{store.runtime.backend!r} {table or 'outbox'}"
        with audit_action(audit, "outbox unpark", target, about), Progress("unparking"):
            count = unpark(store, table, numbers or None)
    report(as_json, f"{count} unparked", unparked=count)


@outbox.command()
def discard(
    seqs: Seqs = None,
    store_url: options.StoreUrl = None,
    table: options.Table = None,
    dry_run: options.DryRun = False,
    yes: options.Yes = False,
    audit: options.AuditFile = None,
    as_json: options.Json = False,
) -> None:
    """Delete parked messages without publishing them. Messages that wait behind them are published next."""
    numbers = seqs or []
    if not numbers:
        raise InvalidOption("name the messages by their numbers: `effectonce outbox list` has them")
    with options.open_store(store_url) as store:
        parked = _count_parked(store, table, numbers)
        if dry_run:
            report(as_json, f"would discard {parked}", discarded=0, parked=parked, dry_run=True)
            return
        confirm(f"Delete {parked} parked messages, which are then never published?", yes=yes)
        about = " ".join(map(str, numbers))
        with audit_action(audit, "outbox discard", f"{store.runtime.backend!r} {table or 'outbox'}", about):
            count = unpark(store, table, numbers, discard=True)
    report(as_json, f"{count} discarded", discarded=count)


def _facts(entry: OutboxEntry) -> dict[str, Any]:
    times = ("created_at", "due_at", "leased_until", "published_at")
    return {**structs.asdict(entry), **{name: format_iso(getattr(entry, name)) for name in times}}


def _row(entry: OutboxEntry, now: int) -> dict[str, Any]:
    return {**structs.asdict(entry), "written": format_ago(entry.created_at, now)}


def _count_parked(store: Store, table: str | None, numbers: list[int]) -> int:
    """Count how many of ``numbers`` are parked; without numbers, how many messages are."""
    if not numbers:
        return ask_outbox(store, table, lambda port: port.stats()).counts.get("parked", 0)
    wanted, count, cursor = set(numbers), 0, None
    while True:
        page = ask_outbox(store, table, lambda port: port.list("parked", _PAGE_SIZE, cursor))  # noqa: B023
        count += sum(entry.seq in wanted for entry in page.entries)
        cursor = page.cursor
        if cursor is None or count == len(wanted):
            return count
