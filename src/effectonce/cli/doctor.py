"""`effectonce doctor`: what would keep the promise from being kept, why it matters, and what to run."""

from __future__ import annotations

from contextlib import ExitStack
from typing import Annotated, Any

import msgspec
import typer

from effectonce.broker import connect_broker
from effectonce.core.registry import named
from effectonce.doctor import SEVERITIES, Finding, Limits, examine
from effectonce.errors import ConfigurationError, show
from effectonce.intents.intents import Intents
from effectonce.store import connect
from effectonce.values.durations import micros
from effectonce.worker.worker import Worker

from . import settings
from .options import BrokerUrl, Json, StoreUrl
from .terminal import Colour, Screen, wrapped

_COLOURS: dict[str, Colour] = {"error": "red", "warning": "yellow", "note": "dim"}


def doctor(
    programs: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="URL|MODULE:NAME…",
            show_default=False,
            help="The store, and your workers and intents (shop.worker:worker), whose settings are checked as well.",
        ),
    ] = None,
    store: StoreUrl = None,
    broker: BrokerUrl = None,
    queue: Annotated[list[str] | None, typer.Option(help="Look into its dead letters; may be repeated.")] = None,
    group: Annotated[str, typer.Option(help="With --queue: the name of the worker.")] = "worker",
    table: Annotated[
        str | None, typer.Option(help="An outbox that `migrate` has not made.", show_default=False)
    ] = None,
    fail_on: Annotated[
        str, typer.Option("--fail-on", help="Exit with 1 from here on: error, warning or note.")
    ] = "warning",
    as_json: Json = False,
) -> None:
    """Look at the store, the broker and your programs; say what is wrong, why it matters, and what to run.

    Changes nothing, and is cheap however many records there are. Exit code 0: all is well; 1: there are findings; 2: it
    could not look. For readiness probes: --fail-on error.
    """
    if fail_on not in SEVERITIES:
        raise ConfigurationError(f"--fail-on is one of {', '.join(SEVERITIES)}, not {show(fail_on)!r}")
    urls = [each for each in programs or () if "://" in each]
    if len(urls) + (store is not None) > 1:
        raise ConfigurationError("doctor looks at one store: give its URL once, by itself or with --store")
    found = [_program(each) for each in programs or () if "://" not in each]
    with ExitStack() as stack:
        for each in found:
            stack.callback(_close, each)
        store_url = settings.setting("store", next(iter(urls), store))
        broker_url = settings.setting("broker", broker)
        if store_url is None and broker_url is None and not found:
            settings.url("store")
        findings = examine(
            stack.enter_context(connect(store_url, sweep_every=None)) if store_url is not None else None,
            broker=stack.enter_context(connect_broker(broker_url)) if broker_url is not None else None,
            queues=queue or (),
            group=group,
            programs=found,
            outbox=table,
            limits=_limits(),
        )
    failed = [each for each in findings if SEVERITIES.index(each.severity) <= SEVERITIES.index(fail_on)]
    if as_json:
        print(msgspec.json.encode({"ok": not failed, "findings": findings}).decode())
    else:
        _tell(findings)
    if failed:
        raise typer.Exit(1)


def _program(name: str) -> Worker | Intents:
    found: Any = named(name, "shop.worker:worker")
    if not isinstance(found, Worker | Intents):
        raise ConfigurationError(f"{show(name)!r} is a {type(found).__name__}, neither a Worker nor Intents")
    return found


def _close(program: Worker | Intents) -> None:
    """Its connections: what doctor has opened would complain when the process ends."""
    if isinstance(program, Worker):
        program.broker.close()
    if program.store is not None:
        program.store.close()


def _limits() -> Limits:
    """Those of ``[tool.effectonce.doctor]``: spans as ``"10m"`` or in seconds, counts and shares as numbers."""
    given = settings.in_project("doctor") or {}
    try:
        values = {
            name: micros(value, name) / 1e6 if isinstance(value, str) else value for name, value in dict(given).items()
        }
        unknown = [name for name in values if name not in Limits.__struct_fields__]
        if unknown:
            raise ValueError(f"{unknown[0]!r} is none of {', '.join(Limits.__struct_fields__)}")
        return msgspec.convert(values, Limits)
    except (ValueError, TypeError) as error:
        raise ConfigurationError(f"[tool.effectonce.doctor] in pyproject.toml: {error}") from error


def _wrapped(screen: Screen, mark: str, width: int, text: str) -> None:
    """``text`` behind its mark, of ``width`` columns, and below itself where it is long."""
    first, *more = wrapped(show(text, 2000), max(40, screen.width - width - 2))
    screen.say(f"{mark} {first}")
    for line in more:
        screen.say(" " * (width + 1) + line)


def _tell(findings: list[Finding]) -> None:
    screen = Screen()
    about = ""
    for finding in sorted(findings, key=lambda each: (SEVERITIES.index(each.severity), each.about)):
        if finding.about != about:
            about = finding.about
            screen.say(show(about, 300), "bold")
        mark = f"[{finding.severity}]"
        _wrapped(screen, screen.paint(mark, _COLOURS[finding.severity]), len(mark), f"{finding.what}  ({finding.code})")
        for label, text in (("why", finding.why), ("run", finding.run)):
            _wrapped(screen, f"    {screen.paint(label, 'dim')} ", 8, text)
        screen.say()
    counts = {each: sum(finding.severity == each for finding in findings) for each in SEVERITIES}
    if findings:
        screen.say(", ".join(f"{count} {word}{'s' * (count != 1)}" for word, count in counts.items() if count))
    else:
        screen.tell("ok", "nothing stands against the promise", "green")
