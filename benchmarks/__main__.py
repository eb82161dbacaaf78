"""``python -m benchmarks [SUITE …] [--part NAME …] [--json FILE] [--plots FOLDER] [--scale 0.1]``"""

from __future__ import annotations

import argparse
import json
import os
import platform
import sys
from collections.abc import Callable, Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path

from . import dashboard, guard, http, lint, plot, relay, sagas, telemetry, transactional, worker
from .measure import Result, Table, progress_to_stderr, run, show

SUITES: dict[str, Mapping[str, Callable[[float], Iterator[Table]]]] = {
    "guard": guard.PARTS,
    "transactional": transactional.PARTS,
    "relay": relay.PARTS,
    "http": http.PARTS,
    "sagas": sagas.PARTS,
    "worker": worker.PARTS,
    "lint": lint.PARTS,
    "dashboard": dashboard.PARTS,
    "telemetry": telemetry.PARTS,
}


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("suites", nargs="*", choices=[*SUITES, []], help="which suites (default: all)")
    parser.add_argument("--part", action="append", help="only these parts of a suite, for example redis")
    parser.add_argument("--json", type=Path, help="write every figure here")
    parser.add_argument("--plots", type=Path, help="write one SVG a table into this folder")
    parser.add_argument("--scale", type=float, default=1.0, help="size of the work; below 1 for a quick look")
    options = parser.parse_args()
    progress = progress_to_stderr()
    results: list[tuple[str, Result]] = []
    for suite in options.suites or SUITES:
        for part, tables in SUITES[suite].items():
            if options.part and part not in options.part:
                continue
            for table in tables(options.scale):
                result = run(table, progress)
                progress("")
                print(show(result), flush=True)
                results.append((suite, result))
                if options.plots:
                    options.plots.mkdir(parents=True, exist_ok=True)
                    (options.plots / plot.file_name(result)).write_text(plot.svg(result))
    missed = [line.name for _, result in results for line in result.lines if not line.met]
    met = [line for _, result in results for line in result.lines if line.targets]
    print(f"targets met: {len(met) - len(missed)} of {len(met)}")
    if options.json:
        about = {
            "at": datetime.now(UTC).isoformat(timespec="seconds"),
            "python": platform.python_version(),
            "cores": os.cpu_count(),
            "scale": options.scale,
        }
        document = {"about": about, "tables": [{"suite": suite, **result.to_json()} for suite, result in results]}
        options.json.write_text(json.dumps(document, indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main())
