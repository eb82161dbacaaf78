"""`effectonce dashboard`: serves the dashboard; by default on this machine only."""

from __future__ import annotations

import os
import secrets
import socket
from typing import Annotated

import typer

from effectonce.broker import connect_broker
from effectonce.errors import ConfigurationError, MissingDriver, show
from effectonce.intents.intents import Intents
from effectonce.sagas.saga import Saga
from effectonce.store import Store, connect, require_existing
from effectonce.telemetry.audit_log import AuditLog

from . import options
from .output import report
from .programs import load_program, load_worker
from .settings import find_setting

OPERATOR_TOKEN_VARIABLE = "EFFECTONCE_DASHBOARD_TOKEN"
VIEWER_TOKEN_VARIABLE = "EFFECTONCE_DASHBOARD_VIEWER_TOKEN"
Names = list[str] | None


def dashboard(
    store_url: options.StoreUrl = None,
    broker_url: options.BrokerUrl = None,
    worker: Annotated[
        Names, typer.Option(metavar="MODULE:WORKER", help="A worker whose dead letters to show. Repeatable.")
    ] = None,
    intents: Annotated[
        Names, typer.Option(metavar="MODULE:INTENTS", help="Intents to show and decide. Repeatable.")
    ] = None,
    saga: Annotated[Names, typer.Option(metavar="MODULE:SAGA", help="A saga to show and decide. Repeatable.")] = None,
    outbox: options.OutboxUrl = None,
    table: options.Table = None,
    queue: options.Queues = None,
    group: options.Group = "worker",
    metrics: Annotated[
        Names, typer.Option(metavar="URL", help="The /metrics of a worker, for the plots. Repeatable.")
    ] = None,
    inbox: options.InboxUrl = None,
    inbox_table: options.InboxTable = None,
    audit: options.AuditFile = None,
    host: Annotated[str, typer.Option(metavar="ADDRESS", help="Listen on this address.")] = "127.0.0.1",
    port: Annotated[
        int, typer.Option(metavar="PORT", min=0, max=65535, help="Listen on this port. 0: any that is free.")
    ] = 8765,
    allow_remote: Annotated[
        bool, typer.Option("--allow-remote", help="Allow an --host that other machines reach.")
    ] = False,
    allow_host: Annotated[
        Names,
        typer.Option(metavar="NAME", help="Also answer to this host name, for a reverse proxy. Repeatable."),
    ] = None,
    as_json: options.Json = False,
) -> None:
    """Show what ran, what is stuck and what is in doubt, and fix it: on http://127.0.0.1:8765.

    Log in with the token of a role, operator or viewer: from EFFECTONCE_DASHBOARD_TOKEN and
    EFFECTONCE_DASHBOARD_VIEWER_TOKEN, else generated and printed.
    """
    try:
        import uvicorn

        from effectonce.dashboard.access import LOOPBACK_HOSTS, Access, require_safe_bind
        from effectonce.dashboard.app import make_app
        from effectonce.dashboard.sources import Sources
    except ImportError as error:
        raise MissingDriver(f"the dashboard needs {error.name}: pip install 'effectonce[dashboard]'") from None
    chosen_token = os.environ.get(OPERATOR_TOKEN_VARIABLE)
    require_safe_bind(host, remote=allow_remote, token_given=bool(chosen_token))
    operator = chosen_token or secrets.token_urlsafe(24)
    viewer = os.environ.get(VIEWER_TOKEN_VARIABLE) or (None if chosen_token else secrets.token_urlsafe(24))
    broker_url = find_setting("broker", broker_url)
    sources = Sources(
        _open(find_setting("store", store_url)),
        broker=None if broker_url is None else connect_broker(broker_url),
        workers=[load_worker(name) for name in worker or ()],
        intents=[load_program(name, "shop.billing:intents", Intents) for name in intents or ()],
        sagas=[load_program(name, "shop.orders:saga", Saga) for name in saga or ()],
        outbox=_open(outbox),
        table=table,
        inbox=_open(inbox),
        inbox_table=inbox_table,
        queues=queue or (),
        group=group,
        metrics=metrics or (),
        audit=AuditLog(find_setting("audit", audit)),
    )
    access = Access(operator=operator, viewer=viewer, hosts=[*LOOPBACK_HOSTS, host.strip("[]"), *(allow_host or ())])
    listener = _listen(host.strip("[]"), port)
    shown = f"[{host.strip('[]')}]" if ":" in host else host
    url, store = f"http://{shown}:{listener.getsockname()[1]}", repr(sources.store.runtime.backend)
    generated = {} if chosen_token else {"operator": operator, "viewer": viewer}
    lines = [f"{url} shows {store}", *(f"{f'{role} token:':<15} {token}" for role, token in generated.items())]
    report(as_json, "\n".join(f"[dashboard] {line}" for line in lines), url=url, store=store, tokens=generated)
    config = uvicorn.Config(
        make_app(sources, access),
        access_log=False,
        server_header=False,
        log_level="warning",
        timeout_graceful_shutdown=5,  # so that a page that waits for a hanging server does not hold up Ctrl-C
    )
    uvicorn.Server(config).run(sockets=[listener])


def _open(url: str | None) -> Store | None:
    if url is None:
        return None
    store = connect(url, sweep_every=None)
    require_existing(store.runtime.backend, options.MIGRATE_HINT)
    return store


def _listen(host: str, port: int) -> socket.socket:
    """Bind the port before its address is printed, so that the printed address answers."""
    try:
        return socket.create_server((host, port), family=socket.AF_INET6 if ":" in host else socket.AF_INET)
    except OSError as error:
        raise ConfigurationError(
            f"{show(host)} port {port} cannot be listened on ({error.strerror or error}): choose another --port, or 0 "
            "for any that is free"
        ) from error
