"""`effectonce records`: what a store remembers, and the operator's word on it."""

from __future__ import annotations

import shlex
from typing import Annotated, Any, Literal, get_args

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
    Json,
    Limit,
    Patience,
    StoreUrl,
    Url,
    Yes,
    audited,
    away,
    chosen,
    details,
    group,
    json_value,
    listing,
    moment,
    opened,
    operator,
    report,
)
from .terminal import Colour, Screen, bar, confirm

records = group("What a store remembers: list, show, forget, resolve, purge.")

Scope = Annotated[str, typer.Argument(metavar="SCOPE", help="The scope, as `list` shows it.")]
Key = Annotated[str, typer.Argument(metavar="KEY", help="The key, as `list` shows it.")]
Kept = Annotated[str, typer.Option("--retention", help="How long the record is kept from now on.")]

STATES: tuple[str, ...] = get_args(State)
COLOURS: dict[str, Colour] = {"done": "green", "failed": "red", "in_doubt": "yellow", "claimed": "bold"}

_PAGES = 50  # that are looked through for one list; then its cursor says where it has come to
_BATCH = 500

Word = Literal["done", "retry", "abandon"]
_COMES_TO = {
    "done": "is done: duplicates are acked",
    "retry": "runs again with its next delivery, as a new generation",
    "abandon": "has failed: it never runs again",
}


#: How records that are more than an outcome are decided, by the start of their scope.
_TOOLS = {"intents/": "intents resolve MODULE:INTENTS ID", "saga/": "sagas resolve MODULE:SAGA ID"}


@records.command("list")
def list_(
    url: Url = None,
    store: StoreUrl = None,
    scope: Annotated[str | None, typer.Option(help="Only of this scope.", show_default=False)] = None,
    state: Annotated[str | None, typer.Option(help=f"Only these: {', '.join(STATES)}.", show_default=False)] = None,
    older_than: Annotated[
        str | None, typer.Option("--older-than", metavar="SPAN", show_default=False, help="Unchanged for so long: 1h.")
    ] = None,
    newer_than: Annotated[
        str | None, typer.Option("--newer-than", metavar="SPAN", show_default=False, help="Changed since: 10m.")
    ] = None,
    limit: Limit = 100,
    cursor: Cursor = None,
    as_json: Json = False,
) -> None:
    """List records, a page at a time. Nothing is changed."""
    wanted = _state(state)
    with opened(url, store) as found:
        now = found.now()
        before = now - micros(older_than, "--older-than") if older_than else now
        since = now - micros(newer_than, "--newer-than") if newer_than else 0
        rows: list[dict[str, Any]] = []
        for _ in range(_PAGES):
            page = found.list(state=wanted, scope=scope, limit=limit - len(rows), cursor=cursor)
            rows += [_row(each, now) for each in page.records if since <= each.changed_at <= before]
            cursor = page.cursor
            if cursor is None or len(rows) >= limit:
                break
    heads = ("key", "scope", "state", "attempts", "changed", "expires", "about")
    listing(as_json, "records", rows, heads, none="there are no such records", cursor=cursor, colours=COLOURS)


@records.command("show")
def show_(scope: Scope, key: Key, store: StoreUrl = None, as_json: Json = False) -> None:
    """One record, with its timeline. Exit code 1 where there is none."""
    with opened(store) as found:
        record, now = found.get(scope, key), found.now()
    if record is None:
        report(as_json, f"there is no record of {show(scope)} {show(key)}", record=None)
        raise typer.Exit(1)
    facts = {**_facts(record), "timeline": timeline(record, now)}
    if as_json:
        details(True, facts)
        return
    screen = Screen()
    screen.say(f"{show(scope)}  {show(key)}", "bold")
    screen.say(
        f"{_plain(record.state)}{', ' + _about(record, now) if _about(record, now) else ''}",
        COLOURS.get(record.state, ""),
    )
    details(False, {name: value for name, value in facts.items() if name not in _NOT_ALONE and value is not None})
    screen.say()
    for at, what in timeline(record, now):
        screen.say(f"{moment(at)}  {away(at, now):>12}  {what}")
    if record.state == "in_doubt":
        this = f"records resolve {shlex.quote(show(scope))} {shlex.quote(show(key))} --done | --retry | --abandon"
        screen.say(f"\nfind out whether it happened, then: effectonce {_tool(scope) or this}")


