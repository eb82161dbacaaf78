"""effectonce: at-least-once delivery, exactly-once effect.

import effectonce as eo

    store = eo.connect("sqlite:///shop.db")

    @eo.once(store, scope="charge-card", key="payment_id")
    def charge(payment_id: str, amount: int) -> Receipt: ...
"""

# ruff: noqa: F403 - for checkers of types, the names are in `public`

from importlib import import_module
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

#: Where each public name is: loaded when it is first asked for, and nothing that it does not need.
_HOMES = {
    "Ack": "guard.dispatch",
    "AttemptsExhausted": "errors",
    "Block": "guard.block",
    "Broker": "broker",
    "BrokerUnavailable": "errors",
    "ConfigurationError": "errors",
    "CorruptRecord": "errors",
    "DeadLetterQueue": "dead_letters.queue",
    "Done": "sagas.steps",
    "EffectOnceError": "errors",
    "Event": "contracts",
    "ForgedMessage": "errors",
    "GLOBAL": "guard.once",
    "Guarded": "guard.once",
    "InDoubt": "errors",
    "InProgress": "errors",
    "Inbox": "inbox.inbox",
    "Intent": "intents.operations",
    "Intents": "intents.intents",
    "InvalidKey": "errors",
    "InvalidOption": "errors",
    "KeyTooLong": "errors",
    "LeaseLost": "errors",
    "Message": "message",
    "MissingDriver": "errors",
    "MissingKey": "errors",
    "MissingPrincipal": "errors",
    "NotAwaited": "errors",
    "NotExecuted": "errors",
    "NotInDoubt": "errors",
    "NotInTransaction": "errors",
    "Outbox": "outbox.outbox",
    "Outcome": "guard.once",
    "OutcomeUnknown": "errors",
    "PayloadMismatch": "errors",
    "PayloadTooLarge": "errors",
    "PermanentFailure": "errors",
    "PostgresStore": "store",
    "Record": "record",
    "Redeliver": "guard.dispatch",
    "RedisStore": "store",
    "Reentered": "errors",
    "Reject": "guard.dispatch",
    "Relay": "relay.relay",
    "ResultNotStored": "errors",
    "Retry": "core.retry",
    "Retryable": "errors",
    "Run": "core.guarded_call.run",
    "Saga": "sagas.saga",
    "SagaChanged": "errors",
    "SagaFailed": "errors",
    "SchemaMismatch": "errors",
    "SchemaMissing": "errors",
    "ScopeTaken": "errors",
    "Step": "sagas.steps",
    "Store": "store",
    "StoreUnavailable": "errors",
    "SyncAsyncMismatch": "errors",
    "TransactionConflict": "errors",
    "Undecodable": "errors",
    "UnknownScheme": "errors",
    "UnsafeStore": "errors",
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

__all__ = list(_HOMES)

if TYPE_CHECKING:
    from .public import *
else:

    def __getattr__(name: str) -> Any:
        """A public name, or a module of ours by its name, as in ``effectonce.errors``."""
        if name in _HOMES:
            home = import_module(f"{__name__}.{_HOMES[name]}")
            found = globals()[name] = home if name == "keys" else getattr(home, name)
            return found
        if not name.startswith("_"):
            try:
                return import_module(f"{__name__}.{name}")
            except ModuleNotFoundError as missing:
                if missing.name != f"{__name__}.{name}":  # it is there, and something that it needs is not
                    raise
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")

    def __dir__() -> list[str]:
        return sorted({*globals(), *__all__})
