"""``python -m benchmarks.page FIGURES.json …``: the documentation's pages and plots, from what ``--json`` wrote.

``docs/benchmarks.md`` has the summary; each suite has a page of its own in ``docs/benchmarks``.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from . import plot
from .measure import Line, Result, number

DOCS = Path(__file__).resolve().parent.parent / "docs"

SUITES = {
    "guard": ("the guard", "A guarded handler, beside the raw driver and beside libraries that do the same job."),
    "transactional": ("the inbox", "Dedup in your own transaction, beside the same statements by hand."),
    "relay": ("the relay", "From a PostgreSQL outbox to a broker, beside a loop written for nothing else."),
    "worker": ("the worker", "Messages through a handler with dedup, beside the bare client and other frameworks."),
    "sagas": (
        "intents and sagas",
        "Steps and calls that survive a crash, beside bare commits. PostgreSQL with fsync on, one process.",
    ),
    "http": ("the HTTP middleware", "Requests through a real server, with and without the middleware."),
    "telemetry": ("telemetry", "What it costs to watch."),
    "lint": ("the checker", "What it finds, and how many lines of Python a second, on one core."),
    "dashboard": ("the dashboard", "Pages over a million records."),
}

#: What the summary shows: the table, the base of the ratio, and how a reader would say it.
HEADLINES = [
    (
        "Redis Streams, no-op handler",
        "FastStream, no dedup",
        "worker on Redis Streams, beside FastStream",
    ),
    ("Redis Streams, no-op handler", "dramatiq, no dedup", "the same, beside dramatiq"),
    ("RabbitMQ, quorum queue, no-op handler", "bare aio-pika, single acks, no dedup", "on RabbitMQ, beside aio-pika"),
    (
        "PostgreSQL, 100 concurrent async handlers",
        "psycopg, pool of 10, autocommit",
        "guard on PostgreSQL, beside psycopg",
    ),
    ("Redis, 100 concurrent async handlers", "idemkit", "guard on Redis, beside idemkit"),
    ("Redis, 100 concurrent async handlers", "redis.asyncio, SET NX and SET", "the same, beside SET NX and SET"),
    ("HTTP, Redis, a new key each", "idemkit", "HTTP middleware on Redis, beside idemkit"),
    ("HTTP, Redis, requests without a key", "the bare application", "HTTP requests that need no guard"),
    ("inbox.first and an UPDATE in a psycopg transaction", "by hand", "inbox, beside the same statements by hand"),
    ("three steps, 50 sagas at once", "a commit per step, the same store", "50 sagas, beside a commit per step"),
]

HEAD = """# Benchmarks

effectonce beside its alternatives: 1 means equal, 2 means twice as fast or half the size. Each bar is a ratio from one
run on one machine.

![Ratios of effectonce to the alternatives beside it](images/benchmarks/summary.svg)

| area | what is measured |
|---|---|
{areas}

## How we measure

Every claim is a ratio between effectonce and the raw driver, or a peer. Both take turns in the same run, so that a slow
moment hits both. The first round warms up and is left out. The tables have medians, with the lowest and the highest in
brackets. For rates, a ratio is ours divided by theirs; for times and sizes, theirs divided by ours.

Absolute rates belong to one machine. Ratios carry over to yours, but not to the last digit: processors and builds of
Python differ.

```console
$ make bench                                               # all of it, about {minutes} minutes on two quiet cores
$ make bench ARGS="guard --part redis"                     # one part
$ make bench ARGS="--json figures.json --plots plots"      # keep the figures, draw the plots
```

Measured on {day} with Python {python} on {cores} cores, client and server on one machine over loopback.

## Targets

The store in memory, and telemetry that is off, have no targets any more: what a guard costs there is a few
microseconds, and a round trip to a store is a hundred.

