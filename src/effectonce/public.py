"""Where the public names are. The package loads it when the first of them is asked for."""

from . import keys as keys
from .blocks import (
    Block as Block,
)
from .blocks import (
    block as block,
)
from .broker import (
    Broker as Broker,
)
from .broker import (
    connect_broker as connect_broker,
)
from .contracts import Event as Event
from .core.flow import (
    Run as Run,
)
from .core.flow import (
    current as current,
)
from .core.retry import Retry as Retry
from .dlq import (
    DeadLetterQueue as DeadLetterQueue,
)
from .dlq import (
    bypass_external_effects as bypass_external_effects,
)
from .errors import (
    AttemptsExhausted as AttemptsExhausted,
)
from .errors import (
    BrokerUnavailable as BrokerUnavailable,
)
from .errors import (
    ConfigurationError as ConfigurationError,
)
from .errors import (
    CorruptRecord as CorruptRecord,
)
from .errors import (
    EffectOnceError as EffectOnceError,
)
from .errors import (
    ForgedMessage as ForgedMessage,
)
from .errors import (
    InDoubt as InDoubt,
)
from .errors import (
    InProgress as InProgress,
)
from .errors import (
    InvalidKey as InvalidKey,
)
from .errors import (
    InvalidOption as InvalidOption,
)
from .errors import (
    KeyTooLong as KeyTooLong,
)
from .errors import (
    LeaseLost as LeaseLost,
)
from .errors import (
    MissingDriver as MissingDriver,
)
from .errors import (
    MissingKey as MissingKey,
)
from .errors import (
    MissingPrincipal as MissingPrincipal,
)
from .errors import (
    NotAwaited as NotAwaited,
)
from .errors import (
    NotExecuted as NotExecuted,
)
from .errors import (
    NotInDoubt as NotInDoubt,
)
from .errors import (
    NotInTransaction as NotInTransaction,
)
from .errors import (
    OutcomeUnknown as OutcomeUnknown,
)
from .errors import (
    PayloadMismatch as PayloadMismatch,
)
from .errors import (
    PayloadTooLarge as PayloadTooLarge,
)
from .errors import (
    PermanentFailure as PermanentFailure,
)
from .errors import (
    Reentered as Reentered,
)
from .errors import (
    ResultNotStored as ResultNotStored,
)
from .errors import (
    Retryable as Retryable,
)
from .errors import (
    SagaChanged as SagaChanged,
)
from .errors import (
    SagaFailed as SagaFailed,
)
from .errors import (
    SchemaMismatch as SchemaMismatch,
)
from .errors import (
    SchemaMissing as SchemaMissing,
)
from .errors import (
    ScopeTaken as ScopeTaken,
)
from .errors import (
    StoreUnavailable as StoreUnavailable,
)
from .errors import (
    TransactionConflict as TransactionConflict,
)
from .errors import (
    Undecodable as Undecodable,
)
from .errors import (
    UnknownScheme as UnknownScheme,
)
from .errors import (
    UnsafeStore as UnsafeStore,
)
from .errors import (
    WrongColour as WrongColour,
)
from .guard import (
    GLOBAL as GLOBAL,
)
from .guard import (
    Guarded as Guarded,
)
from .guard import (
    Outcome as Outcome,
)
from .guard import (
    once as once,
)
from .inbox import Inbox as Inbox
from .intents import Intents as Intents
from .message import Message as Message
from .operations import Intent as Intent
from .outbox import Outbox as Outbox
from .record import Record as Record
from .relay import Relay as Relay
from .saga import Saga as Saga
from .saga.steps import (
    Done as Done,
)
from .saga.steps import (
    Step as Step,
)
from .store import (
    PostgresStore as PostgresStore,
)
from .store import (
    RedisStore as RedisStore,
)
from .store import (
    Store as Store,
)
from .store import (
    connect as connect,
)
from .worker import Worker as Worker
