"""Every seam of effectonce, one module each.

A **backend** is what a third party writes to add a store; `effectonce.Store` is our handle on it. A backend
opens **ports**. A port is one connection, used by one caller at a time, and its methods are `async def` for
sync and async code: those of a sync port never suspend, so that sync code can run them on its own thread.

A **broker** opens publishers and consumers; a **session** is a connection that stays the caller's own.

`effectonce.testing.suites` has a suite for each of these seams, which checks an implementation against every
obligation here.
"""

from .brokers import AckBuffer as AckBuffer
from .brokers import BrokerBackend as BrokerBackend
from .brokers import BrokerCapabilities as BrokerCapabilities
from .brokers import Consumer as Consumer
from .brokers import DeadLetter as DeadLetter
from .brokers import DeadLetters as DeadLetters
from .brokers import Delivery as Delivery
from .brokers import FlushesLater as FlushesLater
from .brokers import Packet as Packet
from .brokers import Publisher as Publisher
from .clocks import Clock as Clock
from .envelopes import Envelope as Envelope
from .envelopes import StableHeaders as StableHeaders
from .events import Event as Event
from .events import HandlerTracer as HandlerTracer
from .events import Hook as Hook
from .events import Tracer as Tracer
from .events import WorkSpan as WorkSpan
from .inbox_port import InboxBackend as InboxBackend
from .inbox_port import InboxPort as InboxPort
from .outbox_port import OutboxBackend as OutboxBackend
from .outbox_port import OutboxPort as OutboxPort
from .sessions import AsyncConnection as AsyncConnection
from .sessions import AsyncpgConnection as AsyncpgConnection
from .sessions import Dialect as Dialect
from .sessions import DriverSession as DriverSession
from .sessions import Joinable as Joinable
from .sessions import SyncConnection as SyncConnection
from .stores import Backend as Backend
from .stores import Capabilities as Capabilities
from .stores import ConnectionLost as ConnectionLost
from .stores import Contention as Contention
from .stores import Examinable as Examinable
from .stores import Port as Port
from .stores import SelfMigrating as SelfMigrating
