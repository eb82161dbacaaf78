"""`effectonce doctor`: reports what would break the promise, why it matters, and what to run."""

from __future__ import annotations

from collections import Counter
from contextlib import ExitStack
from itertools import groupby
from typing import Annotated, Any

import msgspec
import typer

from effectonce.broker import connect_broker
from effectonce.doctor import SEVERITIES, DoctorFinding, Limits, examine
from effectonce.errors import ConfigurationError, show
from effectonce.intents.intents import Intents
from effectonce.store import connect
from effectonce.values.durations import micros
from effectonce.worker.worker import Worker

from . import options, settings
from .output import print_json
from .programs import close_program, load_program
from .tables import wrap
from .terminal import Colour, Screen

_COLOURS: dict[str, Colour] = {"error": "red", "warning": "yellow", "note": "dim"}
_MIN_COLUMNS = 40


def doctor(
    programs: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="URL|MODULE:NAME…",
            help="The store, and your workers and intents (shop.worker:worker), whose settings are checked as well.",
        ),
    ] = None,
    store_url: options.StoreUrl = None,
    broker: options.BrokerUrl = None,
    queue: Annotated[
        list[str] | None, typer.Option(help="A queue whose dead letters are counted; may be repeated.")
    ] = None,
    group: Annotated[str, typer.Option(help="With --queue: the name of the worker.")] = "worker",
    table: Annotated[str | None, typer.Option(help="An outbox that `migrate` has not made.")] = None,
    fail_on: Annotated[str, typer.Option(help="Exit with 1 from here on: error, warning or note.")] = "warning",
    as_json: options.Json = False,
) -> None:
    """Check the store, the broker and your programs; report what is wrong, why it matters, and what to run.

    Changes nothing, and is cheap however many records there are. Exit code 0: all is well; 1: there are findings; 2:
    the check failed. For readiness probes: --fail-on error.
    """
    if fail_on not in SEVERITIES:
        raise ConfigurationError(f"--fail-on is one of {', '.join(SEVERITIES)}, not {show(fail_on)!r}")
    urls = [word for word in programs or () if "://" in word]
    if len(urls) + (store_url is not None) > 1:
        raise ConfigurationError("doctor looks at one store: give its URL once, by itself or with --store")
    names = [word for word in programs or () if "://" not in word]
    loaded: list[Any] = [load_program(name, "shop.worker:worker", Worker, Intents) for name in names]
    with ExitStack() as stack:
        for program in loaded:
            stack.callback(close_program, program)
        store_url = settings.find_setting("store", next(iter(urls), store_url))
        broker_url = settings.find_setting("broker", broker)
        if store_url is None and broker_url is None and not loaded:
            settings.require_url("store")
        findings = examine(
            stack.enter_context(connect(store_url, sweep_every=None)) if store_url is not None else None,
            broker=stack.enter_context(connect_broker(broker_url)) if broker_url is not None else None,
            queues=queue or (),
            group=group,
            programs=loaded,
            outbox=table,
            limits=_limits(),
        )
    failed = [finding for finding in findings if SEVERITIES.index(finding.severity) <= SEVERITIES.index(fail_on)]
    if as_json:
        print_json({"ok": not failed, "findings": findings})
    else:
        _print_findings(findings)
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


def _print_findings(findings: list[DoctorFinding]) -> None:
    screen = Screen()
    findings = sorted(findings, key=lambda finding: (SEVERITIES.index(finding.severity), finding.about))
    for about, group in groupby(findings, key=lambda finding: finding.about):
        screen.print(show(about, 300), "bold")
        for finding in group:
            mark = f"[{finding.severity}]"
            _print_wrapped(screen, mark, _COLOURS[finding.severity], f"{finding.what}  ({finding.code})")
            _print_wrapped(screen, "    why ", "dim", finding.why)
            _print_wrapped(screen, "    run ", "dim", finding.run)
            screen.print()
    counts = Counter(finding.severity for finding in findings)
    if findings:
        words = (f"{count} {severity}{'s' * (count != 1)}" for severity in SEVERITIES if (count := counts[severity]))
        screen.print(", ".join(words))
    else:
        screen.print_tagged("ok", "no findings: every promise can be kept", "green")


def _print_wrapped(screen: Screen, mark: str, colour: Colour, text: str) -> None:
    """Print ``text`` after its mark; further lines are indented below the first."""
    first, *more = wrap(show(text, 2000), max(_MIN_COLUMNS, screen.width - len(mark) - 2))
    screen.print(f"{screen.paint(mark, colour)} {first}")
    for line in more:
        screen.print(" " * (len(mark) + 1) + line)
