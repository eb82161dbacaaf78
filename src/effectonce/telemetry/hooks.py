"""How sinks hook into what they watch, a store, a worker or a relay, so that each event reaches them once."""

from __future__ import annotations

from effectonce.contracts import Hook
from effectonce.errors import ConfigurationError
from effectonce.inbox.inbox import Inbox
from effectonce.relay.relay import Relay
from effectonce.store import Store
from effectonce.worker.worker import Worker

Watched = Store | Worker | Relay | Inbox

#: Further scopes are counted as `OTHER_SCOPES`: scopes made of data must not fill the metrics server with series.
MAX_SCOPES = 500
OTHER_SCOPES = "(other)"


def store_of(watched: Watched) -> Store | None:
    """Return the store behind ``watched``; None for an inbox, and for a worker in transactions, which have none."""
    if isinstance(watched, Store):
        return watched
    if isinstance(watched, Worker | Relay):
        return watched.store
    if isinstance(watched, Inbox):
        return None
    raise ConfigurationError(f"a sink watches a Store, a Worker, a Relay or an Inbox, not {type(watched).__name__}")


def is_private(watched: Watched) -> bool:
    """Whether the keys in the events of ``watched`` are secret."""
    keeper = store_of(watched) or (watched.inbox if isinstance(watched, Worker) else watched)
    return isinstance(keeper, Store | Inbox) and keeper.private


def hook_into(watched: Watched, hook: Hook) -> None:
    """Send the events of ``watched`` to ``hook``. Calling it twice changes nothing: a store calls each hook once."""
    store = store_of(watched)
    if store is not None:
        store.add_hook(hook)
    elif isinstance(watched, Worker):
        watched.events.add_hook(hook)
    elif isinstance(watched, Inbox):
        watched.add_hook(hook)
