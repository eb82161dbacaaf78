"""The overview: what needs somebody, and how it goes."""

from __future__ import annotations

import time
from typing import Any

from msgspec import json
from starlette.responses import Response

from effectonce.dashboard.context import Ask, link
from effectonce.dashboard.formatting import STATES, age, count
from effectonce.dashboard.poller import Sample

STALE = 15 * 60 * 1_000_000
"""After how long without a finished sweep that is worth a word (F37)."""


def overview(ask: Ask) -> Response:
    watcher = ask.desk.watcher
    sample = watcher.sample()
    plots = [
        ("deliveries", "Deliveries", "per second", bool(ask.sources.metrics)),
        ("first_runs", "First runs", "per second", bool(ask.sources.metrics) or _countable(sample)),
        ("duplicates", "Duplicates skipped", "per second", bool(ask.sources.metrics)),
        ("in_doubt", "In doubt", "records", True),
        ("outbox_lag", "Outbox lag", "seconds", ask.sources.outbox is not None),
    ]
    return ask.render("overview.html", plots=plots, **_seen(ask, sample))


def figures(ask: Ask) -> Response:
    """What changes on the overview, for its script."""
    sample = ask.desk.watcher.sample()
    seen = _seen(ask, sample)
    facts = {
        "series": ask.desk.watcher.series(),
        "states": [[name, text] for name, _, text, _ in seen["shares"]],
        "needs": [[number, where] for _, number, _, where in seen["needs"]],
    }
    return Response(json.encode(facts), media_type="application/json")


def _countable(sample: Sample | None) -> bool:
    """Whether the store counts what is done, so that its growth can be seen."""
    stats = sample.stats if sample is not None else None
    return stats is None or ("done" not in stats.approximate and stats.counts.get("done", 0) < stats.cap)


def _seen(ask: Ask, sample: Sample | None) -> dict[str, Any]:
    return {
        "sample": sample,
        "shares": _shares(sample),
        "needs": _needs(ask, sample),
        "errors": dict(ask.desk.watcher.errors),
        "backlog": sample.backlog if sample is not None else None,
        "letters": dict(ask.desk.watcher.letters),
    }


def _shares(sample: Sample | None) -> list[tuple[str, str, str, float]]:
    """(state, its word, how many, its share of the bar in per cent), in the order of the bar."""
    if sample is None or sample.stats is None:
        return []
    stats = sample.stats
    total = sum(stats.counts.values()) or 1
    shown = []
    for state, word in STATES.items():
        number = stats.counts.get(state, 0)
        about = "~" if state in stats.approximate else ""
        shown.append((state, word, about + count(number, stats.cap), 100 * number / total))
    return shown


def _needs(ask: Ask, sample: Sample | None) -> list[tuple[str, str, str, str]]:
    """(tone, how many, what, where): what somebody has to look at, the worst first."""
    needs: list[tuple[str, str, str, str]] = []
    now = round(time.time() * 1e6)
    stats = sample.stats if sample is not None else None
    if stats is not None and (doubts := stats.counts.get("in_doubt", 0)):
        since = f", the oldest for {age(now - stats.oldest_in_doubt)}" if stats.oldest_in_doubt else ""
        what = f"in doubt{since}: decide whether the effect happened"
        needs.append(("in_doubt", count(doubts, stats.cap), what, "/doubts"))
    backlog = sample.backlog if sample is not None else None
    if backlog is not None and (parked := backlog.counts.get("parked", 0)):
        what = "parked in the outbox: what shares their ordering key waits behind them"
        needs.append(("failed", count(parked, backlog.cap), what, "/outbox?state=parked"))
    for name, number in ask.desk.watcher.letters.items():
        if number:
            needs.append(("failed", count(number), f"dead letters of {name}", link("/letters", queue=name)))
    if stats is not None and stats.swept_at and now - stats.swept_at > STALE:
        what = "since the last finished sweep: expired records stay, lapsed leases are not seen"
        needs.append(("free", age(now - stats.swept_at), what, "/doctor"))
    return needs
