"""All public names at once: for type checkers, and for programs that load everything before they fork."""

# ruff: noqa: F403, I001 - sorted, each name would be a statement of its own

from . import keys as keys
from .guard.block import Block as Block, block as block
from .broker import Broker as Broker, RedisBroker as RedisBroker, connect_broker as connect_broker
from .contracts import Event as Event
from .core.delivery_outcome import Ack as Ack, Redeliver as Redeliver, Reject as Reject
from .core.guarded_call.run import Run as Run, current as current
from .core.retry import Retry as Retry
from .dead_letters.bypass import bypass_external_effects as bypass_external_effects
from .dead_letters.queue import DeadLetterQueue as DeadLetterQueue
from .errors import *
from .guard.once import GLOBAL as GLOBAL, Guarded as Guarded, Outcome as Outcome, once as once
from .inbox.inbox import Inbox as Inbox
from .intents.intents import Intents as Intents
from .guard.dispatch import dispatcher as dispatcher
from .message import Message as Message
from .intents.operation import Intent as Intent
from .outbox.outbox import Outbox as Outbox
from .record import Record as Record
from .relay.relay import Relay as Relay
from .sagas.saga import Saga as Saga
from .sagas.steps import Done as Done, Step as Step
from .store import PostgresStore as PostgresStore, RedisStore as RedisStore, Store as Store, connect as connect
from .worker.worker import Worker as Worker
