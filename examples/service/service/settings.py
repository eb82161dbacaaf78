"""Where everything is. Without servers: an SQLite file in the working directory, and queues in memory."""

import os
from typing import Final

STORE: Final = os.environ.get("EFFECTONCE_STORE", "sqlite:///service.db")  # or postgresql://localhost/shop
BROKER: Final = os.environ.get("EFFECTONCE_BROKER", "memory://service")  # or amqp://guest:guest@localhost
OUTSIDE: Final = os.environ.get("SERVICE_OUTSIDE", "http://127.0.0.1:8001")  # the bank and the post office
#: How long the unfinished work of a killed process waits for the next one.
LEASE: Final = os.environ.get("SERVICE_LEASE", "10s")

_PREFIX: Final = os.environ.get("SERVICE_QUEUES", "service")
PLACED_QUEUE: Final = f"{_PREFIX}.placed"
RESERVED_QUEUE: Final = f"{_PREFIX}.reserved"
ENDED_QUEUE: Final = f"{_PREFIX}.ended"
