"""The inbox of one handler: its own scope, and rows that are named by jobs."""

from __future__ import annotations

from typing import Any

from effectonce.inbox.inbox import Inbox
from effectonce.inbox.rows import Arrival

from .jobs import Job


class RouteInbox(Inbox):
    """``inbox`` under the scope of a handler. What it is asked about are jobs, which know their key and fingerprint."""

    def __init__(self, inbox: Inbox, scope: str, retention: int) -> None:
        self.__dict__.update(inbox.__dict__)
        self.scope = scope
        self._retention = retention

    def _arrival(self, message: Job, payload: Any) -> Arrival:
        key, prints, privacy = message.key, message.fingerprints, self._privacy
        if privacy is None:
            return Arrival(self.scope, key, key, prints, self._retention)
        hidden = privacy.hide(self.scope, key)
        return Arrival(self.scope, hidden, key, privacy.hide_fingerprints(self.scope, prints), self._retention)
