"""What every sink does alike: find the store behind what it is to watch, and be told each event once."""

from __future__ import annotations

from effectonce.contracts import Hook
from effectonce.errors import ConfigurationError
from effectonce.relay.relay import Relay
from effectonce.store import Store
from effectonce.worker.worker import Worker

Watched = Store | Worker | Relay

#: Scopes beyond these are counted as one, so that names made of data cannot fill the server that scrapes.
MAX_SCOPES = 500
OTHER = "(other)"


def store_of(watched: Watched) -> Store | None:
    """The store behind ``watched``; None: a worker in transactions has none."""
    if isinstance(watched, Store):
        return watched
    if isinstance(watched, Worker | Relay):
        return watched.store
    raise ConfigurationError(f"a Store, a Worker or a Relay can be watched, not {type(watched).__name__}")


def hook_into(watched: Watched, hook: Hook) -> None:
    """Let ``hook`` be told what happens to ``watched``, once for each event, however often this is asked for."""
    store = store_of(watched)
    if store is not None:
        store.add_hook(hook)
    elif isinstance(watched, Worker):
        watched.events.add_hook(hook)
