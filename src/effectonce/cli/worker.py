"""`effectonce run`: a worker as a process."""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable
from typing import Annotated, Any

import typer

from effectonce.core.registry import named
from effectonce.errors import ConfigurationError, show
from effectonce.guard.introspection import name_of
from effectonce.worker.worker import Worker

from .options import Json, report
from .terminal import Screen

WorkerName = Annotated[
    str, typer.Argument(metavar="MODULE:WORKER", help="The worker, as in shop.worker:worker.", show_default=False)
]

Listen = Annotated[
    str | None,
    typer.Option(
        metavar="ADDRESS",
        help="Serve /metrics, /healthz and /readyz here: 127.0.0.1:9464, or :9464 for the same.",
        show_default=False,
    ),
]


def run(
    worker: WorkerName,
    check: Annotated[bool, typer.Option("--check", help="Only run the start-up checks.")] = False,
    verbose: Annotated[bool, typer.Option("--verbose", "-v", help="Log what it does, too.")] = False,
    listen: Listen = None,
    as_json: Json = False,
) -> None:
    """Consume queues until SIGTERM or Ctrl-C, which drain; a second one gives everything back at once."""
    found = find_worker(worker)
    logging.basicConfig(stream=sys.stderr, level=logging.INFO if verbose else logging.WARNING, format=LOG)
    tell = _told(found.name, as_json)
    for route in found.routes:
        kind = f"type {show(route.type)}" if route.type is not None else "every other type"
        tell(
            f"{found.name}: {route.queue}, {kind}: {route.name}, {route.concurrency} at once",
            event="handler",
            queue=route.queue,
            type=route.type,
            handler=route.name,
            concurrency=route.concurrency,
        )
    if check:
        found.run_check()
        tell(f"{found.broker.backend!r} and its records can keep their promise", event="checked", ok=True)
        return
    found.listen = listen or found.listen
    found.run()
    tell(f"{found.name} has stopped", event="stopped")
    if found.interrupted:
        raise KeyboardInterrupt


def _told(worker: str, as_json: bool) -> Callable[..., None]:
    """How the worker says what it does: in lines for people, or an object a line."""

    def tell(text: str, **facts: object) -> None:
        if as_json:
            report(True, "", worker=worker, **facts)
        else:
            Screen().tell("worker", text)

    return tell


LOG = "%(asctime)s %(levelname)s %(name)s: %(message)s"


def find_worker(name: str) -> Worker:
    """The worker that ``module:worker`` names; anything else is `ConfigurationError`."""
    found: Any = named(name, "shop.worker:worker")
    if not isinstance(found, Worker):
        raise ConfigurationError(f"{show(name)!r} is {name_of(type(found))}, not a Worker")
    return found
