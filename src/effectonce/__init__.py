"""effectonce: at-least-once delivery, exactly-once effect.

import effectonce as eo

    store = eo.connect("sqlite:///shop.db")

    @eo.once(store, scope="charge-card", key="payment_id")
    def charge(payment_id: str, amount: int) -> Receipt: ...
"""

from . import keys
from .blocks import Block, block
from .broker import Broker, connect_broker
from .contracts import Event
from .core.flow import Run, current
from .core.retry import Retry
from .dlq import DeadLetterQueue, bypass_external_effects
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
    MissingPrincipal,
    NotAwaited,
    NotExecuted,
    NotInDoubt,
    NotInTransaction,
    OutcomeUnknown,
    PayloadMismatch,
    PayloadTooLarge,
    PermanentFailure,
    Reentered,
    ResultNotStored,
    Retryable,
    SagaChanged,
    SagaFailed,
    SchemaMismatch,
    SchemaMissing,
    ScopeTaken,
    StoreUnavailable,
    TransactionConflict,
    Undecodable,
    UnknownScheme,
    UnsafeStore,
    WrongColour,
)
from .guard import GLOBAL, Guarded, Outcome, once
from .inbox import Inbox
from .intents import Intents
from .message import Message
from .operations import Intent
from .outbox import Outbox
from .record import Record
from .relay import Relay
from .saga import Saga
from .saga_steps import Done, Step
from .store import PostgresStore, RedisStore, Store, connect
from .worker import Worker

__version__ = "0.1.0"

__all__ = [
    "GLOBAL",
    "AttemptsExhausted",
    "Block",
    "Broker",
    "BrokerUnavailable",
    "ConfigurationError",
    "CorruptRecord",
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
    "keys",
    "once",
]
