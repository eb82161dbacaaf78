"""How sinks hook into what they watch, a store, a worker or a relay, so that each event reaches them once."""

from __future__ import annotations

from effectonce.contracts import Hook
from effectonce.errors import ConfigurationError
from effectonce.relay.relay import Relay
from effectonce.store import Store
from effectonce.worker.worker import Worker

Watched = Store | Worker | Relay

#: Further scopes are counted as `OTHER_SCOPES`: scopes made of data must not fill the metrics server with series.
MAX_SCOPES = 500
OTHER_SCOPES = "(other)"


def store_of(watched: Watched) -> Store | None:
    """Return the store behind ``watched``; None for a worker in transactions, which has none."""
    if isinstance(watched, Store):
        return watched
    if isinstance(watched, Worker | Relay):
        return watched.store
    raise ConfigurationError(f"a sink watches a Store, a Worker or a Relay, not {type(watched).__name__}")


def hook_into(watched: Watched, hook: Hook) -> None:
    """Send the events of ``watched`` to ``hook``. Calling it twice changes nothing: a store calls each hook once."""
    store = store_of(watched)
    if store is not None:
        store.add_hook(hook)
    elif isinstance(watched, Worker):
        watched.events.add_hook(hook)
