"""`effectonce verify`: deliver a handler in every way that a queue might, and count its effects."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import msgspec
import typer

from effectonce.core.registry import named
from effectonce.core.run_sync import run_sync
from effectonce.errors import ConfigurationError, show
from effectonce.guard.introspection import is_async, name_of
from effectonce.message import Message
from effectonce.testing.idempotence import Bench, Report, Trial

from .terminal import Progress, Screen

Json = Annotated[bool, typer.Option("--json", help="Print one JSON object.")]


def verify(
    handler: Annotated[str, typer.Argument(metavar="MODULE:HANDLER", help="The handler, as in shop.tasks:charge.")],
    message: Annotated[
        Path, typer.Option("--message", "-m", help="What it is called with: a JSON file (an object is its arguments).")
    ],
    effects: Annotated[
        str, typer.Option("--effects", "-e", metavar="MODULE:FUNCTION", help="Counts what must not happen twice.")
    ],
    reset: Annotated[
        str, typer.Option("--reset", metavar="MODULE:FUNCTION", help="Clears what the handler keeps between trials.")
    ] = "",
    strict: Annotated[bool, typer.Option("--strict", help="Fail where the mode says that it may repeat, too.")] = False,
    as_json: Json = False,
) -> None:
    """Kill a handler at every step, deliver it again, and count its effects.

    It need not use effectonce: see your own double charge before you adopt anything. Exit code 1 where one is found.
    """
    function = _function(handler)
    args, kwargs = arguments(function, _read(message))
    progress = Progress()
    bench = Bench(
        function,
        args,
        kwargs,
        _function(effects),
        reset=_function(reset) if reset else None,
        strict=strict,
        on_trial=lambda trial, of: progress.step(trial.scenario, of),
    )
    run = bench.run()
    try:
        report = Report(name_of(function), asyncio.run(run) if is_async(function) else run_sync(run))
    finally:
        progress.wipe()
    if as_json:
        facts = {"handler": report.handler, "ok": not report.failures, "trials": report.trials}
        print(msgspec.json.encode(facts).decode())
    else:
        _show(report)
    if report.failures:
        raise typer.Exit(1)


def _show(report: Report) -> None:
    screen = Screen()
    scenarios: dict[str, list[Trial]] = {}
    for trial in report.trials:
        scenarios.setdefault(trial.scenario, []).append(trial)
    for scenario, trials in scenarios.items():
        bad = [trial for trial in trials if trial in report.failures]
        repeated = sum(trial.verdict == "may repeat" for trial in trials)
        if bad:
            verdict = f"{len(bad)} of {len(trials)} trials: {bad[0].verdict}"
            screen.tell("fail", f"{scenario}: {verdict}", "red")
        elif repeated:
            text = f"{scenario}: repeated in {repeated} of {len(trials)} trials, where its mode says it may"
            screen.tell("may", text, "yellow")
        else:
            screen.tell("ok", f"{scenario}: one effect in {len(trials)} of {len(trials)} trials", "green")
    screen.say()
    screen.say(str(report))


def _function(name: str) -> Any:
    found = named(name, "shop.tasks:charge")
    if not callable(found):
        raise ConfigurationError(f"{show(name)!r} is a {type(found).__name__}, which cannot be called")
    return found


def _read(path: Path) -> Any:
    try:
        return msgspec.json.decode(path.read_bytes())
    except (OSError, ValueError) as error:
        raise ConfigurationError(f"{show(path)} cannot be read as JSON: {error}") from error


def arguments(function: Callable[..., Any], value: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """``value`` as the arguments of ``function``: the data of a `Message` where it takes one, else an object by its
    members' names where those are its parameters, else the one argument."""
    parameters = inspect.signature(function).parameters
    first = next(iter(parameters.values()), None)
    if first is not None and "Message" in str(first.annotation):
        return (Message(data=value),), {}
    if isinstance(value, dict) and value and set(value) <= set(parameters):
        return (), value
    return (value,), {}
