"""The time of a service that can be read only from the dates of its replies."""

from __future__ import annotations

import time
from collections.abc import Callable
from email.utils import parsedate_to_datetime
from typing import NamedTuple

from effectonce.errors import StoreUnavailable


def _since_boot() -> int:
    """Microseconds on a monotonic clock, which also counts the time in suspend where the system has such a clock."""
    boot_clock = getattr(time, "CLOCK_BOOTTIME", None)
    return (time.monotonic_ns() if boot_clock is None else time.clock_gettime_ns(boot_clock)) // 1000


class Time(NamedTuple):
    """A reading of the service's clock: times to write are relative to ``now``; what ends by ``past`` has ended."""

    now: int
    past: int


class ServerClock:
    """The service's time, in microseconds, from the ``Date`` of its replies. This machine's wall clock is not used.

    DynamoDB lets no expression read its clock. But a reply that was dated D, to a call sent at s and received at
    r on our monotonic clock, proves that the service's clock is ahead of ours by between ``D - r`` and
    ``D + 1 s - s`` (dates are cut to whole seconds). Every reply narrows the range; the estimate is its middle,
    and half its width, `uncertainty`, is how wrong that can be: half a second after the first reply, a few
    milliseconds once replies have been seen on both sides of a turn of the second. It grows again with age, as two
    clocks drift apart. A reply outside the range means that one of the two clocks jumped (a virtual machine was
    stopped, say): the estimate starts again from that reply.

    The rules that the store keeps with it:

    - No claim is granted while the uncertainty is over a quarter of its lease, nor where the estimate moved by more
      than that while it was made: so ``lease_until`` is off by a quarter of the lease at most.
    - Nothing is taken to have ended, a lease or a retention, before it has by every time that is possible
      (`Time.past`). So however little a process knows, it ends no lease before ``lease_until`` on the service's
      clock: a claim holds for three quarters of its lease at least. A process that knows less waits longer.

    Reads and updates take no lock: an update lost to a race is one sample less.
    """

    DATE_RESOLUTION_US = 1_000_000  # an HTTP date has whole seconds
    SERVICE_SKEW_US = 10_000  # how far the clocks of the service's own machines may be apart
    MAX_DRIFT_PPM = 200  # how fast our clock and the service's may drift apart

    def __init__(self, local: Callable[[], int] = _since_boot) -> None:
        self.local = local
        self._range: tuple[int, int, int] | None = None  # least and greatest offset, and when that was known
        self._last: tuple[str, int] = ("", 0)

    def observe(self, sent: int, date: str) -> None:
        """A reply dated ``date``, to a call sent at ``sent``, has just been received."""
        received = self.local()
        text, second = self._last
        if text != date:
            try:
                second = int(parsedate_to_datetime(date).timestamp()) * 1_000_000
            except ValueError:
                return
            self._last = date, second
        low = second - received - self.SERVICE_SKEW_US
        high = second + self.DATE_RESOLUTION_US - sent + self.SERVICE_SKEW_US
        before = self._range_at(received)
        if before is not None and before[0] <= high and low <= before[1]:
            low, high = max(low, before[0]), min(high, before[1])
        self._range = low, high, received

    def _range_at(self, at: int) -> tuple[int, int] | None:
        if self._range is None:
            return None
        low, high, since = self._range
        drift = (at - since) * self.MAX_DRIFT_PPM // 1_000_000
        return low - drift, high + drift

    @property
    def is_known(self) -> bool:
        return self._range is not None

    @property
    def offset(self) -> int:
        """The service's clock minus ours, as far as we know."""
        if self._range is None:
            raise StoreUnavailable("the time of DynamoDB is not known yet: no reply had a Date header; retry")
        return (self._range[0] + self._range[1]) // 2

    def now(self) -> int:
        return self.local() + self.offset

    def uncertainty(self) -> int:
        """How wrong `now` can be."""
        offsets = self._range_at(self.local())
        return 1 << 62 if offsets is None else (offsets[1] - offsets[0] + 1) // 2

    def read(self) -> Time:
        now = self.now()
        return Time(now, now - self.uncertainty())
