"""Publishes what the outbox holds.

effectonce run service.relay:relay
"""

import effectonce as eo

from . import telemetry
from .database import broker, store
from .settings import LEASE

relay = eo.Relay(store, broker, lease=LEASE)
telemetry.watch(relay)
