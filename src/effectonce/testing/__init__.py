"""What users and authors of backends test with."""

from .clock import ManualClock
from .swap import override

__all__ = ["ManualClock", "override"]
