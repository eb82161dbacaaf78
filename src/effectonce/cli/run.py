"""`effectonce run`: a worker as a process."""

from __future__ import annotations

import logging
import sys
from typing import Annotated

import typer

from effectonce.errors import show

from . import options
from .output import report
from .programs import load_worker

LOG_FORMAT = "%(asctime)s %(levelname)s %(name)s: %(message)s"


def run(
    name: options.WorkerName,
    check: Annotated[bool, typer.Option("--check", help="Only run the start-up checks.")] = False,
    verbose: Annotated[bool, typer.Option("--verbose", "-v", help="Log informational events, too.")] = False,
    listen: options.Listen = None,
    as_json: options.Json = False,
) -> None:
    """Consume queues until SIGTERM or Ctrl-C, which drain; a second one returns all messages at once."""
    worker = load_worker(name)
    logging.basicConfig(stream=sys.stderr, level=logging.INFO if verbose else logging.WARNING, format=LOG_FORMAT)
    for route in worker.routes:
        kind = f"type {show(route.type)}" if route.type is not None else "every other type"
        report(
            as_json,
            f"[worker] {worker.name}: {route.queue}, {kind}: {route.name}, {route.concurrency} at once",
            worker=worker.name,
            event="handler",
            queue=route.queue,
            type=route.type,
            handler=route.name,
            concurrency=route.concurrency,
        )
    if check:
        worker.run_check()
        text = f"[worker] {worker.broker.backend!r} and its records can keep their promise"
        report(as_json, text, worker=worker.name, event="checked", ok=True)
        return
    worker.listen = listen or worker.listen
    worker.run()
    report(as_json, f"[worker] {worker.name} has stopped", worker=worker.name, event="stopped")
    if worker.interrupted:
        raise KeyboardInterrupt
