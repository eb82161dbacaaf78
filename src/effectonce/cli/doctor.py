"""`effectonce doctor`: reports what would break the promise, why it matters, and what to run."""

from __future__ import annotations

from collections import Counter
from contextlib import ExitStack
from itertools import groupby
from typing import Annotated, Any

import msgspec
import typer
from rich.table import Table
from rich.text import Text

from effectonce.broker import connect_broker
from effectonce.display.terminal import Colour, Screen
from effectonce.doctor import SEVERITIES, DoctorCheck, DoctorReport, Limits, examine
from effectonce.errors import ConfigurationError, show
from effectonce.intents.intents import Intents
from effectonce.relay.relay import Relay
from effectonce.store import connect
from effectonce.values.durations import micros
from effectonce.worker.worker import Worker

from . import options, settings
from .output import WHOLE, print_json
from .programs import close_program, load_program
from .tables import make_console

_COLOURS: dict[str, Colour] = {"ok": "green", "error": "red", "warning": "yellow", "note": "dim", "skipped": "dim"}
_RESULT_COLUMNS = len("[warning]")


def doctor(
    programs: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="MODULE:NAME",
            help="Your workers, relays and intents, as in shop.worker:worker. Their stores, brokers and settings are "
            "checked.",
        ),
    ] = None,
    store_url: options.StoreUrl = None,
    broker_url: options.BrokerUrl = None,
    queue: options.Queues = None,
    group: options.Group = "worker",
    table: options.Table = None,
    fail_on: Annotated[
        str,
        typer.Option(
            metavar="SEVERITY",
            help=f"Exit with 1 from this severity on: {', '.join(SEVERITIES)}.",
            autocompletion=list(SEVERITIES).copy,
        ),
    ] = "warning",
    as_json: options.Json = False,
) -> None:
    """Check the store, the broker and your programs: what was checked, what is wrong, why it matters, what to run.

    Changes nothing, and is cheap however many records there are. Exit code 0: all is well; 1: something is wrong; 2:
    the check failed. For readiness probes: --fail-on error.

    Example: effectonce doctor shop.worker:worker shop.billing:intents
    """
    if fail_on not in SEVERITIES:
        raise ConfigurationError(f"--fail-on is one of {', '.join(SEVERITIES)}, not {show(fail_on)!r}")
    loaded: list[Any] = [load_program(name, "shop.worker:worker", Worker, Intents, Relay) for name in programs or ()]
    with ExitStack() as stack:
        for program in loaded:
            stack.callback(close_program, program)
        store_url = settings.find_setting("store", store_url)
        broker_url = settings.find_setting("broker", broker_url)
        if store_url is None and broker_url is None and not loaded:
            settings.require_url("store")
        report = examine(
            stack.enter_context(connect(store_url, sweep_every=None)) if store_url is not None else None,
            broker=stack.enter_context(connect_broker(broker_url)) if broker_url is not None else None,
            queues=queue or (),
            group=group,
            programs=loaded,
            outbox=table,
            limits=_limits(),
        )
    findings = report.findings
    failed = [finding for finding in findings if SEVERITIES.index(finding.severity) <= SEVERITIES.index(fail_on)]
    if as_json:
        checks = [
            {"about": check.about, "name": check.name, "result": check.result, "detail": check.detail}
            for check in report.checks
        ]
        print_json({"ok": not failed, "findings": findings, "checks": checks})
    else:
        _print_report(report)
    if failed:
        raise typer.Exit(1)


def _limits() -> Limits:
    """Read the limits in ``[tool.effectonce.doctor]``: spans as ``"10m"`` or in seconds, the rest as numbers."""
    section = settings.find_in_pyproject("doctor") or {}
    try:
        values = {
            name: micros(value, name) / 1e6 if isinstance(value, str) else value
            for name, value in dict(section).items()
        }
        return msgspec.convert(values, Limits)
    except (ValueError, TypeError) as error:
        raise ConfigurationError(f"[tool.effectonce.doctor] in pyproject.toml: {error}") from error


def _print_report(report: DoctorReport) -> None:
    """Print every check with its result; one that found something says why that matters, and what to run."""
    screen = Screen()
    for about, checks in groupby(report.checks, key=lambda check: check.about):
        screen.print(show(about, WHOLE), "bold")
        for check in checks:
            _print_check(screen, check)
        screen.print()
    findings, results = report.findings, Counter(check.result for check in report.checks)
    count_made = len(report.checks) - results["skipped"]
    made = f"{count_made} check{'s' * (count_made != 1)} made, {results['skipped']} skipped"
    if findings:
        counts = Counter(finding.severity for finding in findings)
        words = (f"{count} {severity}{'s' * (count != 1)}" for severity in SEVERITIES if (count := counts[severity]))
        screen.print(f"{', '.join(words)}; {made}")
    else:
        screen.print_tagged("ok", f"no findings: every promise can be kept; {made}", "green")


def _print_check(screen: Screen, check: DoctorCheck) -> None:
    if not check.findings:
        _print_marked(screen, f"[{check.result}]", _COLOURS[check.result], f"{check.name}: {check.detail}")
    for finding in check.findings:
        mark, colour = f"[{finding.severity}]", _COLOURS[finding.severity]
        _print_marked(screen, mark, colour, f"{finding.what}  ({finding.code})")
        _print_marked(screen, "    why", "dim", finding.why)
        _print_marked(screen, "    run", "dim", finding.run, wraps=False)  # so that it can be copied


def _print_marked(screen: Screen, mark: str, colour: Colour, text: str, *, wraps: bool = True) -> None:
    """Print ``text`` after its mark; where it wraps in a terminal, further lines are indented below the first."""
    text = show(text, WHOLE)
    if not (screen.live and wraps):
        screen.print(f"{screen.paint(f'{mark:<{_RESULT_COLUMNS}}', colour)} {text}")
        return
    line = Table.grid(padding=(0, 1))
    line.add_column(width=_RESULT_COLUMNS)
    line.add_column(overflow="fold")
    line.add_row(Text(mark, colour), Text(text))
    make_console(screen).print(line)
