"""`effectonce records`: the records of a store, and the operator's decisions on them."""

from __future__ import annotations

import shlex
from typing import Annotated, Any, get_args

import typer
from msgspec import json

from effectonce.core.codec import VERSION, decode_error, without_trace
from effectonce.errors import CorruptRecord, EffectOnceError, InvalidOption, NotInDoubt, show
from effectonce.record import EXHAUSTED, Record, State
from effectonce.store import Store
from effectonce.values.durations import micros

from .options import (
    AuditFile,
    Cursor,
    DryRun,
    GracefulInterrupt,
    Json,
    Limit,
    StoreUrl,
    Url,
    Yes,
    audit_action,
    command_group,
    format_age,
    format_time,
    open_store,
    operator,
    parse_json,
    print_details,
    print_page,
    report,
    require_one,
)
from .terminal import Colour, Screen, confirm, show_progress

records = command_group("A store's records: list, show, forget, resolve, purge.")

Scope = Annotated[str, typer.Argument(metavar="SCOPE", help="The scope, as `list` shows it.")]
Key = Annotated[str, typer.Argument(metavar="KEY", help="The key, as `list` shows it.")]
Retention = Annotated[str, typer.Option("--retention", help="How long the record is kept from now on.")]

#: Each state of a record, by the word that people read and type.
STATES: dict[str, State] = {"released" if state == "free" else state: state for state in get_args(State)}
COLOURS: dict[str, Colour] = {"done": "green", "failed": "red", "in_doubt": "yellow", "claimed": "bold"}

_MAX_PAGES = 50  # that one `list` reads to find matching records; its cursor then says how far it came
_PURGE_BATCH = 500

_RESULTS = {
    "done": "is done: duplicates are acked",
    "retry": "runs again with its next delivery, as a new generation",
    "abandon": "has failed: it never runs again",
}


#: The command that decides records of intents and sagas, by the prefix of their scope.
_RESOLVE_COMMANDS = {"intents/": "intents resolve MODULE:INTENTS ID", "saga/": "sagas resolve MODULE:SAGA ID"}


@records.command("list")
def list_(
    url: Url = None,
    store_url: StoreUrl = None,
    scope: Annotated[str | None, typer.Option(help="Only of this scope.", show_default=False)] = None,
    state: Annotated[str | None, typer.Option(help=f"Only these: {', '.join(STATES)}.", show_default=False)] = None,
    older_than: Annotated[
        str | None,
        typer.Option("--older-than", metavar="SPAN", show_default=False, help="Unchanged for this long: 1h."),
    ] = None,
    newer_than: Annotated[
        str | None,
        typer.Option("--newer-than", metavar="SPAN", show_default=False, help="Changed within this span: 10m."),
    ] = None,
    limit: Limit = 100,
    cursor: Cursor = None,
    as_json: Json = False,
) -> None:
    """List records, a page at a time. Nothing is changed."""
    wanted = _parse_state(state)
    with open_store(url, store_url) as store:
        now = store.now()
        before = now - micros(older_than, "--older-than") if older_than else now
        since = now - micros(newer_than, "--newer-than") if newer_than else 0
        rows: list[dict[str, Any]] = []
        for _ in range(_MAX_PAGES):
            page = store.list(state=wanted, scope=scope, limit=limit - len(rows), cursor=cursor)
            rows += [_row(record, now) for record in page.records if since <= record.changed_at <= before]
            cursor = page.cursor
            if cursor is None or len(rows) >= limit:
                break
    heads = ("key", "scope", "state", "attempts", "changed", "expires", "about")
    print_page(as_json, "records", rows, heads, none="there are no such records", cursor=cursor, colours=COLOURS)


@records.command("show")
def show_(scope: Scope, key: Key, store_url: StoreUrl = None, as_json: Json = False) -> None:
    """Show one record, with its timeline. Exit code 1 where there is none."""
    with open_store(store_url) as store:
        record, now = store.get(scope, key), store.now()
    if record is None:
        report(as_json, f"there is no record of {show(scope)} {show(key)}", record=None)
        raise typer.Exit(1)
    facts = {**_facts(record), "timeline": timeline(record, now)}
    if as_json:
        print_details(True, facts)
        return
    screen = Screen()
    screen.print(f"{show(scope)}  {show(key)}", "bold")
    screen.print(
        f"{_state_word(record.state)}{', ' + _about(record, now) if _about(record, now) else ''}",
        COLOURS.get(record.state, ""),
    )
    print_details(
        False, {name: value for name, value in facts.items() if name not in _SHOWN_ELSEWHERE and value is not None}
    )
    screen.print()
    for at, what in timeline(record, now):
        screen.print(f"{format_time(at)}  {format_age(at, now):>12}  {what}")
    if record.state == "in_doubt":
        resolve_record = (
            f"records resolve {shlex.quote(show(scope))} {shlex.quote(show(key))} --done | --retry | --abandon"
        )
        screen.print(f"\nfind out whether it happened, then: effectonce {_resolve_command(scope) or resolve_record}")


