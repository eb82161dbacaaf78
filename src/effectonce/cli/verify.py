"""`effectonce verify`: delivers to a handler in every way that a queue may, and counts its effects."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import msgspec
import typer

from effectonce.errors import ConfigurationError, show
from effectonce.message import Message
from effectonce.testing.trials import IdempotenceTrials, Report, Trial

from .loading import load_object
from .options import Json
from .output import print_json
from .terminal import Progress, Screen


def verify(
    handler: Annotated[str, typer.Argument(metavar="MODULE:HANDLER", help="The handler, as in shop.tasks:charge.")],
    message: Annotated[
        Path, typer.Option("--message", "-m", help="What it is called with: a JSON file (an object is its arguments).")
    ],
    effects: Annotated[
        str,
        typer.Option(
            "--effects", "-e", metavar="MODULE:FUNCTION", help="Counts the effects that must not happen twice."
        ),
    ],
    reset: Annotated[
        str, typer.Option(metavar="MODULE:FUNCTION", help="Clears the handler's state between trials.")
    ] = "",
    strict: Annotated[bool, typer.Option("--strict", help="Fail where the mode says that it may repeat, too.")] = False,
    as_json: Json = False,
) -> None:
    """Kill a handler at every step, deliver it again, and count its effects.

    It need not use effectonce: see your own double charge before you adopt anything. Exit code 1 where one is found.
    """
    function = _load_function(handler)
    args, kwargs = arguments(function, _read_json(message))
    with Progress() as progress:
        trials = IdempotenceTrials(
            function,
            args,
            kwargs,
            _load_function(effects),
            reset=_load_function(reset) if reset else None,
            strict=strict,
            on_trial=lambda trial, total: progress.step(trial.scenario, total=total),
        )
        report = trials.run_blocking()
    if as_json:
        print_json({"handler": report.handler, "ok": not report.failures, "trials": report.trials})
    else:
        _print_report(report)
    if report.failures:
        raise typer.Exit(1)


def _print_report(report: Report) -> None:
    screen = Screen()
    scenarios: dict[str, list[Trial]] = {}
    for trial in report.trials:
        scenarios.setdefault(trial.scenario, []).append(trial)
    for scenario, trials in scenarios.items():
        failures = [trial for trial in trials if trial in report.failures]
        repeated = sum(trial.verdict == "may repeat" for trial in trials)
        if failures:
            verdict = f"{len(failures)} of {len(trials)} trials: {failures[0].verdict}"
            screen.print_tagged("fail", f"{scenario}: {verdict}", "red")
        elif repeated:
            text = f"{scenario}: repeated in {repeated} of {len(trials)} trials, where its mode says it may"
            screen.print_tagged("may", text, "yellow")
        else:
            screen.print_tagged("ok", f"{scenario}: one effect in {len(trials)} of {len(trials)} trials", "green")
    screen.print()
    screen.print(str(report))


def _load_function(name: str) -> Any:
    function = load_object(name, "shop.tasks:charge")
    if not callable(function):
        raise ConfigurationError(f"{show(name)!r} is a {type(function).__name__}, which cannot be called")
    return function


def _read_json(path: Path) -> Any:
    try:
        return msgspec.json.decode(path.read_bytes())
    except (OSError, ValueError) as error:
        raise ConfigurationError(f"{show(path)} cannot be read as JSON: {error}") from error


def arguments(function: Callable[..., Any], value: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Return ``value`` as the arguments of ``function``: as the data of a `Message` where it takes one; an object whose
    members are its parameters, as keywords; else as its one argument."""
    parameters = inspect.signature(function).parameters
    first = next(iter(parameters.values()), None)
    if first is not None and "Message" in str(first.annotation):
        return (Message(data=value),), {}
    if isinstance(value, dict) and value and set(value) <= set(parameters):
        return (), value
    return (value,), {}
