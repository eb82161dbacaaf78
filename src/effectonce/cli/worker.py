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
    verbose: Annotated[bool, typer.Option("--verbose", "-v", help="Log informational events, too.")] = False,
    listen: Listen = None,
    as_json: Json = False,
) -> None:
    """Consume queues until SIGTERM or Ctrl-C, which drain; a second one returns all messages at once."""
    consumer = find_worker(worker)
    logging.basicConfig(stream=sys.stderr, level=logging.INFO if verbose else logging.WARNING, format=LOG_FORMAT)
    print_line = _make_reporter(consumer.name, as_json)
    for route in consumer.routes:
        kind = f"type {show(route.type)}" if route.type is not None else "every other type"
        print_line(
            f"{consumer.name}: {route.queue}, {kind}: {route.name}, {route.concurrency} at once",
            event="handler",
            queue=route.queue,
            type=route.type,
            handler=route.name,
            concurrency=route.concurrency,
        )
    if check:
        consumer.run_check()
        print_line(f"{consumer.broker.backend!r} and its records can keep their promise", event="checked", ok=True)
        return
    consumer.listen = listen or consumer.listen
    consumer.run()
    print_line(f"{consumer.name} has stopped", event="stopped")
    if consumer.interrupted:
        raise KeyboardInterrupt


def _make_reporter(worker: str, as_json: bool) -> Callable[..., None]:
    """Return a function that prints a line for people, or a JSON object on one line."""

    def print_line(text: str, **facts: object) -> None:
        if as_json:
            report(True, "", worker=worker, **facts)
        else:
            Screen().print_tagged("worker", text)

    return print_line


LOG_FORMAT = "%(asctime)s %(levelname)s %(name)s: %(message)s"


def find_worker(name: str) -> Worker:
    """Return the worker that ``module:worker`` names. Raises `ConfigurationError` where it is something else."""
    worker: Any = named(name, "shop.worker:worker")
    if not isinstance(worker, Worker):
        raise ConfigurationError(f"{show(name)!r} is {name_of(type(worker))}, not a Worker")
    return worker
