"""effectonce: at-least-once delivery, exactly-once effect.

import effectonce as eo

    store = eo.connect("sqlite:///shop.db")

    @eo.once(store, scope="charge-card", key="payment_id")
    def charge(payment_id: str, amount: int) -> Receipt: ...
"""

from . import keys
from .blocks import Block, block
from .contracts import Event
from .core.flow import Run, current
from .errors import (
    AttemptsExhausted,
    BrokerUnavailable,
    ConfigurationError,
    CorruptRecord,
    EffectOnceError,
    ForgedMessage,
    InDoubt,
    InProgress,
    InvalidKey,
    InvalidOption,
    KeyTooLong,
    LeaseLost,
    MissingDriver,
    MissingKey,
    NotAwaited,
    NotInDoubt,
    NotInTransaction,
    PayloadMismatch,
    PermanentFailure,
    Reentered,
    ResultNotStored,
    Retryable,
    SchemaMismatch,
    SchemaMissing,
    ScopeTaken,
    StoreUnavailable,
    Undecodable,
    UnknownScheme,
    UnsafeStore,
    WrongColour,
)
from .guard import GLOBAL, Guarded, Outcome, once
from .message import Message
from .record import Record
from .store import PostgresStore, RedisStore, Store, connect

__version__ = "0.1.0"

__all__ = [
    "GLOBAL",
    "AttemptsExhausted",
    "Block",
    "BrokerUnavailable",
    "ConfigurationError",
    "CorruptRecord",
    "EffectOnceError",
    "Event",
    "ForgedMessage",
    "Guarded",
    "InDoubt",
    "InProgress",
    "InvalidKey",
    "InvalidOption",
    "KeyTooLong",
    "LeaseLost",
    "Message",
    "MissingDriver",
    "MissingKey",
    "NotAwaited",
    "NotInDoubt",
    "NotInTransaction",
    "Outcome",
    "PayloadMismatch",
    "PermanentFailure",
    "PostgresStore",
    "Record",
    "RedisStore",
    "Reentered",
    "ResultNotStored",
    "Retryable",
    "Run",
    "SchemaMismatch",
    "SchemaMissing",
    "ScopeTaken",
    "Store",
    "StoreUnavailable",
    "Undecodable",
    "UnknownScheme",
    "UnsafeStore",
    "WrongColour",
    "block",
    "connect",
    "current",
    "keys",
    "once",
]
