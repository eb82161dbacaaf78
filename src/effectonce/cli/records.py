"""`effectonce records`: the records of a store, and the operator's decisions on them."""

from __future__ import annotations

import shlex
from typing import Annotated, Any

import typer
from msgspec import structs

from effectonce.core.refusals import is_refused
from effectonce.display.formatting import (
    REFUSED,
    STATE_WORDS,
    format_ago,
    format_error,
    format_failure,
    format_failure_place,
    format_iso,
    format_state,
    format_state_count,
    format_target,
    format_when,
    tone_of,
)
from effectonce.display.state_filters import STATE_FILTERS, StateFilter
from effectonce.display.terminal import Screen, confirm
from effectonce.display.timeline import record_timeline
from effectonce.errors import InvalidOption, show
from effectonce.http.operator_results import parse_decided_result
from effectonce.record import Record
from effectonce.values.durations import micros
from effectonce.values.scopes import kind_of_scope

from . import options
from .audit import audit_action, operator_name
from .groups import command_group
from .interrupts import GracefulInterrupt
from .output import (
    COLOURS,
    decode_stored,
    print_details,
    print_figure,
    print_json,
    print_page,
    print_timeline,
    report,
    timeline_facts,
)
from .programs import require_in_doubt
from .progress import Progress

records = command_group("A store's records: list, show, stats, forget, resolve, purge.")

Scope = Annotated[str, typer.Argument(metavar="SCOPE", help="The scope, as list shows it.")]
Key = Annotated[str, typer.Argument(metavar="KEY", help="The key, as list shows it.")]


_MAX_LISTED_PAGES = 50  # one `list` reads so many to find matching records; its cursor continues from there
_PURGE_BATCH_SIZE = 500
#: The words of `stats`: a store counts failed and refused as one.
_COUNT_WORDS = {**STATE_WORDS, "failed": "failed, refused"}
_STATE_NAMES = [choice.word.replace(" ", "-") for choice in STATE_FILTERS.values()]

#: What happens to a record, by the operator's decision.
_DECISION_RESULTS = {
    "done": "is done: duplicates are acked",
    "retry": "runs again with its next delivery, as a new generation",
    "abandon": "has failed: it never runs again",
}

#: The command that decides the records of a kind of program.
_RESOLVE_COMMANDS = {"intent": "intents resolve MODULE:INTENTS ID", "saga": "sagas resolve MODULE:SAGA ID"}


@records.command("list")
def list_(
    store_url: options.StoreUrl = None,
    scope: options.OnlyScope = None,
    state: Annotated[
        str | None,
        typer.Option(
            metavar="STATE",
            help=f"List only records in this state: {', '.join(_STATE_NAMES)}.",
            autocompletion=_STATE_NAMES.copy,
        ),
    ] = None,
    older_than: options.OlderThan = None,
    newer_than: options.NewerThan = None,
    limit: options.Limit = 100,
    cursor: options.Cursor = None,
    as_json: options.Json = False,
) -> None:
    """List records, a page at a time. Nothing is changed.

    Example: effectonce records list --state in-doubt --older-than 1h
    """
    wanted = _parse_state(state)
    with options.open_store(store_url) as store:
        now = store.now()
        before = now - micros(older_than, "--older-than") if older_than is not None else now
        since = now - micros(newer_than, "--newer-than") if newer_than is not None else 0
        matching: list[Record] = []
        for _ in range(_MAX_LISTED_PAGES):
            stored = wanted.state if wanted is not None else None
            page = store.list(state=stored, scope=scope, limit=limit - len(matching), cursor=cursor)
            matching += [
                record
                for record in page.records
                if since <= record.changed_at <= before and (wanted is None or wanted.matches(record))
            ]
            cursor = page.cursor
            if cursor is None or len(matching) >= limit:
                break
    rows = [_facts(record) if as_json else _row(record, now) for record in matching]
    if as_json:  # `show` has these
        rows = [{name: fact for name, fact in row.items() if name not in _STORED_FIELDS} for row in rows]
    heads = ("key", "scope", "state", "attempts", "changed", "expires", "about")
    print_page(as_json, "records", rows, heads, none="there are no such records", cursor=cursor)