@records.command()
def stats(url: Url = None, store_url: StoreUrl = None, as_json: Json = False) -> None:
    """Count the records in each state; show the oldest in doubt, and the last sweep."""
    with open_store(url, store_url) as store:
        counted, now = store.stats(), store.now()
    if as_json:
        print(json.encode(counted).decode())
        return
    for state in STATES.values():
        count = counted.counts.get(state, 0)
        more = "+" if count >= counted.cap or state in counted.approximate else ""
        print(Screen().paint(f"{_state_word(state):<16}{count:>10,}{more}", COLOURS.get(state, "") if count else "dim"))
    print(f"{'oldest in doubt':<16}{format_age(counted.oldest_in_doubt, now):>10}")
    print(f"{'last sweep':<16}{format_age(counted.swept_at, now):>10}")


@records.command()
def forget(
    scope: Scope,
    key: Key,
    store_url: StoreUrl = None,
    retention: Retention = "15d",
    dry_run: DryRun = False,
    yes: Yes = False,
    audit: AuditFile = None,
    as_json: Json = False,
) -> None:
    """Let the next delivery of a key run again, even if it is done: its effect repeats."""
    span = micros(retention, "--retention") / 1e6
    with open_store(store_url) as store:
        record = store.get(scope, key)
        about = f"{show(scope)} {show(key)}"
        if record is None:
            report(as_json, f"there is no record of {about}: its next delivery runs", forgotten=False, dry_run=dry_run)
            raise typer.Exit(1)
        if dry_run:
            report(
                as_json, f"would forget {about}, which is {_state_word(record.state)}", forgotten=False, dry_run=True
            )
            return
        running = ", and fences out the process that is running it now" if record.state == "claimed" else ""
        confirm(
            f"{about} is {_state_word(record.state)}. Forgetting it lets it run again{running}. Forget it?", yes=yes
        )
        with audit_action(audit, "records forget", about, f"was {record.state}", place=store.runtime.backend):
            forgotten = store.forget(scope, key, retention=span)
    report(as_json, f"{about}: forgotten" if forgotten else f"{about} no longer exists", forgotten=forgotten)


@records.command()
def resolve(
    scope: Scope,
    key: Key,
    store_url: StoreUrl = None,
    done: Annotated[bool, typer.Option("--done", help="It happened.")] = False,
    result: Annotated[
        str | None, typer.Option("--result", metavar="JSON", show_default=False, help="With --done: its result.")
    ] = None,
    retry: Annotated[bool, typer.Option("--retry", help="It did not: run it again, as a new generation.")] = False,
    abandon: Annotated[bool, typer.Option("--abandon", help="Give it up: it counts as failed.")] = False,
    retention: Retention = "15d",
    dry_run: DryRun = False,
    yes: Yes = False,
    audit: AuditFile = None,
    as_json: Json = False,
) -> None:
    """Decide a record that is in doubt, after you have looked up whether its effect happened."""
    outcome = require_one(
        {"done": done, "retry": retry, "abandon": abandon}, "--done [--result JSON], --retry or --abandon"
    )
    if result is not None and outcome != "done":
        raise InvalidOption("--result goes with --done: it is the result that duplicates get")
    value = parse_json(result, "--result") if result is not None else ...
    span = micros(retention, "--retention") / 1e6
    about = f"{show(scope)} {show(key)}"
    command = _resolve_command(scope)
    if command is not None and outcome != "abandon":
        raise InvalidOption(
            f"{about} can only be decided by its program, which continues from there: effectonce {command}"
        )
    with open_store(store_url) as store:
        require_in_doubt(store, scope, key)
        if dry_run:
            report(as_json, f"would resolve {about}: it {_RESULTS[outcome]}", resolved=None, dry_run=True)
            return
        confirm(f"{about} then {_RESULTS[outcome]}. Resolve it?", yes=yes)
        with audit_action(audit, "records resolve", about, outcome, place=store.runtime.backend):
            store.resolve(scope, key, outcome, result=value, retention=span, who=operator())
    report(as_json, f"{about}: {outcome}", resolved=outcome)


@records.command()
def purge(
    url: Url = None,
    store_url: StoreUrl = None,
    limit: Annotated[
        int | None, typer.Option("--limit", "-n", min=1, help="How many at most.", show_default=False)
    ] = None,
    dry_run: DryRun = False,
    yes: Yes = False,
    audit: AuditFile = None,
    as_json: Json = False,
) -> None:
    """Delete expired records, and move lapsed claims to in doubt: what every open store does once a minute.

    It works in batches: Ctrl-C ends it after the current one.
    """
    with open_store(url, store_url) as store:
        figures = store.figures(overdue_by="1us")
        known = None if figures is None or figures.overdue >= figures.cap else figures.overdue
        some = "expired records" if known is None else f"{known:,} expired records"
        if dry_run:
            least = None if figures is None else figures.overdue
            report(as_json, f"would delete {some}", deleted=0, expired=least, dry_run=True)
            return
        shown = repr(store.runtime.backend)
        confirm(f"Delete {some} of {shown}, for good?", yes=yes or known == 0)
        deleted = lapsed = 0
        total = known if limit is None or known is None else min(known, limit)
        with audit_action(audit, "records purge", shown), GracefulInterrupt() as interrupt:
            with show_progress("purging", total) as advance:
                while not interrupt.requested:
                    left = _PURGE_BATCH if limit is None else min(_PURGE_BATCH, limit - deleted)
                    swept = store.purge(limit=left)
                    deleted, lapsed = deleted + swept.deleted, lapsed + swept.lapsed
                    advance(swept.deleted)
                    if not swept.more or (limit is not None and deleted >= limit):
                        break
            text = f"{deleted:,} deleted, {lapsed:,} moved to in doubt"
            report(as_json, text, deleted=deleted, lapsed=lapsed, more=interrupt.requested or swept.more)
            interrupt.raise_if_requested()


