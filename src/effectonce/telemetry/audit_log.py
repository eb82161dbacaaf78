"""The audit log: which operator did what to which record. Each action is written before it is done, and afterwards."""

from __future__ import annotations

import errno
import logging
import os
import time
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial

import msgspec
from msgspec import Struct

from effectonce.errors import ConfigurationError, EffectOnceError, show

log = logging.getLogger("effectonce.telemetry.audit_log")

ASKED_OUTCOME = "asked"
DONE_OUTCOME = "done"
_MAX_ENTRIES_IN_MEMORY = 1000
_BLOCK_BYTES = 64 * 1024


class AuditEntry(Struct, frozen=True):
    """One line of the audit log. ``target`` names records, messages or sagas, never their content."""

    at: int  # µs since the epoch, on this machine's clock
    by: str
    action: str
    target: str
    outcome: str
    detail: str = ""
    place: str = ""  # the store or broker, without secrets: several may share a log, and hold the same keys


class AuditLog:
    """An append-only log of what operators did: JSON lines in the file at ``path``, and always the logger
    ``effectonce.telemetry.audit_log``.

    An entry is one write to a file opened for appending, so that several processes may share it; it is on the disk
    before the action starts. Where it cannot be written, `ConfigurationError` is raised, and nothing is done.
    """

    def __init__(self, path: str | os.PathLike[str] | None = None) -> None:
        self.path = None if path is None else os.fspath(path)
        self._in_memory: deque[AuditEntry] = deque(maxlen=_MAX_ENTRIES_IN_MEMORY)

    def record(
        self, action: str, target: str, *, by: str, outcome: str = DONE_OUTCOME, detail: str = "", place: str = ""
    ) -> None:
        """Write one entry. Long texts are cut, and control characters made visible."""
        entry = AuditEntry(
            at=time.time_ns() // 1000,
            by=show(by, 200),
            action=show(action, 100),
            target=show(target, 1000),
            outcome=show(outcome, 500),
            detail=show(detail, 8000),
            place=show(place, 500),
        )
        if self.path is None:
            self._in_memory.append(entry)
        else:
            self._append(self.path, msgspec.json.encode(entry) + b"\n")
        more = f" ({entry.detail})" if entry.detail else ""
        more += f" in {entry.place}" if entry.place else ""
        log.info("%s %s %s: %s%s", entry.by, entry.action, entry.target, entry.outcome, more)

    @contextmanager
    def record_action(self, action: str, target: str, *, by: str, detail: str = "", place: str = "") -> Iterator[None]:
        """Write ``asked`` before the block runs, then ``done``, or ``failed: …`` where it raised; the error propagates.

        An ``asked`` without a second line means that the process died in between, or that the disk was full by then
        (which is logged, and changes no outcome): check the target.
        """
        record = partial(self.record, action, target, by=by, detail=detail, place=place)
        record(outcome=ASKED_OUTCOME)
        outcome = DONE_OUTCOME
        try:
            yield
        except BaseException as error:
            what = f"[{error.code}] {error}" if isinstance(error, EffectOnceError) else type(error).__name__
            outcome = f"failed: {what}"
            raise
        finally:
            try:
                record(outcome=outcome)
            except ConfigurationError as error:
                log.error("%s %s: %s, but the audit log could not be written: %s", action, show(target), outcome, error)

    def recent(self, limit: int = 100) -> list[AuditEntry]:
        """Return the newest entries, newest first: from the file, or of this process if there is no file. Lines
        that cannot be decoded are skipped. Raises `ConfigurationError` if the file cannot be read."""
        if self.path is None:
            return list(self._in_memory)[: -limit - 1 : -1]
        entries: list[AuditEntry] = []
        for line in _last_lines(self.path):
            if len(entries) >= limit:
                break
            try:
                entries.append(msgspec.json.decode(line, type=AuditEntry))
            except (msgspec.DecodeError, UnicodeDecodeError):
                continue
        return entries

    def _append(self, path: str, line: bytes) -> None:
        try:
            file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
            try:
                if os.write(file, line) < len(line):
                    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
                os.fsync(file)
            finally:
                os.close(file)
        except OSError as error:
            raise ConfigurationError(
                f"the audit log {show(path)} cannot be written ({error.strerror}): make it writable, or name another "
                "with --audit or EFFECTONCE_AUDIT; actions are not started without it"
            ) from error


def _last_lines(path: str) -> Iterator[bytes]:
    """Yield the lines of a file from its end, reading no more of it than the caller consumes."""
    try:
        file = open(path, "rb")  # noqa: SIM115 - closed below
    except FileNotFoundError:
        return
    except OSError as error:
        raise ConfigurationError(
            f"the audit log {show(path)} cannot be read ({error.strerror}); make it readable"
        ) from error
    with file:
        position, rest = file.seek(0, os.SEEK_END), b""
        while position:
            size = min(_BLOCK_BYTES, position)
            position = file.seek(position - size)
            rest, *lines = (file.read(size) + rest).split(b"\n")
            yield from (line for line in reversed(lines) if line)
        if rest:
            yield rest
