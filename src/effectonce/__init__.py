"""effectonce: at-least-once delivery, exactly-once effect.

import effectonce as eo

    store = eo.connect("sqlite:///shop.db")

    @eo.once(store, scope="charge-card", key="payment_id")
    def charge(payment_id: str, amount: int) -> Receipt: ...
"""

# ruff: noqa: F403 - type checkers read the names in `public`

from importlib import import_module
from typing import TYPE_CHECKING, Any

from . import errors
from .errors import *

__version__ = "0.1.0"

#: The module of each public name that is not an error. It is loaded when the name is first used, and with it only what
#: it needs.
_MODULES = {
    "Ack": "core.delivery_outcome",
    "Block": "guard.block",
    "Broker": "broker",
    "DeadLetterQueue": "dead_letters.queue",
    "Done": "sagas.steps",
    "Event": "contracts",
    "GLOBAL": "guard.once",
    "Guarded": "guard.once",
    "Inbox": "inbox.inbox",
    "Intent": "intents.operations",
    "Intents": "intents.intents",
    "Message": "message",
    "Outbox": "outbox.outbox",
    "Outcome": "guard.once",
    "PostgresStore": "store",
    "Record": "record",
    "Redeliver": "core.delivery_outcome",
    "RedisStore": "store",
    "Reject": "core.delivery_outcome",
    "Relay": "relay.relay",
    "Retry": "core.retry",
    "Run": "core.guarded_call.run",
    "Saga": "sagas.saga",
    "Step": "sagas.steps",
    "Store": "store",
    "Worker": "worker.worker",
    "block": "guard.block",
    "bypass_external_effects": "dead_letters.bypass",
    "connect": "store",
    "connect_broker": "broker",
    "current": "core.guarded_call.run",
    "dispatcher": "guard.dispatch",
    "keys": "keys",
    "once": "guard.once",
}

__all__ = [*_MODULES, *errors.__all__]

if TYPE_CHECKING:
    from .public import *
else:

    def __getattr__(name: str) -> Any:
        """A public name, or a module of ours by its name, as in ``effectonce.contracts``."""
        if name in _MODULES:
            # Packages first: Python 3.11 locks a submodule before its package, and two threads would deadlock where the
            # package itself imports that submodule.
            path = __name__
            for step in _MODULES[name].split("."):
                path = f"{path}.{step}"
                module = import_module(path)
            value = globals()[name] = module if name == "keys" else getattr(module, name)
            return value
        if not name.startswith("_"):
            try:
                return import_module(f"{__name__}.{name}")
            except ModuleNotFoundError as missing:
                if missing.name != f"{__name__}.{name}":  # the module exists, but something that it imports does not
                    raise
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")

    def __dir__() -> list[str]:
        return sorted({*globals(), *__all__})