@records.command()
def stats(url: Url = None, store: StoreUrl = None, as_json: Json = False) -> None:
    """How many records there are in each state, the oldest doubt, and the last sweep."""
    with opened(url, store) as found:
        told, now = found.stats(), found.now()
    if as_json:
        print(json.encode(told).decode())
        return
    for state in STATES:
        count = told.counts.get(state, 0)
        more = "+" if count >= told.cap or state in told.approximate else ""
        print(Screen().paint(f"{_plain(state):<16}{count:>10,}{more}", COLOURS.get(state, "") if count else "dim"))
    print(f"{'oldest in doubt':<16}{away(told.oldest_in_doubt, now):>10}")
    print(f"{'last sweep':<16}{away(told.swept_at, now):>10}")


@records.command()
def forget(
    scope: Scope,
    key: Key,
    store: StoreUrl = None,
    retention: Kept = "15d",
    dry_run: DryRun = False,
    yes: Yes = False,
    audit: AuditFile = None,
    as_json: Json = False,
) -> None:
    """Let the next delivery of a key run again, whatever it had done: its effect repeats."""
    span = micros(retention, "--retention") / 1e6
    with opened(store) as found:
        record = found.get(scope, key)
        about = f"{show(scope)} {show(key)}"
        if record is None:
            report(as_json, f"there is no record of {about}: its next delivery runs", forgotten=False, dry_run=dry_run)
            raise typer.Exit(1)
        if dry_run:
            report(as_json, f"would forget {about}, which is {_plain(record.state)}", forgotten=False, dry_run=True)
            return
        running = ", and fences out who is running it now" if record.state == "claimed" else ""
        confirm(f"{about} is {_plain(record.state)}. Forgetting it lets it run again{running}. Forget it?", yes=yes)
        with audited(audit, "records forget", about, f"was {record.state}", place=found.runtime.backend):
            forgotten = found.forget(scope, key, retention=span)
    report(as_json, f"{about}: forgotten" if forgotten else f"{about} was gone already", forgotten=forgotten)


@records.command()
def resolve(
    scope: Scope,
    key: Key,
    store: StoreUrl = None,
    done: Annotated[bool, typer.Option("--done", help="It happened.")] = False,
    result: Annotated[
        str | None, typer.Option("--result", metavar="JSON", show_default=False, help="With --done: what it gave.")
    ] = None,
    retry: Annotated[bool, typer.Option("--retry", help="It did not: run it again, as a new generation.")] = False,
    abandon: Annotated[bool, typer.Option("--abandon", help="Give it up: it counts as failed.")] = False,
    retention: Kept = "15d",
    dry_run: DryRun = False,
    yes: Yes = False,
    audit: AuditFile = None,
    as_json: Json = False,
) -> None:
    """Decide a record that is in doubt, after you have looked up whether its effect happened."""
    word = chosen({"done": done, "retry": retry, "abandon": abandon}, "--done [--result JSON], --retry or --abandon")
    if result is not None and word != "done":
        raise InvalidOption("--result goes with --done: it is what a duplicate gets")
    value = json_value(result, "--result") if result is not None else ...
    span = micros(retention, "--retention") / 1e6
    about = f"{show(scope)} {show(key)}"
    tool = _tool(scope)
    if tool is not None and word != "abandon":
        raise InvalidOption(f"{about} can be decided by its program only, which goes on from there: effectonce {tool}")
    with opened(store) as found:
        require_in_doubt(found, scope, key)
        if dry_run:
            report(as_json, f"would resolve {about}: it {_COMES_TO[word]}", resolved=None, dry_run=True)
            return
        confirm(f"{about} then {_COMES_TO[word]}. Resolve it?", yes=yes)
        with audited(audit, "records resolve", about, word, place=found.runtime.backend):
            found.resolve(scope, key, word, result=value, retention=span, who=operator())
    report(as_json, f"{about}: {word}", resolved=word)


