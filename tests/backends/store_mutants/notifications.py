"""Notifications: one store that has them, and others that break them."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

from effectonce.contracts import Capabilities
from effectonce.record import Claim, Settlement

from .base import Mutant, caught_by


class NotifyingPort(Mutant):
    """Not a mutant: the memory store with notifications, on which the cases about `changes` pass."""

    capabilities = Capabilities(name="notifying", connections="one", notifies=True)

    def flagged(self) -> set[tuple[str, str]]:
        return self._backend.__dict__.setdefault("flagged", set())

    def settled(self) -> list[tuple[str, str]]:
        return self._backend.__dict__.setdefault("settled", [])

    def apply(self, op: Any, now: int) -> Any:
        reply = self.apply_correctly(op, now)
        if isinstance(op, Claim) and op.waiting and reply.kind == "in_progress":
            self.flagged().add((op.scope, op.key))
        if isinstance(op, Settlement) and reply is True and (op.scope, op.key) in self.flagged():
            self.flagged().discard((op.scope, op.key))
            self.settled().append((op.scope, op.key))
        return reply

    async def changes(self, timeout: float) -> Sequence[tuple[str, str]]:
        changed = list(self.settled())
        self.settled().clear()
        return changed


@caught_by("changes_report_the_settlement_of_a_flagged_record")
class NotifiesOfEverything(NotifyingPort):
    """On every completion it cost 33-45 %."""

    def apply(self, op: Any, now: int) -> Any:
        reply = super().apply(op, now)
        if isinstance(op, Settlement) and reply is True and (op.scope, op.key) not in self.settled():
            self.settled().append((op.scope, op.key))
        return reply


@caught_by("changes_report_the_settlement_of_a_flagged_record")
class NotifiesOfNothing(NotifyingPort):
    async def changes(self, timeout: float) -> Sequence[tuple[str, str]]:
        time.sleep(timeout)  # noqa: ASYNC251
        return ()


@caught_by("changes_returns_at_its_timeout")
class ChangesIgnoreTheTimeout(NotifyingPort):
    async def changes(self, timeout: float) -> Sequence[tuple[str, str]]:
        time.sleep(2.2)  # noqa: ASYNC251
        return ()
