"""effectonce: at-least-once delivery, exactly-once effect.

import effectonce as eo

    store = eo.connect("sqlite:///shop.db")

    @eo.once(store, scope="charge-card", key="payment_id")
    def charge(payment_id: str, amount: int) -> Receipt: ...
"""

# ruff: noqa: F403, F405 - the names are in `public`

from importlib import import_module
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

__all__ = [
    "GLOBAL",
    "Ack",
    "Again",
    "AttemptsExhausted",
    "Block",
    "Broker",
    "BrokerUnavailable",
    "ConfigurationError",
    "CorruptRecord",
    "Dead",
    "DeadLetterQueue",
    "Done",
    "EffectOnceError",
    "Event",
    "ForgedMessage",
    "Guarded",
    "InDoubt",
    "InProgress",
    "Inbox",
    "Intent",
    "Intents",
    "InvalidKey",
    "InvalidOption",
    "KeyTooLong",
    "LeaseLost",
    "Message",
    "MissingDriver",
    "MissingKey",
    "MissingPrincipal",
    "NotAwaited",
    "NotExecuted",
    "NotInDoubt",
    "NotInTransaction",
    "Outbox",
    "Outcome",
    "OutcomeUnknown",
    "PayloadMismatch",
    "PayloadTooLarge",
    "PermanentFailure",
    "PostgresStore",
    "Record",
    "RedisStore",
    "Reentered",
    "Relay",
    "ResultNotStored",
    "Retry",
    "Retryable",
    "Run",
    "Saga",
    "SagaChanged",
    "SagaFailed",
    "SchemaMismatch",
    "SchemaMissing",
    "ScopeTaken",
    "Step",
    "Store",
    "StoreUnavailable",
    "TransactionConflict",
    "Undecodable",
    "UnknownScheme",
    "UnsafeStore",
    "Worker",
    "WrongColour",
    "block",
    "bypass_external_effects",
    "connect",
    "connect_broker",
    "current",
    "dispatcher",
    "keys",
    "once",
]

if TYPE_CHECKING:
    from .public import *
else:

    def __getattr__(name: str) -> Any:
        """All public names when the first is asked for, so that the command line starts without them; and a module of
        ours by its name, as in ``effectonce.errors``."""
        if name in __all__:
            from . import public

            globals().update({each: getattr(public, each) for each in __all__})
            return globals()[name]
        if not name.startswith("_"):
            try:
                return import_module(f"{__name__}.{name}")
            except ModuleNotFoundError as missing:
                if missing.name != f"{__name__}.{name}":  # it is there, and something that it needs is not
                    raise
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")

    def __dir__() -> list[str]:
        return sorted({*globals(), *__all__})
