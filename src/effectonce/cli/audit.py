"""The audit log of commands: what an operator does is recorded before and after it is done."""

from __future__ import annotations

import getpass
import socket
from contextlib import AbstractContextManager

from effectonce.telemetry.audit_log import AuditLog

from . import settings


def operator_name() -> str:
    """Return the name of the user at the terminal, as the audit log gets it."""
    try:
        user = getpass.getuser()
    except (KeyError, OSError):  # a user without a name, as in some containers
        user = "unknown"
    return f"{user}@{socket.gethostname()}"


def audit_action(
    file: str | None, action: str, target: str, detail: str = "", *, place: object = ""
) -> AbstractContextManager[None]:
    """Record who does this, before the block and after it. ``file`` is the option ``--audit``; ``place`` is the backend
    that holds the target."""
    where = repr(place) if place else ""
    return AuditLog(settings.find_setting("audit", file)).record_action(
        action, target, by=operator_name(), detail=detail, place=where
    )
