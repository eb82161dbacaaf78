"""The test kit for users and authors of backends. Hypothesis strategies are in ``effectonce.testing.strategies``."""

from .broker import Settled, TestBroker
from .chaos import ChaosBroker, ChaosStore
from .clock import ManualClock
from .idempotence import Report, Trial, aassert_idempotent, assert_idempotent
from .override import override

__all__ = [
    "ChaosBroker",
    "ChaosStore",
    "ManualClock",
    "Report",
    "Settled",
    "TestBroker",
    "Trial",
    "aassert_idempotent",
    "assert_idempotent",
    "override",
]
