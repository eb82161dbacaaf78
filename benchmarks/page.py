"""``python -m benchmarks.page FIGURES.json …``: the documentation's page and plots, from what ``--json`` wrote."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from . import plot
from .measure import Line, Result, number

DOCS = Path(__file__).resolve().parent.parent / "docs"

SUITES = {
    "guard": ("The guard", "Wrapping a handler, beside the raw driver and beside libraries that do the same job."),
    "transactional": ("The inbox", "Dedup in the caller's own transaction, beside the same statements by hand."),
    "relay": ("The relay", "From a PostgreSQL outbox to a broker, beside a loop written for nothing else."),
    "worker": ("The worker", "Messages through a handler with dedup, beside the bare client and other frameworks."),
    "sagas": ("Intents and sagas", "PostgreSQL with fsync on, one process."),
    "http": ("The HTTP middleware", "Requests through a real server, with and without the middleware."),
    "telemetry": ("Telemetry", "What it costs to be watched."),
    "lint": ("The checker", "Lines of Python a second, on one core."),
    "dashboard": ("The dashboard", "Pages over a million records."),
}

HEAD = """# Benchmarks

Every claim is a ratio: ours beside the raw driver or a peer, in one run, in interleaved rounds, so that a slow moment
hits both. The first round warms up and is left out; then medians, with the lowest and the highest in brackets. Absolute
rates are this machine's and say little; ratios carry over, but not to the last digit: processors and builds of Python
differ. A ratio says how many times as good ours is: of rates ours by theirs, of times and sizes theirs by ours.

```console
$ make bench                                               # all of it, about {minutes} minutes on two quiet cores
$ make bench ARGS="guard --part redis"                     # one part
$ make bench ARGS="--json figures.json --plots plots"      # keep the figures, draw the plots
```

Measured on {day} with Python {python} on {cores} cores, client and server on one machine over loopback. Of
{asked} targets that we set ourselves {met} are met{missed}
"""


def page(document: dict[str, Any], images: Path, minutes: int) -> str:
    """The page as Markdown; its plots are written into ``images``."""
    about = document["about"]
    lines = [line for table in document["tables"] for line in table["lines"] if line["targets"]]
    missed = [
        f"{line['name']} in “{table['name']}”: {ratio:.2f} x {other}, {line['targets'][other]:.3g} wanted"
        for table in document["tables"]
        for line in table["lines"]
        for other, ratio in line["ratios"].items()
        if ratio < line["targets"][other]
    ]
    out = [
        HEAD.format(
            minutes=minutes,
            day=about["at"][:10],
            python=about["python"],
            cores=about["cores"],
            asked=sum(len(line["targets"]) for line in lines),
            met=sum(len(line["targets"]) for line in lines) - len(missed),
            missed=". Missed:" if missed else ".",
        )
    ]
    out += [f"- {each}" for each in missed]
    images.mkdir(parents=True, exist_ok=True)
    for suite, (title, what) in SUITES.items():
        tables = [table for table in document["tables"] if table["suite"] == suite]
        if tables:
            out += ["", f"## {title}", "", what]
        for table in tables:
            result = read(table)
            name = plot.file_name(result)
            (images / name).write_text(plot.svg(result))
            out += ["", f"### {result.name}", "", f"{result.unit}{'; ' + result.note if result.note else ''}", ""]
            out += [f"![{result.name}]({images.relative_to(DOCS)}/{name})", "", *rows(result)]
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
    (DOCS / "benchmarks.md").write_text(page(document, DOCS / "images" / "benchmarks", options.minutes))


if __name__ == "__main__":
    main()
