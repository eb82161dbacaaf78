"""How messages are written into packets: `CloudEvents` (the default), and what others on the same queue read."""

from .cloudevents import CloudEvents
from .raw import Raw
from .signing import Signed

__all__ = ["CloudEvents", "Raw", "Signed"]
