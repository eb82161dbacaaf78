"""`effectonce verify`: delivers to a handler in every way that a queue may, and counts its effects."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import msgspec
import typer

from effectonce.display.terminal import Screen
from effectonce.errors import ConfigurationError, show
from effectonce.message import Message
from effectonce.store import Store
from effectonce.testing.http_subject import HttpRequest, find_asgi_route, is_asgi_app
from effectonce.testing.idempotence import make_subject
from effectonce.testing.subjects import CeleryTask, Subject
from effectonce.testing.trials import IdempotenceTrials, Report, Trial
from effectonce.testing.worker_subject import find_route, only_queue
from effectonce.worker.worker import Worker

from .loading import load_object
from .options import Json
from .output import print_json
from .progress import Progress


def verify(
    handler: Annotated[
        str,
        typer.Argument(
            metavar="MODULE:HANDLER",
            help="A function, a worker's handler, a worker (MODULE:WORKER:QUEUE), a Celery task, an HTTP route, or an "
            "ASGI app.",
        ),
    ],
    effects: Annotated[
        str,
        typer.Option(
            "--effects", "-e", metavar="MODULE:FUNCTION", help="Counts the effects that must not happen twice."
        ),
    ],
    message: Annotated[
        Path | None,
        typer.Option(
            "--message",
            "-m",
            help="A JSON file: what a function or task is called with (an object is its arguments), the data of a "
            "message, or the body of a request.",
        ),
    ] = None,
    request: Annotated[
        str, typer.Option(metavar="'METHOD PATH'", help="For an app: the request, as in 'POST /orders'.")
    ] = "",
    header: Annotated[
        list[str] | None,
        typer.Option("--header", "-H", metavar="'NAME: VALUE'", help="A header of the request. May be repeated."),
    ] = None,
    reset: Annotated[
        str, typer.Option(metavar="MODULE:FUNCTION", help="Clears the handler's state between trials.")
    ] = "",
    keep_store: Annotated[
        list[str] | None,
        typer.Option(
            metavar="MODULE:STORE",
            help="Do not replace this store (needed if the handler completes intents in its own transaction). "
            "May be repeated.",
        ),
    ] = None,
    strict: Annotated[bool, typer.Option("--strict", help="Also fail where the mode allows a repeat.")] = False,
    as_json: Json = False,
) -> None:
    """Kill a handler at every step, deliver it again, and count its effects.

    It runs your handler for real, dozens of times. Never point it at a live payment provider: calls to other services
    are made.

    The handler need not use effectonce. Exit code 1 if an effect was lost or doubled.
    """
    subject = _load_subject(handler, message, request, header or [])
    with Progress() as progress:
        trials = IdempotenceTrials(
            subject,
            _load_function(effects),
            reset=_load_function(reset) if reset else None,
            strict=strict,
            keep_stores=[_load_store(name) for name in keep_store or []],
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


def _load_subject(name: str, path: Path | None, request: str, headers: list[str]) -> Subject:
    """Load what ``name`` names, and make what is tried of it and the message."""
    module, _, rest = name.partition(":")
    attribute, _, queue = rest.partition(":")
    target = load_object(f"{module}:{attribute}" if queue else name, "shop.tasks:charge")
    http_subject = _make_http_subject_of(target, request, path, headers)
    if http_subject is not None:
        return http_subject
    if request:
        raise ConfigurationError(f"--request is for an ASGI application, and {show(name)!r} is not one: give shop:app")
    if headers:
        raise ConfigurationError("--header is for a request to an app; give --request 'POST /orders', too")
    if path is None:
        raise ConfigurationError("give --message FILE: a JSON file with what the handler is called with")
    value = _read_json(path)
    if isinstance(target, Worker):
        return _make_worker_subject(target, queue or only_queue(target), value, module)
    if queue:
        raise ConfigurationError(f"{show(attribute)!r} is not a worker, so it has no queue: write {module}:{attribute}")
    return _make_function_subject(target, value)


def _make_worker_subject(worker: Worker, queue: str, value: Any, module: str) -> Subject:
    """Make a worker the subject, with a message in ``queue`` of the one type that it takes there."""
    types = [route.type for route in worker.routes_of(queue)]
    if len(types) > 1:
        raise ConfigurationError(
            f"queue {show(queue)} has handlers for several types of message; name one of the functions instead, as "
            f"in {show(module)}:charge"
        )
    message: Message[Any] = Message(data=value, type=(types[0] if types else None) or "")
    return make_subject(worker, (message,), {"queue": queue})


def _make_function_subject(target: Any, value: Any) -> Subject:
    """Make a function, a task or a worker's handler the subject. `make_subject` says what cannot be one."""
    if not callable(target):
        return make_subject(target, (), {})
    route = find_route(target)
    if route is not None:
        return make_subject(target, (Message(data=value, type=route[1].type or ""),), {})
    return make_subject(target, *arguments(target.run if isinstance(target, CeleryTask) else target, value))


def _make_http_subject_of(target: Any, request: str, path: Path | None, headers: list[str]) -> Subject | None:
    """Make an ASGI app, or the app of a route's function, the subject. None: ``target`` is neither."""
    if is_asgi_app(target):
        return _make_http_subject(target, request, path, headers)
    asgi_route = None if isinstance(target, Worker | CeleryTask) else find_asgi_route(target)
    if asgi_route is None:
        return None
    app, method, url = asgi_route
    if "{" in url and not request:
        raise ConfigurationError(f"its path is {url}: say which request, as in --request '{method} /orders/1'")
    return _make_http_subject(app, request or f"{method} {url}", path, headers)


def _make_http_subject(app: Any, request: str, path: Path | None, headers: list[str]) -> Subject:
    method, _, url = request.partition(" ")
    if not url:
        raise ConfigurationError("an application is verified by a request to it: give --request 'POST /orders'")
    sent = {}
    for header in headers:
        key, _, value = header.partition(":")
        if not value.strip():
            raise ConfigurationError(f"--header {show(header)!r} has no value; write 'Authorization: Bearer abc'")
        sent[key.strip()] = value.strip()
    body = None if path is None else _read_json(path)
    return make_subject(app, (HttpRequest(method, url.strip(), body, sent),), {})


def _load_function(name: str) -> Any:
    function = load_object(name, "shop.tasks:charge")
    if not callable(function):
        raise ConfigurationError(f"{show(name)!r} is a {type(function).__name__}, which cannot be called")
    return function


def _load_store(name: str) -> Store:
    store = load_object(name, "shop.billing:store")
    if not isinstance(store, Store):
        raise ConfigurationError(f"--keep-store {show(name)!r} is a {type(store).__name__}, not a store of effectonce")
    return store


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
