"""The test kit for users and authors of backends. Hypothesis strategies are in ``effectonce.testing.strategies``."""

from .broker import SettledDelivery, TestBroker
from .chaos import ChaosBroker, ChaosStore
from .clock import ManualClock
from .idempotence import aassert_idempotent, assert_idempotent
from .override import override
from .trials import Report, Trial

__all__ = [
    "ChaosBroker",
    "ChaosStore",
    "ManualClock",
    "Report",
    "SettledDelivery",
    "TestBroker",
    "Trial",
    "aassert_idempotent",
    "assert_idempotent",
    "override",
]