@records.command("show")
def show_(scope: Scope, key: Key, store_url: options.StoreUrl = None, as_json: options.Json = False) -> None:
    """Show one record, with its timeline. Exit code 1 if there is none."""
    with options.open_store(store_url) as store:
        record, now = store.get(scope, key), store.now()
    if record is None:
        report(as_json, f"there is no record of {format_target(scope, key)}", record=None)
        raise typer.Exit(1)
    facts, moments = _facts(record), record_timeline(record)
    if as_json:
        print_json({**facts, "timeline": timeline_facts(moments)})
        return
    screen = Screen()
    screen.print(format_target(scope, key), "bold")
    state, about = format_state(record, now), _state_detail(record, now)
    screen.print(f"{state}, {about}" if about else state, COLOURS.get(tone_of(record), ""))
    print_details(
        {name: value for name, value in facts.items() if name not in _FIELDS_IN_TIMELINE and value is not None}
    )
    screen.print()
    print_timeline(moments, now)
    if record.state == "in_doubt":
        names = f"{shlex.quote(show(scope))} {shlex.quote(show(key))}"
        command = _RESOLVE_COMMANDS.get(kind_of_scope(scope)) or f"records resolve {names} --done | --retry | --abandon"
        screen.print(f"\nfind out whether it happened, then: effectonce {command}")


@records.command()
def stats(store_url: options.StoreUrl = None, as_json: options.Json = False) -> None:
    """Count the records in each state; show the oldest in doubt, and the last sweep."""
    with options.open_store(store_url) as store:
        counted, now = store.stats(), store.now()
    if as_json:
        times = {"oldest_in_doubt": format_iso(counted.oldest_in_doubt), "swept_at": format_iso(counted.swept_at)}
        print_json({**structs.asdict(counted), **times})
        return
    for state, word in _COUNT_WORDS.items():
        colour = COLOURS.get(state, "") if counted.counts.get(state) else "dim"
        print_figure(word, format_state_count(counted, state), colour)
    print_figure("oldest in doubt", format_when(counted.oldest_in_doubt, now))
    print_figure("last sweep", format_when(counted.swept_at, now))


@records.command()
def forget(
    scope: Scope,
    key: Key,
    store_url: options.StoreUrl = None,
    retention: options.Retention = "15d",
    dry_run: options.DryRun = False,
    yes: options.Yes = False,
    audit: options.AuditFile = None,
    as_json: options.Json = False,
) -> None:
    """Let the next delivery of a key run again, even if it is done: its effect repeats.

    Example: effectonce records forget charge-card pay_7f3a
    """
    span = micros(retention, "--retention") / 1e6
    about = format_target(scope, key)
    with options.open_store(store_url) as store:
        record = store.get(scope, key)
        if record is None:
            report(as_json, f"there is no record of {about}: its next delivery runs", forgotten=False, dry_run=dry_run)
            raise typer.Exit(1)
        state = REFUSED if is_refused(record) else STATE_WORDS[record.state]
        if dry_run:
            report(as_json, f"would forget {about}, which is {state}", forgotten=False, dry_run=True)
            return
        running = ", and fences out the process that is running it now" if record.state == "claimed" else ""
        confirm(f"{about} is {state}. Forgetting it lets it run again{running}. Forget it?", yes=yes)
        with audit_action(audit, "records forget", about, f"was {state}", place=store.runtime.backend):
            forgotten = store.forget(scope, key, retention=span)
    report(as_json, f"{about}: forgotten" if forgotten else f"{about} no longer exists", forgotten=forgotten)


@records.command()
def resolve(
    scope: Scope,
    key: Key,
    store_url: options.StoreUrl = None,
    done: Annotated[bool, typer.Option("--done", help="It happened.")] = False,
    result: options.Result = None,
    retry: Annotated[
        bool, typer.Option("--retry", help="It did not happen: the next delivery, or the client's retry, runs it.")
    ] = False,
    abandon: options.Abandon = False,
    retention: options.Retention = "15d",
    dry_run: options.DryRun = False,
    yes: options.Yes = False,
    audit: options.AuditFile = None,
    as_json: options.Json = False,
) -> None:
    """Decide a record that is in doubt, after you have looked up whether its effect happened.

    The result of an HTTP request is its response: --result '{"status": 201, "headers": {}, "body": {"receipt": 17}}'

    Example: effectonce records resolve charge-card pay_7f3a --done --result '{"receipt": 17}'
    """
    outcomes = {"done": done, "retry": retry, "abandon": abandon}
    outcome = options.require_one(outcomes, "--done [--result JSON], --retry or --abandon")
    if result is not None and outcome != "done":
        raise InvalidOption("--result goes with --done: it is the result that duplicates get")
    value = options.parse_json(result, "--result") if result is not None else ...
    if outcome == "done":
        value = parse_decided_result(key, value)
    span = micros(retention, "--retention") / 1e6
    about = format_target(scope, key)
    command = _RESOLVE_COMMANDS.get(kind_of_scope(scope))
    if command is not None and outcome != "abandon":
        raise InvalidOption(
            f"{about} can only be decided by its program, which continues from there: effectonce {command}"
        )
    with options.open_store(store_url) as store:
        require_in_doubt(store, scope, key)
        if dry_run:
            report(as_json, f"would resolve {about}: it {_DECISION_RESULTS[outcome]}", resolved=None, dry_run=True)
            return
        confirm(f"{about} then {_DECISION_RESULTS[outcome]}. Resolve it?", yes=yes)
        with audit_action(audit, "records resolve", about, outcome, place=store.runtime.backend):
            store.resolve(scope, key, outcome, result=value, retention=span, who=operator_name())
    report(as_json, f"{about}: {outcome}", resolved=outcome)


