"""What users and authors of backends test with."""

from .chaos import ChaosBroker, ChaosStore
from .clock import ManualClock
from .idempotence import Report, Trial, aassert_idempotent, assert_idempotent
from .swap import override

__all__ = [
    "ChaosBroker",
    "ChaosStore",
    "ManualClock",
    "Report",
    "Trial",
    "aassert_idempotent",
    "assert_idempotent",
    "override",
]
