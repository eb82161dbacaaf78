"""The overview: what needs attention, and how it goes."""

from __future__ import annotations

import time
from typing import Any, Final

from msgspec import json
from starlette.responses import Response

from effectonce.dashboard.context import RequestContext, link
from effectonce.dashboard.poller import Sample
from effectonce.display.formatting import STATE_WORDS, format_count, format_span, format_state_count

SWEEP_OVERDUE_US: Final = 15 * 60 * 1_000_000
"""When no sweep has finished for this long, the overview says so (F37: records are not swept)."""


def overview(context: RequestContext) -> Response:
    sample = context.dashboard.poller.sample()
    return context.render(
        "overview.html",
        has_metrics=bool(context.sources.metrics),
        counts_done=_counts_done(sample),
        has_outbox=context.sources.outbox is not None,
        **_page_values(context, sample),
    )


def figures(context: RequestContext) -> Response:
    """Return what changes on the overview, for its script."""
    poller = context.dashboard.poller
    values = _page_values(context, poller.sample())
    facts = {
        "series": poller.series(),
        "states": [[name, text] for name, _, text, _ in values["shares"]],
        "needs": [[number, where] for _, number, _, where in values["needs"]],
    }
    return Response(json.encode(facts), media_type="application/json")


def _counts_done(sample: Sample | None) -> bool:
    """Tell whether the store counts the records that are done exactly, so that their growth can be plotted."""
    stats = sample.stats if sample is not None else None
    return stats is None or ("done" not in stats.approximate and stats.counts.get("done", 0) < stats.cap)


def _page_values(context: RequestContext, sample: Sample | None) -> dict[str, Any]:
    return {
        "sample": sample,
        "shares": _shares(sample),
        "needs": _needs(context, sample),
        "errors": dict(context.dashboard.poller.errors),
        "backlog": sample.backlog if sample is not None else None,
    }


def _shares(sample: Sample | None) -> list[tuple[str, str, str, float]]:
    """Return (state, its word, how many, its share of the bar in per cent), in the order of the bar."""
    if sample is None or sample.stats is None:
        return []
    stats = sample.stats
    total = sum(stats.counts.values()) or 1
    shares: list[tuple[str, str, str, float]] = []
    for state, word in STATE_WORDS.items():
        share = 100 * stats.counts.get(state, 0) / total
        shares.append((state, word, format_state_count(stats, state), share))
    return shares


def _needs(context: RequestContext, sample: Sample | None) -> list[tuple[str, str, str, str]]:
    """Return (tone, how many, what, where) of everything that needs attention, the worst first."""
    needs: list[tuple[str, str, str, str]] = []
    now = round(time.time() * 1e6)
    stats = sample.stats if sample is not None else None
    if stats is not None and (in_doubt := stats.counts.get("in_doubt", 0)):
        since = f", the oldest for {format_span(now - stats.oldest_in_doubt)}" if stats.oldest_in_doubt else ""
        what = f"in doubt{since}: decide whether the effect happened"
        needs.append(("in_doubt", format_count(in_doubt, stats.cap), what, "/in-doubt"))
    backlog = sample.backlog if sample is not None else None
    if backlog is not None and (parked := backlog.counts.get("parked", 0)):
        what = "parked in the outbox: messages with the same ordering key wait behind them"
        needs.append(("failed", format_count(parked, backlog.cap), what, "/outbox?state=parked"))
    for name, number in context.dashboard.poller.dead_letter_counts.items():
        if number:
            needs.append(("failed", format_count(number), f"dead letters of {name}", link("/dead-letters", queue=name)))
    if stats is not None and stats.swept_at and now - stats.swept_at > SWEEP_OVERDUE_US:
        what = "since the last finished sweep: expired records stay, lapsed leases go unnoticed"
        needs.append(("free", format_span(now - stats.swept_at), what, "/doctor"))
    return needs