Of {asked} targets that we set ourselves, {met} are met{missed}
"""


def pages(document: dict[str, Any], images: Path, minutes: int) -> dict[str, str]:
    """Every page as Markdown, by its path in the documentation; their plots are written into ``images``."""
    about, tables = document["about"], document["tables"]
    lines = [line for table in tables for line in table["lines"] if line["targets"]]
    missed = [
        f"- {table['name']}: {line['name']} is {ratio:.2f} x {other}; the target is {line['targets'][other]:.3g}"
        for table in tables
        for line in table["lines"]
        for other, ratio in line["ratios"].items()
        if ratio < line["targets"].get(other, 0)
    ]
    asked = sum(len(line["targets"]) for line in lines)
    suites = {suite: [table for table in tables if table["suite"] == suite] for suite in SUITES}
    head = HEAD.format(
        areas="\n".join(
            f"| [{title}](benchmarks/{suite}.md) | {what} |" for suite, (title, what) in SUITES.items() if suites[suite]
        ),
        minutes=minutes,
        day=about["at"][:10],
        python=about["python"],
        cores=about["cores"],
        asked=asked,
        met=asked - len(missed),
        missed=". These are missed:\n" if missed else ".",
    )
    images.mkdir(parents=True, exist_ok=True)
    (images / "summary.svg").write_text(plot.ratios(list(headlines(tables))))
    out = {"benchmarks.md": head + "".join(f"{line}\n" for line in missed)}
    for suite, (title, what) in SUITES.items():
        if suites[suite]:
            out[f"benchmarks/{suite}.md"] = area_page(title, what, [read(table) for table in suites[suite]], images)
    return out


def headlines(tables: list[dict[str, Any]]) -> Iterator[tuple[str, float]]:
    """The ratios of the summary. One whose table was not measured is left out."""
    for name, other, words in HEADLINES:
        for table in tables:
            ratios = [line["ratios"][other] for line in table["lines"] if line["ours"] and other in line["ratios"]]
            if table["name"] == name and ratios:
                yield words, max(ratios)


def area_page(title: str, what: str, results: list[Result], images: Path) -> str:
    out = [f"# Benchmarks: {title}", "", what, "", "[All areas](../benchmarks.md)"]
    for result in results:
        name = plot.file_name(result)
        (images / name).write_text(plot.svg(result))
        out += ["", f"## {result.name}", "", f"{result.unit}{'; ' + result.note if result.note else ''}", ""]
        out += [f"![{result.name}](../{images.relative_to(DOCS)}/{name})", "", *rows(result)]
    return "\n".join(out) + "\n"


def rows(result: Result) -> list[str]:
    """A table of the lines of ``result``."""
    out = ["| | median | ratio | target |", "|---|---|---|---|"]
    for line in result.lines:
        ratios = "<br>".join(f"{ratio:.2f} x {other}" for other, ratio in line.ratios.items())
        targets = "<br>".join(
            f"{target:.3g}{'' if line.ratios[other] >= target else ', missed'}"
            for other, target in line.targets.items()
        )
        name = f"**{line.name}**" if line.ours else line.name
        out.append(
            f"| {name} | {number(line.median)} [{number(line.low)} to {number(line.high)}] | {ratios} | {targets} |"
        )
    return out


def read(table: dict[str, Any]) -> Result:
    """What `Result.to_json` wrote."""
    lines = [Line(**{name: value for name, value in line.items() if name != "met"}) for line in table["lines"]]
    return Result(table["name"], table["unit"], table["note"], lines)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.page", description=__doc__)
    parser.add_argument(
        "figures", type=Path, nargs="+", help="what --json wrote; later files replace tables of earlier"
    )
    parser.add_argument("--minutes", type=int, default=30, help="how long a whole run took")
    options = parser.parse_args()
    documents = [json.loads(path.read_text()) for path in options.figures]
    tables = {(table["suite"], table["name"]): table for document in documents for table in document["tables"]}
    document = {"about": documents[-1]["about"], "tables": list(tables.values())}
    for path, text in pages(document, DOCS / "images" / "benchmarks", options.minutes).items():
        (DOCS / path).parent.mkdir(exist_ok=True)
        (DOCS / path).write_text(text)


if __name__ == "__main__":
    main()
