"""effectonce: at-least-once delivery, exactly-once effect.

import effectonce as eo

    store = eo.connect("sqlite:///shop.db")

    @eo.once(store, scope="charge-card", key="payment_id")
    def charge(payment_id: str, amount: int) -> Receipt: ...

The packages, in layers. Each imports only what stands below it (docs/internals/layout.md):

    around the tools  http integrations agents babelqueue; cli dashboard display doctor telemetry; testing demo
    the tools         guard inbox outbox relay intents sagas worker dead_letters, over the handles store and broker
    technologies      backends (stores and brokers), sessions (your connection), envelopes, providers
    core              the algorithms: the guarded call, group commit, the heartbeat, the codec, retries
    seams and values  contracts; errors, message, record, keys, values

`public` has the public names once more, for type checkers; a test keeps it equal to the table below.
"""

# ruff: noqa: F403 - type checkers read the names in `public`

from importlib import import_module
from typing import TYPE_CHECKING, Any

from . import errors

__version__ = "0.2.0"

#: The public names of each module, without the errors. A module is loaded when one of its names is first used, and with
#: it only what it needs.
_NAMES = {
    "broker": ("Broker", "RedisBroker", "connect_broker"),
    "contracts": ("Event",),
    "core.delivery_outcome": ("Ack", "Redeliver", "Reject"),
    "core.guarded_call.run": ("Run", "current"),
    "core.retry": ("Retry",),
    "dead_letters.bypass": ("bypass_external_effects",),
    "dead_letters.queue": ("DeadLetterQueue",),
    "guard.block": ("Block", "block"),
    "guard.dispatch": ("dispatcher",),
    "guard.once": ("GLOBAL", "Guarded", "Outcome", "once"),
    "inbox.inbox": ("Inbox",),
    "intents.intents": ("Intents",),
    "intents.operation": ("Intent",),
    "keys": ("keys",),
    "message": ("Message",),
    "outbox.outbox": ("Outbox",),
    "record": ("Record",),
    "relay.relay": ("Relay",),
    "sagas.saga": ("Saga",),
    "sagas.steps": ("Done", "Step"),
    "store": ("PostgresStore", "RedisStore", "Store", "connect"),
    "worker.worker": ("Worker",),
}
_MODULES = {name: module for module, names in _NAMES.items() for name in names}
_MODULES |= dict.fromkeys(errors.ERROR_NAMES, "errors")

__all__ = [*_MODULES]

if TYPE_CHECKING:
    from .public import *
else:

    def __getattr__(name: str) -> Any:
        """A public name, or a module of this package by its name, as in ``effectonce.contracts``."""
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
        """The public names, and not the modules and helpers beside them: what an interactive shell completes."""
        return sorted([*__all__, "__version__"])
