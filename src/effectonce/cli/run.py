"""`effectonce run`: workers and relays as a process."""

from __future__ import annotations

import logging
import shlex
import sys
from collections.abc import Sequence
from importlib.util import find_spec
from typing import Annotated, Final

import typer

from effectonce.errors import MissingDriver, show
from effectonce.relay.relay import Relay
from effectonce.worker.worker import Worker

from . import options
from .output import report
from .programs import load_service

RELOAD_DRAIN_S: Final = 30
"""How long a changed program may take to drain before it is killed; what it held is delivered again."""

LOG_FORMAT = "%(asctime)s %(levelname)s %(name)s: %(message)s"


def run(
    names: Annotated[
        list[str],
        typer.Argument(metavar="MODULE:NAME", help="Workers and relays, as in shop.worker:worker shop.relay:relay."),
    ],
    check: Annotated[bool, typer.Option("--check", help="Run only the start-up checks, then exit.")] = False,
    verbose: Annotated[bool, typer.Option("--verbose", "-v", help="Also log what succeeds.")] = False,
    reload: Annotated[
        bool, typer.Option("--reload", help="Restart when a Python file changes, for development.")
    ] = False,
    listen: options.Listen = None,
    as_json: options.Json = False,
) -> None:
    """Run workers and relays in one process until SIGTERM or Ctrl-C.

    The first signal drains: running handlers finish. A second signal stops at once and returns unfinished messages. If
    one of the programs fails, the others also stop.

    Example: effectonce run shop.worker:worker shop.relay:relay --listen :9464
    """
    if reload:
        run_with_reload()
        return
    programs = [load_service(name) for name in names]
    logging.basicConfig(stream=sys.stderr, level=logging.INFO if verbose else logging.WARNING, format=LOG_FORMAT)
    workers = [program for program in programs if isinstance(program, Worker)]
    for worker in workers:
        _report_handlers(worker, as_json)
    companions = [companion for worker in workers for companion in worker.companions]
    relays = [program for program in (*programs, *companions) if isinstance(program, Relay)]
    for relay in relays:
        source, target = repr(relay.store), repr(relay.broker)
        report(as_json, f"[relay] {source} to {target}", relay=source, event="relay", broker=target)
    if check:
        for worker in workers:
            worker.run_check()
            text = f"[worker] {worker.broker.backend!r} and its records can keep their promise"
            report(as_json, text, worker=worker.name, event="checked", ok=True)
        for relay in relays:
            relay.check()
            report(
                as_json,
                f"[relay] the outbox in {relay.store!r} can be relayed",
                relay=repr(relay.store),
                event="checked",
                ok=True,
            )
        return
    host = _join(programs)
    host.listen = listen or host.listen
    host.run()
    for worker in workers:
        report(as_json, f"[worker] {worker.name} has stopped", worker=worker.name, event="stopped")
    if host.interrupted:
        raise KeyboardInterrupt


def _join(programs: Sequence[Worker | Relay]) -> Worker | Relay:
    """Return the program that runs all of ``programs``: the first worker, or else the first relay, with the others as
    its companions."""
    worker = next((program for program in programs if isinstance(program, Worker)), None)
    if worker is None:
        relay, *others = [program for program in programs if isinstance(program, Relay)]
        for other in others:
            relay.add(other)
        return relay
    for program in programs:
        if program is not worker:
            worker.add(program)
    return worker


def _report_handlers(worker: Worker, as_json: bool) -> None:
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


def run_with_reload() -> None:
    """Run this command without ``--reload`` in a process of its own, and again whenever a Python file changes."""
    if find_spec("watchfiles") is None:
        raise MissingDriver("--reload needs watchfiles; run: pip install 'effectonce[reload]'")
    from watchfiles import PythonFilter, run_process

    arguments = [argument for argument in sys.argv[1:] if argument != "--reload"]
    command = shlex.join([sys.executable, "-m", "effectonce", *arguments])
    run_process(".", target=command, target_type="command", watch_filter=PythonFilter(), sigint_timeout=RELOAD_DRAIN_S)
