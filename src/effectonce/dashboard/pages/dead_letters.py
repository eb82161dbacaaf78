"""Dead letters: the list, one of them, the dry run of a redrive, and the redrive."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from starlette.responses import Response

from effectonce.dashboard.context import RequestContext
from effectonce.dead_letters.queue import PUBLISHED_FATES, DeadLetterQueue, Redrive
from effectonce.display.formatting import format_json
from effectonce.display.redrives import describe_redrive
from effectonce.errors import InvalidOption

PAGE_SIZE: Final = 100


def show_list(context: RequestContext) -> Response:
    queues = context.sources.dead_letter_queues
    name = context.text("queue") or next(iter(queues), "")
    queue = queues.get(name)
    after = context.text("after") or None
    polled = context.dashboard.poller.dead_letter_counts
    dead_letters = queue.list(limit=PAGE_SIZE + 1, after=after) if queue is not None else []
    page, more = dead_letters[:PAGE_SIZE], len(dead_letters) > PAGE_SIZE
    if queue is not None:
        polled[name] = queue.count()
    return context.render(
        "dead_letters.html",
        queues={**dict.fromkeys(queues), **polled},
        queue=name if queue is not None else "",
        dead_letters=page,
        total=polled.get(name, 0),
        next=context.next_page(page[-1].id if more else None, field="after", queue=name),
        later=after is not None,
    )


def show_one(context: RequestContext) -> Response:
    dead = _queue(context).show(context.text("id"))
    body = format_json(dead.packet.body) if context.session.can_act else ""
    return context.render("dead_letter.html", dead=dead, queue=context.text("queue"), body=body)


def preview(context: RequestContext) -> Response:
    """Show what a redrive would do with each dead letter. Nothing is changed."""
    report = _redrive(context, dry_run=True)
    sendable = [redrive for redrive in report if redrive.fate in PUBLISHED_FATES]
    return _render_report(context, report, dry_run=True, sent=sendable)


def redrive(context: RequestContext) -> Response:
    """Send those again that the dry run showed.

    Redrives run one at a time. If two operators choose the same dead letters, or a form is sent twice, the second
    redrive finds them gone; side by side, both would start a new generation, and its effects twice.
    """
    queue, ids = _queue(context), _chosen_ids(context)
    generation = ", as a new generation" if _wants_new_generation(context) else ""
    detail = f"{len(ids)} chosen{generation}: {', '.join(sorted(ids))}"
    with context.dashboard.redrive_lock, context.audit("dlq redrive", f"{queue.queue} of {queue.group}", detail=detail):
        report = _redrive(context, dry_run=False)
    return _render_report(context, report, dry_run=False, sent=[redrive for redrive in report if redrive.sent])


def _redrive(context: RequestContext, *, dry_run: bool) -> Sequence[Redrive]:
    ids = _chosen_ids(context)
    return _queue(context).redrive(
        select=lambda dead: dead.id in ids,
        limit=len(ids),
        dry_run=dry_run,
        new_generation=_wants_new_generation(context),
    )


def _render_report(context: RequestContext, report: Sequence[Redrive], **values: Any) -> Response:
    return context.render(
        "redrive.html",
        report=report,
        queue=context.text("queue"),
        new_generation=_wants_new_generation(context),
        describe_redrive=describe_redrive,
        **values,
    )


def _queue(context: RequestContext) -> DeadLetterQueue:
    queue = context.sources.dead_letter_queues.get(context.text("queue"))
    if queue is None:
        raise InvalidOption("this dashboard has no such queue; start it with --worker MODULE:WORKER or --queue NAME")
    return queue


def _chosen_ids(context: RequestContext) -> frozenset[str]:
    ids = frozenset(context.form.get("id", ()))
    if not ids:
        raise InvalidOption("no dead letter is chosen; choose at least one")
    return ids


def _wants_new_generation(context: RequestContext) -> bool:
    return bool(context.text("new_generation"))
