"""`effectonce inbox`: the messages that were handled in a transaction (mode T)."""

from __future__ import annotations

from typing import Annotated, Any, get_args

import typer

from effectonce.display.formatting import format_ago, format_iso, format_target, format_when
from effectonce.display.terminal import Screen, confirm
from effectonce.errors import InvalidOption, show
from effectonce.inbox.admin import InboxAdmin, InboxEntry, InboxState, PurgePreview
from effectonce.values.durations import format_span, micros

from . import options
from .audit import audit_action
from .groups import command_group
from .interrupts import GracefulInterrupt
from .output import decode_stored, print_details, print_json, print_page, report
from .progress import Progress

inbox = command_group("Messages that were handled in a transaction: list, show, purge.")

Table = Annotated[
    str | None,
    typer.Option("--table", metavar="TABLE", help="The inbox's table, if it is not the one that migrate makes."),
]

STATES: tuple[str, ...] = get_args(InboxState)


@inbox.command("list")
def list_(
    store_url: options.StoreUrl = None,
    scope: options.OnlyScope = None,
    state: Annotated[
        str,
        typer.Option(
            metavar="STATE",
            help=f"List those in this state: {', '.join(STATES)}.",
            autocompletion=list(STATES).copy,
        ),
    ] = "handled",
    older_than: options.OlderThan = None,
    newer_than: options.NewerThan = None,
    limit: options.Limit = 100,
    cursor: options.Cursor = None,
    table: Table = None,
    as_json: options.Json = False,
) -> None:
    """List the messages in one state, a page at a time: those that expire last come first.

    Where all scopes have one retention, that is the newest first. Expired messages are recognised until they are
    purged. Unfinished messages were started and not handled: workers, and handlers with max_attempts, count those.
    """
    wanted: Any = state
    if wanted not in STATES:
        raise InvalidOption(f"--state is one of {', '.join(STATES)}, not {show(state)!r}")
    with options.open_store(store_url) as store, InboxAdmin(store, table) as rows:
        now = rows.now()
        page = rows.list(
            wanted,
            scope=scope,
            older_than=older_than,
            newer_than=newer_than,
            limit=limit,
            cursor=cursor,
        )
    shown = [_facts(entry) if as_json else _row(entry, now) for entry in page.entries]
    heads = ("key", "scope", "state", "attempts", "handled", "expires", "result_size")
    print_page(as_json, "messages", shown, heads, none=f"no message is {state}", cursor=page.cursor)


@inbox.command("show")
def show_(
    scope: Annotated[str, typer.Argument(metavar="SCOPE", help="The scope, as `list` shows it.")],
    key: Annotated[str, typer.Argument(metavar="KEY", help="The key, as `list` shows it.")],
    store_url: options.StoreUrl = None,
    table: Table = None,
    as_json: options.Json = False,
) -> None:
    """Show one message, with the result that its duplicates get. Exit code 1 if it was never handled."""
    with options.open_store(store_url) as store, InboxAdmin(store, table) as rows:
        entry, now = rows.show(scope, key), rows.now()
    if entry is None:
        text = f"{format_target(scope, key)} is not in the inbox: its next delivery runs"
        report(as_json, text, message=None)
        raise typer.Exit(1)
    facts = {**_facts(entry), "result": decode_stored(entry.result)}
    if as_json:
        print_json(facts)
        return
    Screen().print(format_target(scope, key), "bold")
    times = {"handled": entry.handled_at, "expires": entry.expires_at}
    shown = {
        "state": entry.state,
        **{name: format_when(at, now) if at else None for name, at in times.items()},
        **{name: facts[name] for name in ("attempts", "fingerprint", "result")},
    }
    print_details({name: value for name, value in shown.items() if value is not None})


@inbox.command()
def purge(
    store_url: options.StoreUrl = None,
    older_than: Annotated[
        str | None,
        typer.Option(
            metavar="SPAN",
            help="Delete messages handled at least this long ago, even within their retention, as in 30d.",
        ),
    ] = None,
    limit: options.WorkLimit = None,
    table: Table = None,
    dry_run: options.DryRun = False,
    yes: options.Yes = False,
    audit: options.AuditFile = None,
    as_json: options.Json = False,
) -> None:
    """Delete messages that are past their retention: what a relay on the same database does by itself.

    A duplicate of a message that is within its retention would run again. With --older-than those are deleted as well,
    and counted. It works in batches: Ctrl-C ends it after the current one.
    """
    with options.open_store(store_url) as store, InboxAdmin(store, table) as rows:
        preview = rows.count_old(older_than)
        selected = _describe(preview, older_than)
        if dry_run:
            counts = {"selected": preview.rows, "within_retention": preview.within_retention}
            report(as_json, f"would delete {selected}", deleted=0, **counts, dry_run=True)
            return
        confirm(f"Delete {selected} of {rows.name}, for good?", yes=yes or (not preview.rows and not preview.capped))
        deleted = within_retention = 0
        more = False
        total = None if preview.capped else preview.rows if limit is None else min(preview.rows, limit)
        detail = "expired" if older_than is None else f"older than {show(older_than)}: {selected}"
        with audit_action(audit, "inbox purge", rows.name, detail), GracefulInterrupt() as interrupt:
            with Progress("purging", total) as progress:
                for batch in rows.purge(older_than=older_than, limit=limit):
                    deleted += batch.deleted
                    within_retention += batch.within_retention
                    progress.step(count=batch.deleted)
                    more = interrupt.requested or deleted == limit
                    if interrupt.requested:
                        break
            text = f"{deleted:,} deleted{_within_retention(within_retention)}"
            report(as_json, text, deleted=deleted, within_retention=within_retention, more=more)
            interrupt.raise_if_requested()


def _describe(preview: PurgePreview, older_than: str | None) -> str:
    """Describe what a purge selects, and what that does to duplicates."""
    count = f"{preview.rows:,}{'+' if preview.capped else ''}"
    if older_than is None:
        return f"{count} expired messages"
    span = format_span(micros(older_than, "--older-than"))
    return f"{count} messages that were handled {span} ago or earlier{_within_retention(preview.within_retention)}"


def _within_retention(count: int) -> str:
    """Say that a purge makes duplicates run again, if it does."""
    return f" ({count:,} of them within their retention: a duplicate of these runs again)" if count else ""


def _facts(entry: InboxEntry) -> dict[str, Any]:
    return {
        "scope": entry.scope,
        "key": entry.key,
        "state": entry.state,
        "handled_at": format_iso(entry.handled_at),
        "expires_at": format_iso(entry.expires_at),
        "attempts": entry.attempts,
        "fingerprint": entry.fingerprint.hex() if entry.fingerprint else None,
        "result_size": entry.result_size,
    }


def _row(entry: InboxEntry, now: int) -> dict[str, Any]:
    ages = {"handled": format_ago(entry.handled_at, now), "expires": format_ago(entry.expires_at, now)}
    return {**_facts(entry), **ages}
