"""The queue of what is in doubt, and an operator's word on it."""

from __future__ import annotations

from typing import Any, Final

from msgspec import DecodeError, json
from starlette.responses import Response

from effectonce.dashboard.context import Ask, link
from effectonce.dashboard.sources import ROWS
from effectonce.dashboard.timeline import intent_log, kind_of, saga_log, target_of
from effectonce.errors import CorruptRecord, InvalidOption, NotInDoubt, show
from effectonce.intents.intents import UNFINISHED_HOLD_US
from effectonce.record import Record
from effectonce.store import DEFAULT_RETENTION

from .records import choices

KEPT: Final = "30d"
"""How long an intent that was decided without its program is kept, as `Intents.operation` does by default."""


def queue(ask: Ask) -> Response:
    cursor = ask.text("cursor") or None
    page = ask.sources.store.list(state="in_doubt", limit=ROWS, cursor=cursor)
    rows = [(record, kind_of(record.scope), *_about(ask, record)) for record in page.records]
    following = link("/doubts", cursor=page.cursor) if page.cursor is not None else ""
    return ask.render("doubts.html", rows=rows, next=following, now=ask.sources.store.now())


def _about(ask: Ask, record: Record) -> tuple[str, str]:
    """What it is, in a few words; and why nobody knows, for operators."""
    kind = kind_of(record.scope)
    if kind == "intent":
        log = intent_log(ask.sources, record)
        sent = "" if log is None else f"sent {'once' if log.send_count == 1 else f'{log.send_count} times'}"
        return sent, f"for {show(log.key, 80)}" if log is not None and ask.session.acts else ""
    if kind == "saga":
        saga = saga_log(ask.sources, record)
        if saga is None:
            return "", ""
        return f"at {'undo ' if saga.undoing else ''}{saga.doubtful}", saga.doubt if ask.session.acts else ""
    tries = "one attempt" if record.attempts == 1 else f"{record.attempts} attempts"
    return f"{tries}, none with an outcome", ""


def resolve(ask: Ask) -> Response:
    """One word on one record; what it was is in the audit log before it is done."""
    scope, key, word = ask.text("scope"), ask.text("key"), ask.text("outcome")
    record = ask.sources.record(scope, key)
    if record is None:
        raise NotInDoubt("there is no such record any more; nothing was changed")
    allowed = choices(ask, record)["words_for"]
    if word not in allowed:
        raise InvalidOption(f"say one of: {', '.join(allowed)}")
    result = _result(ask.text("result")) if word == "done" else ...
    place = repr(ask.sources.store.engine.backend)
    with ask.audited("records resolve", target_of(scope, key), detail=word, place=place):
        _decide(ask, record, word, result)
    said = {
        "done": "It is done: duplicates get its result.",
        "not_done": "It did not happen: the saga's next resume compensates what is done.",
        "retry": "It may run again, as a new generation. If its worker gave it up, redrive its dead letter now.",
        "abandon": "It is given up, and counts as failed.",
    }
    back = link("/saga" if kind_of(scope) == "saga" else "/record", scope=scope, key=key)
    return ask.go(back, said[word])


def _decide(ask: Ask, record: Record, word: Any, result: Any) -> None:
    scope, key, who = record.scope, record.key, ask.session.signature
    saga, intents = ask.sources.sagas.get(scope), ask.sources.intents.get(scope)
    if saga is not None:
        log = saga_log(ask.sources, record)
        if log is None:
            raise CorruptRecord(f"the log of saga {show(key)} cannot be read; upgrade this process")
        saga.resolve(log.id, word, result=None if result is ... else result, who=who)
    elif intents is not None:
        intents.resolve(intents.id_of(record), word, result=result, who=who)
    else:
        kept = DEFAULT_RETENTION if kind_of(scope) == "guard" else UNFINISHED_HOLD_US / 1e6 if word == "retry" else KEPT
        ask.sources.store.resolve(scope, key, word, result=result, retention=kept, who=who)


def _result(text: str) -> Any:
    """The result that an operator typed, as JSON; nothing typed: not known."""
    if not text.strip():
        return ...
    try:
        return json.decode(text)
    except (DecodeError, UnicodeError) as error:
        raise InvalidOption(f"the result is no JSON: {error}; text goes in quotes") from error
