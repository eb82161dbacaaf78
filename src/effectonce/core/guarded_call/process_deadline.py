"""Leases in a process that its platform ends at a known time, as AWS Lambda does with an invocation.

A claim is then leased until that time, and a little longer: as long as the handler may run, without renewals. So it is
free soon after the process was ended, and no heartbeat outlives it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Final

from msgspec.structs import replace

from .run import NEVER_RENEWED, StoreRun

LEASE_MARGIN_S: Final = 1.0
"""How much longer than its process a lease lasts: the process must have ended when another one claims, and it may be
ended a moment late."""

_seconds_left: ContextVar[Callable[[], float] | None] = ContextVar("effectonce_seconds_left", default=None)


@contextmanager
def process_deadline(seconds_left: Callable[[], float]) -> Iterator[None]:
    """Lease the claims of this block until the end of the process. ``seconds_left`` says how long that is."""
    token = _seconds_left.set(seconds_left)
    try:
        yield
    finally:
        _seconds_left.reset(token)


def adjust_lease(run: StoreRun) -> None:
    """Lease ``run``, which is about to be claimed, until the deadline. Without one, leave it as its guard says.

    Its policy is replaced, not changed: other runs share it.
    """
    seconds_left = _seconds_left.get()
    if seconds_left is not None and not run.policy.seen_set:
        lease_us = round((max(0.0, seconds_left()) + LEASE_MARGIN_S) * 1e6)
        run.policy = replace(run.policy, lease_us=lease_us, max_run_s=NEVER_RENEWED)
