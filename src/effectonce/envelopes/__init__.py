"""How messages are written into packets: `CloudEvents` (the default), `Raw` bodies, and `Signed` ones of either."""

from .cloudevents import CloudEvents
from .raw import Raw
from .signing import Signed

__all__ = ["CloudEvents", "Raw", "Signed"]
