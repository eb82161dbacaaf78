"""`effectonce run`: a worker as a process."""

from __future__ import annotations

import logging
import sys
from typing import Annotated, Any

import typer

from effectonce.errors import ConfigurationError, show
from effectonce.handlers import name_of
from effectonce.loading import named
from effectonce.worker import Worker

from .terminal import Screen, without_secrets

WorkerName = Annotated[
    str, typer.Argument(metavar="MODULE:WORKER", help="The worker, as in shop.worker:worker.", show_default=False)
]


def run(
    worker: WorkerName,
    check: Annotated[bool, typer.Option("--check", help="Only run the start-up checks.")] = False,
    verbose: Annotated[bool, typer.Option("--verbose", "-v", help="Log what it does, too.")] = False,
) -> None:
    """Consume queues until SIGTERM, which drains; a second one gives everything back at once."""
    found = find_worker(worker)
    logging.basicConfig(stream=sys.stderr, level=logging.INFO if verbose else logging.WARNING, format=LOG)
    screen = Screen()
    for route in found.routes:
        kind = f"type {show(route.type)}" if route.type is not None else "every other type"
        screen.tell("worker", f"{found.name}: {route.queue}, {kind}: {route.name}, {route.concurrency} at once")
    if check:
        found.run_check()
        screen.tell("worker", f"{without_secrets(repr(found.broker.backend))} and its records can keep their promise")
        return
    found.run()
    screen.tell("worker", f"{found.name} has stopped")


LOG = "%(asctime)s %(levelname)s %(name)s: %(message)s"


def find_worker(name: str) -> Worker:
    """The worker that ``module:worker`` names; anything else is `ConfigurationError`."""
    found: Any = named(name, "shop.worker:worker")
    if not isinstance(found, Worker):
        raise ConfigurationError(f"{show(name)!r} is {name_of(type(found))}, not a Worker")
    return found
