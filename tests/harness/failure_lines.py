"""The lines that `log_failed_attempt` wrote."""

from __future__ import annotations

import logging
from typing import Any

import pytest


def failures(caplog: pytest.LogCaptureFixture) -> list[logging.LogRecord]:
    """The lines about failed attempts, and there is no other warning."""
    records = [record for record in caplog.records if record.levelno >= logging.WARNING]
    assert all(hasattr(record, "effectonce") for record in records), [record.getMessage() for record in records]
    return records


def facts(record: logging.LogRecord) -> dict[str, Any]:
    logged: dict[str, Any] = record.effectonce  # type: ignore[attr-defined]
    return logged


def raised(record: logging.LogRecord) -> BaseException | None:
    return record.exc_info[1] if record.exc_info else None
