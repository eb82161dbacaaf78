"""Who acts, what the audit log keeps of it, and how Ctrl-C ends it."""

from __future__ import annotations

import getpass
import os
import signal
import socket
from contextlib import AbstractContextManager
from types import FrameType

from effectonce.telemetry.audit_log import AuditLog

from . import settings


def operator() -> str:
    """Return the name of the user at the terminal, for the audit log."""
    try:
        user = getpass.getuser()
    except (KeyError, OSError):  # a user without a name, as in some containers
        user = "unknown"
    return f"{user}@{socket.gethostname()}"


def audit_action(
    file: str | None, action: str, target: str, detail: str = "", *, place: object = ""
) -> AbstractContextManager[None]:
    """Write to the audit log who does this, before and after. ``place``: the backend that holds the target."""
    where = repr(place) if place else ""
    return AuditLog(settings.setting("audit", file)).doing(action, target, by=operator(), detail=detail, place=where)


class GracefulInterrupt:
    """Turns Ctrl-C into a request to stop after the current step. A second Ctrl-C interrupts at once."""

    requested = False

    def __enter__(self) -> GracefulInterrupt:
        self._before = signal.signal(signal.SIGINT, self._handle)
        return self

    def __exit__(self, *_: object) -> None:
        signal.signal(signal.SIGINT, self._before)

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if self.requested:
            raise KeyboardInterrupt
        self.requested = True
        # Not with `print`: the signal may have interrupted a `print`, which cannot be entered twice.
        os.write(2, b"\nstopping after this step (Ctrl-C again: at once)\n")

    def is_requested(self) -> bool:
        return self.requested

    def raise_if_requested(self) -> None:
        """End the command as Ctrl-C does, where it was pressed."""
        if self.requested:
            raise KeyboardInterrupt
