"""Claims that the store did not answer, and whose callers are gone. It may have granted them."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Final

from effectonce.contracts import Port
from effectonce.errors import StoreUnavailable, show
from effectonce.record import Claim, Settlement

from .group_commit.send_batch import send_from_thread
from .run_sync import run_sync

log = logging.getLogger("effectonce")

MAX_UNANSWERED: Final = 1000
"""In a long outage there are more. Their leases end by themselves."""


class UnansweredClaims:
    """Releases those that were granted, so that the next delivery does not wait for a lease without an owner.

    It looks each record up by its key: a claim that never arrived must not be made now. Any thread may `add`; one
    thread calls `release`, until nothing is left. If the process dies first, the leases end by themselves.
    """

    def __init__(self, monotonic: Callable[[], float]) -> None:
        self._monotonic = monotonic
        self._claims: dict[bytes, tuple[Claim, float]] = {}  # by owner, with the time at which the lease is over

    def __bool__(self) -> bool:
        return bool(self._claims)

    def add(self, claim: Claim) -> None:
        """``claim`` will not be repeated by its owner."""
        if len(self._claims) < MAX_UNANSWERED:
            self._claims[claim.owner] = (claim, self._monotonic() + claim.lease_us / 1e6)

    def release(self, port: Port) -> None:
        """Release what the store has granted. If it does not answer, the rest is left for the next call."""
        for owner, (claim, lease_ends_at) in tuple(self._claims.items()):
            try:
                if self._monotonic() < lease_ends_at:
                    _release_if_granted(port, claim)
            except StoreUnavailable:
                return
            except Exception as error:  # the lease ends by itself
                log.debug("an unanswered claim of scope %s was not released: %s", show(claim.scope), error)
            del self._claims[owner]


def _release_if_granted(port: Port, claim: Claim) -> None:
    record = run_sync(port.get(claim.scope, claim.key))
    if record is None or record.state != "claimed" or record.owner != claim.owner:
        return
    # Its work did not start, so that does not count as an attempt.
    op = Settlement(claim.scope, claim.key, claim.owner, record.token, "free", claim.retention_us, refund=True)
    (reply,) = send_from_thread(port, (op,))
    if isinstance(reply, Exception):
        raise reply
