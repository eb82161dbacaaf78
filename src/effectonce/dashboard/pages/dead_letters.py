"""Dead letters: the list, one of them, the dry run of a redrive, and the redrive."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from starlette.responses import Response

from effectonce.dashboard import formatting
from effectonce.dashboard.context import RequestContext, link
from effectonce.dead_letters.queue import DeadLetterDetails, DeadLetterQueue, Redrive
from effectonce.errors import InvalidOption

PAGE_SIZE: Final = 100

#: What a redrive leads to, by the redrive preview's word.
RESULTS: Final = {
    "execute": "runs for the first time",
    "resume": "runs again, as its next attempt",
    "no-op": "is done: acked, nothing happens",
    "in-progress": "is running now: redelivered later",
    "in-doubt": "stays: it is in doubt, decide it first",
    "failed": "stays: it failed for good",
    "mismatch": "stays: its key was used with another payload",
    "unreadable": "stays: it cannot be read",
    "unknown": "only its worker can tell",
}
#: With these a redrive sends the dead letter; the others would only come back.
SENT_RESULTS: Final = frozenset({"execute", "resume", "no-op", "in-progress", "unknown"})


def show_list(context: RequestContext) -> Response:
    queues = context.sources.dead_letter_queues
    name = context.text("queue") or next(iter(queues), "")
    queue = queues.get(name)
    after = context.text("after") or None
    dead_letters = queue.list(limit=PAGE_SIZE + 1, after=after) if queue is not None else []
    page, more = dead_letters[:PAGE_SIZE], len(dead_letters) > PAGE_SIZE
    total = queue.count() if queue is not None else 0
    polled = context.dashboard.poller.dead_letter_counts
    counts = {**dict.fromkeys(queues), **polled}
    if queue is not None:
        counts[name] = polled[name] = total
    return context.render(
        "dead_letters.html",
        queues=counts,
        queue=name if queue is not None else "",
        dead_letters=page,
        total=total,
        next=link("/dead-letters", queue=name, after=page[-1].id) if more else "",
        later=after is not None,
        key_of=key_of,
    )


def show_one(context: RequestContext) -> Response:
    dead = _queue(context).show(context.text("id"))
    body = formatting.as_json(dead.packet.body) if context.session.acts else ""
    return context.render("dead_letter.html", dead=dead, queue=context.text("queue"), body=body, key_of=key_of)


def preview(context: RequestContext) -> Response:
    """Show what a redrive would do with each dead letter. Nothing is changed."""
    queue, ids, new_generation = _queue(context), _chosen_ids(context), _wants_new_generation(context)
    report = queue.redrive(
        select=lambda dead: dead.id in ids, limit=len(ids), dry_run=True, new_generation=new_generation
    )
    going = [redrive for redrive in report if redrive.fate in SENT_RESULTS]
    return _render_report(context, report, dry_run=True, going=going, new_generation=new_generation)


def redrive(context: RequestContext) -> Response:
    """Send those again that the dry run showed.

    Redrives run one at a time: when two operators choose the same dead letters, or a form is sent twice, the second
    finds them gone. Run client by client, they would start the effects of a new generation twice.
    """
    queue, ids, new_generation = _queue(context), _chosen_ids(context), _wants_new_generation(context)
    detail = f"{len(ids)} chosen{', as a new generation' if new_generation else ''}: {', '.join(sorted(ids))}"
    with context.dashboard.redrive_lock, context.audit("dlq redrive", f"{queue.queue} of {queue.group}", detail=detail):
        report = queue.redrive(select=lambda dead: dead.id in ids, limit=len(ids), new_generation=new_generation)
    sent = [redrive for redrive in report if redrive.sent]
    return _render_report(context, report, dry_run=False, going=sent, new_generation=new_generation)


def _render_report(context: RequestContext, report: Sequence[Redrive], **values: Any) -> Response:
    return context.render(
        "redrive.html", report=report, queue=context.text("queue"), results=RESULTS, key_of=key_of, **values
    )


def _queue(context: RequestContext) -> DeadLetterQueue:
    queue = context.sources.dead_letter_queues.get(context.text("queue"))
    if queue is None:
        raise InvalidOption("there is no such queue here; name its worker by --worker, or it by --queue")
    return queue


def _chosen_ids(context: RequestContext) -> frozenset[str]:
    ids = frozenset(context.form.get("id", ()))
    if not ids:
        raise InvalidOption("no dead letter is chosen; choose at least one")
    return ids


def _wants_new_generation(context: RequestContext) -> bool:
    return bool(context.text("new_generation"))


def key_of(dead: DeadLetterDetails) -> str:
    return dead.cause.key or (dead.message.key if dead.message is not None else "")
