"""The inbox of one handler: its own scope, and rows that are named by jobs."""

from __future__ import annotations

from effectonce.inbox.inbox import Inbox
from effectonce.inbox.table import InboxKey

from .jobs import Job


class RouteInbox(Inbox):
    """``inbox`` under the scope of a handler. What it is asked about are jobs, which know their key and fingerprint."""

    def __init__(self, inbox: Inbox, scope: str, retention: int) -> None:
        self.__dict__.update(inbox.__dict__)
        self.scope = scope
        self.retention_us = retention

    def key_for(self, message: Job, payload: object = ...) -> InboxKey:
        return self.make_key(message.key, message.fingerprints)
