"""The overview: what needs attention, live plots, and records by state."""

from __future__ import annotations

import time
from typing import Any, Final

from msgspec import Struct, json
from starlette.responses import Response

from effectonce.dashboard.context import RequestContext
from effectonce.dashboard.dashboard import link
from effectonce.dashboard.poller import Sample
from effectonce.display.formatting import STATE_WORDS, format_count, format_state_count
from effectonce.values.durations import format_span

#: The overview says so when no sweep has finished for this long (F37: records are not swept).
SWEEP_OVERDUE_US: Final = 15 * 60 * 1_000_000


class StateCount(Struct, frozen=True):
    """How many records are in a state, their share of the bar, and the page ``where`` they are listed."""

    state: str
    where: str
    word: str
    count: str
    percent: float


class Need(Struct, frozen=True):
    """Something that needs attention: ``count`` of ``what``, and the page ``where`` it is fixed."""

    tone: str
    count: str
    what: str
    where: str


def show_overview(context: RequestContext) -> Response:
    sample = context.dashboard.poller.sample()
    return context.render(
        "overview.html",
        has_metrics=bool(context.sources.metrics),
        counts_done=_counts_done(sample),
        has_outbox=context.sources.outbox is not None,
        **_page_values(context, sample),
    )


def send_figures(context: RequestContext) -> Response:
    """Send the figures that change on the overview, for ``static/dashboard.js``.

    The script finds the line of a need by its ``where``, which must equal the ``href`` in ``overview.html``. Where the
    needs on the page are other ones, it loads the page again.
    """
    poller = context.dashboard.poller
    values = _page_values(context, poller.sample())
    facts = {
        "series": poller.series(),
        "states": [{"state": counted.state, "count": counted.count} for counted in values["state_counts"]],
        "needs": [{"count": need.count, "where": need.where, "what": need.what} for need in values["needs"]],
    }
    return Response(json.encode(facts), media_type="application/json")


def _counts_done(sample: Sample | None) -> bool:
    """Tell whether the store counts the records that are done exactly, so that their growth can be plotted."""
    stats = sample.stats if sample is not None else None
    return stats is None or ("done" not in stats.approximate and stats.counts.get("done", 0) < stats.cap)


def _page_values(context: RequestContext, sample: Sample | None) -> dict[str, Any]:
    return {
        "sample": sample,
        "state_counts": _state_counts(sample),
        "needs": _list_needs(context, sample),
        "errors": dict(context.dashboard.poller.errors),
        "backlog": sample.backlog if sample is not None else None,
    }


def _state_counts(sample: Sample | None) -> list[StateCount]:
    """Return the counts in the order of the bar."""
    if sample is None or sample.stats is None:
        return []
    stats = sample.stats
    total = sum(stats.counts.values()) or 1
    return [
        StateCount(
            state,
            link("/records", state="failed_or_refused" if state == "failed" else state),
            word,
            format_state_count(stats, state),
            100 * stats.counts.get(state, 0) / total,
        )
        for state, word in STATE_WORDS.items()
    ]


def _list_needs(context: RequestContext, sample: Sample | None) -> list[Need]:
    """Return everything that needs attention, the worst first."""
    needs: list[Need] = []
    now = round(time.time() * 1e6)  # this machine's clock; the times in ``stats`` are the store's, so spans are about
    stats = sample.stats if sample is not None else None
    if stats is not None and (in_doubt := stats.counts.get("in_doubt", 0)):
        since = f", the oldest for {format_span(now - stats.oldest_in_doubt)}" if stats.oldest_in_doubt else ""
        what = f"in doubt{since}: decide whether the effect happened"
        needs.append(Need("in_doubt", format_count(in_doubt, stats.cap), what, "/in-doubt"))
    backlog = sample.backlog if sample is not None else None
    if backlog is not None and (parked := backlog.counts.get("parked", 0)):
        what = "parked in the outbox: messages with the same ordering key wait behind them"
        needs.append(Need("failed", format_count(parked, backlog.cap), what, "/outbox?state=parked"))
    for name, number in context.dashboard.poller.dead_letter_counts.items():
        if number:
            where = link("/dead-letters", queue=name)
            needs.append(
                Need("failed", format_count(number), f"dead letters of {name}: see why, then redrive them", where)
            )
    if stats is not None and stats.swept_at and now - stats.swept_at > SWEEP_OVERDUE_US:
        what = "since the last finished sweep: expired records stay, lapsed leases go unnoticed"
        needs.append(Need("free", format_span(now - stats.swept_at), what, "/doctor"))
    return needs