def _resolve_command(scope: str) -> str | None:
    return next((command for prefix, command in _RESOLVE_COMMANDS.items() if scope.startswith(prefix)), None)


# -- how a record is shown


def require_in_doubt(store: Store, scope: str, key: str) -> None:
    """Raise `NotInDoubt` before the operator is asked to confirm. `Store.resolve` checks again."""
    record = store.get(scope, key)
    lapsed = record is not None and record.doubt_on_lapse and record.state == "claimed"
    if record is None or not (record.state == "in_doubt" or (lapsed and (record.lease_until or 0) <= store.now())):
        state = "has no record" if record is None else f"is {_state_word(record.state)}, not in doubt"
        raise NotInDoubt(f"{show(scope)} {show(key)} {state}: there is nothing to resolve")


def timeline(record: Record, now: int) -> list[tuple[int, str]]:
    """Return the moments of a record, oldest first. A record keeps its last claim only, not all of them."""
    points = [(record.created_at, "first claimed")]
    # A token is the store's time of its claim in µs; it is only off where two claims came in the same µs.
    if record.created_at < record.token <= now:
        claims = f"claimed, attempt {record.attempts}" if record.attempts else "claimed"
        points.append((record.token, claims + (f", generation {record.generation}" if record.generation else "")))
    if record.state != "claimed":
        points.append((record.changed_at, _state_word(record.state)))
    elif record.lease_until is not None:
        over = record.lease_until <= now
        points.append((record.lease_until, "its lease ended" if over else "its lease ends, unless renewed"))
    if record.expires_at is not None:
        points.append((record.expires_at, "it is deleted, and a delivery after that runs again"))
    return sorted(points)


def _parse_state(text: str | None) -> State | None:
    """Return the state that ``--state`` names: by its word, or as the JSON output spells it."""
    if text is None:
        return None
    name = text.replace("-", "_").replace(" ", "_")
    for word, state in STATES.items():
        if name in (word, state):
            return state
    raise InvalidOption(f"--state is one of {', '.join(STATES)}, not {show(text)!r}")


def _state_word(state: str) -> str:
    return "released" if state == "free" else state.replace("_", " ")


_SHOWN_ELSEWHERE = ("scope", "key", "state", "timeline", "created_at", "changed_at", "lease_until", "expires_at")


def _facts(record: Record) -> dict[str, Any]:
    return {
        "scope": record.scope,
        "key": record.key,
        "state": record.state,
        "attempts": record.attempts,
        "generation": record.generation,
        "token": record.token,
        "owner": record.owner.hex() or None,
        "on_lapse": "doubt" if record.doubt_on_lapse else "rerun",
        "created_at": record.created_at,
        "changed_at": record.changed_at,
        "lease_until": record.lease_until,
        "expires_at": record.expires_at,
        "fingerprint": record.fingerprint.hex() if record.fingerprint else None,
        "result": _readable(record.result),
        "error": _error(record.error) if record.error is not None else None,
        "note": _readable(record.note),
    }


def _row(record: Record, now: int) -> dict[str, Any]:
    return {
        **{name: value for name, value in _facts(record).items() if name not in ("result", "note", "fingerprint")},
        "changed": format_age(record.changed_at, now),
        "expires": format_age(record.expires_at, now),
        "about": _about(record, now),
    }


def _about(record: Record, now: int) -> str:
    """Return the detail that matters in the record's state."""
    if record.state == "claimed" and record.lease_until is not None:
        return f"lease {'ended' if record.lease_until <= now else 'ends'} {format_age(record.lease_until, now)}"
    if record.state == "failed":
        return _error(record.error)
    return ""


def _error(stored: bytes | None) -> str:
    if stored == EXHAUSTED:
        return "every attempt was used"
    try:
        error = decode_error(stored)
    except CorruptRecord:
        return "it cannot be read here (private, or of another release)"
    return show(f"{error.type.rpartition(':')[2]}: {error.message}" if error.type else error.code, 300)


def _readable(stored: bytes | None) -> Any:
    """Decode a stored value, as far as that is possible without its program."""
    if stored is None:
        return None
    stored, _ = without_trace(stored)
    try:
        return json.decode(stored[1:] if stored[:1] == VERSION else stored)
    except (ValueError, EffectOnceError):
        return f"<{len(stored)} bytes that cannot be read here>"
