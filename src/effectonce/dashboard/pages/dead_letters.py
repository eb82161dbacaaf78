"""Dead letters: looked at, tried on paper, then redriven."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from starlette.responses import Response

from effectonce.dashboard import formatting as reading
from effectonce.dashboard.context import Ask, link
from effectonce.dead_letters.queue import DeadLetterDetails, DeadLetterQueue, Redrive
from effectonce.errors import InvalidOption

SHOWN: Final = 100

MEANING: Final = {
    "execute": "runs for the first time",
    "resume": "runs again, as its next attempt",
    "no-op": "is done: acked, nothing happens",
    "in-progress": "runs just now: comes again later",
    "in-doubt": "stays: it is in doubt, decide it first",
    "failed": "stays: it failed for good",
    "mismatch": "stays: its key was used with another payload",
    "unreadable": "stays: it cannot be read",
    "unknown": "only its worker can tell",
}


def listed(ask: Ask) -> Response:
    name = ask.text("queue") or next(iter(ask.sources.letters), "")
    there = name in ask.sources.letters
    after = ask.text("after") or None
    found = ask.sources.letters[name].list(limit=SHOWN + 1, after=after) if there else []
    letters, more = found[:SHOWN], len(found) > SHOWN
    total = ask.sources.letters[name].count() if there else 0
    counts = {**dict.fromkeys(ask.sources.letters), **ask.desk.watcher.letters}
    if there:
        counts[name] = ask.desk.watcher.letters[name] = total
    return ask.render(
        "letters.html",
        queues=counts,
        queue=name if there else "",
        letters=letters,
        total=total,
        next=link("/letters", queue=name, after=letters[-1].id) if more else "",
        later=after is not None,
        key_of=key_of,
    )


def one(ask: Ask) -> Response:
    dead = _queue(ask).show(ask.text("id"))
    body = reading.as_json(dead.packet.body) if ask.session.acts else ""
    return ask.render("letter.html", dead=dead, queue=ask.text("queue"), body=body, key_of=key_of)


def preview(ask: Ask) -> Response:
    """What a redrive would do, letter by letter. Nothing is changed."""
    queue, ids, anew = _queue(ask), _chosen(ask), bool(ask.text("new_generation"))
    report = queue.redrive(select=lambda dead: dead.id in ids, limit=len(ids), dry_run=True, new_generation=anew)
    going = [each for each in report if _goes(each)]
    return _report(ask, report, dry_run=True, going=going, anew=anew)


def redrive(ask: Ask) -> Response:
    """Send those again that the dry run showed. One at a time: of two operators with the same letters, and of a form
    that is sent twice, the second finds them gone, where it would otherwise have started their effects once more."""
    queue, ids, anew = _queue(ask), _chosen(ask), bool(ask.text("new_generation"))
    detail = f"{len(ids)} chosen{', as a new generation' if anew else ''}: {', '.join(sorted(ids))}"
    with ask.desk.redriving, ask.audited("dlq redrive", f"{queue.queue} of {queue.group}", detail=detail):
        report = queue.redrive(select=lambda dead: dead.id in ids, limit=len(ids), new_generation=anew)
    return _report(ask, report, dry_run=False, going=[each for each in report if each.sent], anew=anew)


def _report(ask: Ask, report: Sequence[Redrive], **values: Any) -> Response:
    return ask.render("redrive.html", report=report, queue=ask.text("queue"), meaning=MEANING, key_of=key_of, **values)


def _goes(each: Redrive) -> bool:
    return each.fate in ("execute", "resume", "no-op", "in-progress", "unknown")


def _queue(ask: Ask) -> DeadLetterQueue:
    queue = ask.sources.letters.get(ask.text("queue"))
    if queue is None:
        raise InvalidOption("there is no such queue here; name its worker by --worker, or it by --queue")
    return queue


def _chosen(ask: Ask) -> frozenset[str]:
    ids = frozenset(ask.form.get("id", ()))
    if not ids:
        raise InvalidOption("choose the dead letters that are meant")
    return ids


def key_of(dead: DeadLetterDetails) -> str:
    return dead.cause.key or (dead.message.key if dead.message is not None else "")