@records.command()
def purge(
    store_url: options.StoreUrl = None,
    limit: options.WorkLimit = None,
    dry_run: options.DryRun = False,
    yes: options.Yes = False,
    audit: options.AuditFile = None,
    as_json: options.Json = False,
) -> None:
    """Delete expired records, and move lapsed claims of on_lapse="doubt" to in doubt. Every open store does so once a
    minute.

    It works in batches: Ctrl-C ends it after the current one.
    """
    with options.open_store(store_url) as store:
        figures = store.figures(overdue_by="1us")
        known = None if figures is None or figures.overdue >= figures.cap else figures.overdue
        selected = "expired records" if known is None else f"{known:,} expired records"
        if dry_run:
            expired = None if figures is None else figures.overdue
            report(as_json, f"would delete {selected}", deleted=0, expired=expired, dry_run=True)
            return
        shown = repr(store.runtime.backend)
        confirm(f"Delete {selected} of {shown}, for good?", yes=yes or known == 0)
        deleted = lapsed = 0
        total = known if limit is None or known is None else min(known, limit)
        with audit_action(audit, "records purge", shown), GracefulInterrupt() as interrupt:
            with Progress("purging", total) as progress:
                while not interrupt.requested:
                    batch_size = _PURGE_BATCH_SIZE if limit is None else min(_PURGE_BATCH_SIZE, limit - deleted)
                    swept = store.purge(limit=batch_size)
                    deleted, lapsed = deleted + swept.deleted, lapsed + swept.lapsed
                    progress.step(count=swept.deleted)
                    if not swept.more or (limit is not None and deleted >= limit):
                        break
            text = f"{deleted:,} deleted, {lapsed:,} moved to in doubt"
            report(as_json, text, deleted=deleted, lapsed=lapsed, more=interrupt.requested or swept.more)
            interrupt.raise_if_requested()


def _parse_state(text: str | None) -> StateFilter | None:
    """Return the filter that ``--state`` names: by its word, or as the JSON output spells the state."""
    if text is None:
        return None
    name = text.replace("-", " ").replace("_", " ")
    for state, choice in STATE_FILTERS.items():
        if name in (choice.word, state):
            return choice
    raise InvalidOption(f"--state is one of {', '.join(_STATE_NAMES)}, not {show(text)!r}")


# -- how a record is shown

_FIELDS_IN_TIMELINE = ("scope", "key", "state", "created_at", "changed_at", "lease_until", "expires_at")
_STORED_FIELDS = ("fingerprint", "result", "note")


def _facts(record: Record) -> dict[str, Any]:
    facts = structs.asdict(record)
    doubt_on_lapse = facts.pop("doubt_on_lapse")
    times = ("created_at", "changed_at", "lease_until", "expires_at")
    return {
        **facts,
        **{name: format_iso(facts[name]) for name in times},
        "owner": record.owner.hex() or None,
        "on_lapse": "doubt" if doubt_on_lapse else "rerun",
        "error": _failure(record) if record.error is not None else None,
        "raised_at": format_failure_place(record) or None,
        "fingerprint": record.fingerprint.hex() if record.fingerprint else None,
        "result": decode_stored(record.result),
        "note": decode_stored(record.note),
        "refused": is_refused(record),
    }


def _row(record: Record, now: int) -> dict[str, Any]:
    return {
        **_facts(record),
        "state": REFUSED if is_refused(record) else record.state,
        "changed": format_ago(record.changed_at, now),
        "expires": format_ago(record.expires_at, now),
        "about": _state_detail(record, now),
        "refused": is_refused(record),
    }


def _state_detail(record: Record, now: int) -> str:
    """Return the detail that matters in the record's state."""
    if record.state == "claimed" and record.lease_until is not None:
        return f"lease {'ended' if record.lease_until <= now else 'ends'} {format_ago(record.lease_until, now)}"
    return _failure(record) if record.state == "failed" or record.error is not None else ""


def _failure(record: Record) -> str:
    return format_error(*format_failure(record))