@records.command()
def purge(
    url: Url = None,
    store: StoreUrl = None,
    limit: Annotated[
        int | None, typer.Option("--limit", "-n", min=1, help="At most so many.", show_default=False)
    ] = None,
    dry_run: DryRun = False,
    yes: Yes = False,
    audit: AuditFile = None,
    as_json: Json = False,
) -> None:
    """Delete expired records, and move lapsed claims to in doubt: what every open store does once a minute.

    In batches, each of which is whole: Ctrl-C ends it after the one at hand.
    """
    with opened(url, store) as found:
        figures = found.figures(overdue_by="1us")
        known = None if figures is None or figures.overdue >= figures.cap else figures.overdue
        some = "expired records" if known is None else f"{known:,} expired records"
        if dry_run:
            least = None if figures is None else figures.overdue
            report(as_json, f"would delete {some}", deleted=0, expired=least, dry_run=True)
            return
        shown = repr(found.runtime.backend)
        confirm(f"Delete {some} of {shown}, for good?", yes=yes or known == 0)
        deleted = lapsed = 0
        total = known if limit is None or known is None else min(known, limit)
        with audited(audit, "records purge", shown), Patience() as patience:
            with bar("purging", total) as advance:
                while not patience.over:
                    left = _BATCH if limit is None else min(_BATCH, limit - deleted)
                    swept = found.purge(limit=left)
                    deleted, lapsed = deleted + swept.deleted, lapsed + swept.lapsed
                    advance(swept.deleted)
                    if not swept.more or (limit is not None and deleted >= limit):
                        break
            text = f"{deleted:,} deleted, {lapsed:,} moved to in doubt"
            report(as_json, text, deleted=deleted, lapsed=lapsed, more=patience.over or swept.more)
            patience.leave()


def _tool(scope: str) -> str | None:
    return next((tool for start, tool in _TOOLS.items() if scope.startswith(start)), None)


# -- how a record is told


def require_in_doubt(store: Store, scope: str, key: str) -> None:
    """Said before anyone is asked; `Store.resolve` looks once more."""
    record = store.get(scope, key)
    lapsed = record is not None and record.doubt_on_lapse and record.state == "claimed"
    if record is None or not (record.state == "in_doubt" or (lapsed and (record.lease_until or 0) <= store.now())):
        state = "has no record" if record is None else f"is {record.state}, not in doubt"
        raise NotInDoubt(f"{show(scope)} {show(key)} {state}: there is nothing to resolve")


def timeline(record: Record, now: int) -> list[tuple[int, str]]:
    """What is known of the record's life, oldest first. A store keeps the last of each, not all of them."""
    points = [(record.created_at, "first claimed")]
    # A token is the store's time of its claim, unless claims came faster than that.
    if record.created_at < record.token <= now:
        claims = f"claimed, attempt {record.attempts}" if record.attempts else "claimed"
        points.append((record.token, claims + (f", generation {record.generation}" if record.generation else "")))
    if record.state != "claimed":
        points.append((record.changed_at, "released" if record.state == "free" else _plain(record.state)))
    elif record.lease_until is not None:
        over = record.lease_until <= now
        points.append((record.lease_until, "its lease ended" if over else "its lease ends, unless renewed"))
    if record.expires_at is not None:
        points.append((record.expires_at, "it is deleted, and a delivery after that runs again"))
    return sorted(points)


def _state(text: str | None) -> State | None:
    for state in get_args(State):
        if text is None or text.replace("-", "_").replace(" ", "_") == state:
            return None if text is None else state
    raise InvalidOption(f"--state is one of {', '.join(STATES)}, not {show(text)!r}")


def _plain(state: str) -> str:
    return state.replace("_", " ")


_NOT_ALONE = ("scope", "key", "state", "timeline", "created_at", "changed_at", "lease_until", "expires_at")


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
        "changed": away(record.changed_at, now),
        "expires": away(record.expires_at, now),
        "about": _about(record, now),
    }


def _about(record: Record, now: int) -> str:
    """What one wants to know of a record in this state."""
    if record.state == "claimed" and record.lease_until is not None:
        return f"lease {'ended' if record.lease_until <= now else 'ends'} {away(record.lease_until, now)}"
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
    """A stored value, as far as it can be read without its program."""
    if stored is None:
        return None
    stored, _ = without_trace(stored)
    try:
        return json.decode(stored[1:] if stored[:1] == VERSION else stored)
    except (ValueError, EffectOnceError):
        return f"<{len(stored)} bytes that cannot be read here>"
